"""Text that is still being written, turned into tokens that nothing written later can change.

The pre-tokeniser cuts a text into pieces and each piece becomes tokens by itself, so a token is final once its piece
is. A piece is final when it ends before everything that later text could still alter:

* the last piece, since it may grow;
* the white space at the end: the regex splits a run of it by what comes after;
* the last character that isn't a combining mark, and the marks behind it: NFC may still compose them anew.

The regex never looks back, so the rest can be cut alone, as if the final pieces had not been there.
"""

from __future__ import annotations

import unicodedata

from engine_lib.text.tokenizer import TextTokenizer


class LiveText:
    """Feeds a text piece by piece; the tokens it gives, in order, are those of the whole text behind `prefix`."""

    def __init__(self, tokenizer: TextTokenizer, prefix: str) -> None:
        """`prefix` is template text before the client's; its last piece may merge with the text's beginning."""
        self._tokenizer = tokenizer
        self._rest = prefix
        self._prefix_left = len(prefix)

    @property
    def held(self) -> int:
        """Characters of the client's text that are not tokens yet."""
        return max(0, len(self._rest) - self._prefix_left)

    def append(self, text: str) -> list[int]:
        """Take more text; the tokens that became final."""
        self._rest = self._tokenizer.normalise(self._rest + text)
        border = _border(self._rest)
        final = [piece for piece in self._tokenizer.encode_pieces(self._rest) if piece.end <= border]
        if final:
            self._rest = self._rest[final[-1].end :]
            self._prefix_left = max(0, self._prefix_left - final[-1].end)
        return [token for piece in final for token in piece.tokens]

    def flush(self) -> list[int]:
        """The tokens of what is held, as if the text ended here: the whole text's at its end, before it maybe not."""
        tokens = self._tokenizer.encode(self._rest)
        self._rest, self._prefix_left = "", 0
        return tokens


def _border(text: str) -> int:
    """Where the part of a normalised text begins that later text can alter."""
    starter = len(text)
    while starter > 0 and _may_be_mark(text[starter - 1]):
        starter -= 1
    return min(max(0, starter - 1), len(text.rstrip()))


def _may_be_mark(character: str) -> bool:
    """Whether a character can compose with one before it; what this Python's tables don't know might."""
    return unicodedata.combining(character) != 0 or unicodedata.category(character) == "Cn"
