"""Cut a long text into pieces that are spoken one by one. Knows text; knows nothing of sound, HTTP or Triton.

Where a sentence ends is asked of sentencex: Wikimedia's, kept up, one small wheel without dependencies, and it knows
the abbreviations and full stops of all our languages. (pysbd has had no release since 2021; syntok knows no Chinese.)
It is asked about a stretch of bounded length for each piece, so the whole takes time in proportion to the text.

The best place within a piece's limit wins: the end of a sentence, a clause's comma, white space, a place between two
letters of a script without spaces; a single word is cut only when it alone is over the limit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import sentencex

from engine_lib.wire import is_visible

AHEAD = 40  # characters beyond a piece's limit that tell whether a sentence really ends before it
JOINER = "\u200d"
LANGUAGES = {
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}
_CLAUSE = re.compile(r"[,;:\u2013\u2014]\s+|[\u3001\uff0c\uff1a\uff1b]\s*")  # 1,000 and 7:45 are no clauses
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Comfort:
    """How much text is spoken at once: so many characters, or so many wide ones (Chinese, Japanese, Korean).

    In a mixed text each character takes its own share.
    """

    chars: int
    wide_chars: int

    @property
    def limit(self) -> int:
        """Of the sum of `cost`."""
        return self.chars * self.wide_chars

    def cost(self, character: str) -> int:
        """A character's share of the limit."""
        return self.chars if _is_wide(character) else self.wide_chars


def split(text: str, comfort: Comfort, language: str | None = None) -> list[str]:
    """Pieces of `text` that joined are `text`, each with something to speak in it if `text` has.

    A piece may be over the limit only by white space. A text within the limit is one piece.
    """
    costs = [0, *accumulate(map(comfort.cost, text))]  # of the characters before each place
    code = LANGUAGES.get((language or "").strip().lower(), "en")
    cuts, start = [0], 0
    while costs[-1] - costs[start] > comfort.limit:
        start = _cut(text, start, costs, comfort.limit, code)
        cuts.append(start)
    return _with_something_to_speak(text[begin:end] for begin, end in zip(cuts, [*cuts[1:], len(text)], strict=True))


def _cut(text: str, start: int, costs: list[int], limit: int, language: str) -> int:
    """Where the piece from `start` on ends, when the rest of the text is over the limit."""
    rest = costs[-1] - costs[start]
    even = rest / -(-rest // limit)  # pieces alike in length, not a full one and then a crumb
    reach = aim = start
    while costs[reach + 1] - costs[start] <= limit:
        reach += 1
        if costs[reach] - costs[start] <= even:
            aim = reach
    window = text[start : reach + AHEAD]
    finders: tuple[Callable[[str], Iterable[int]], ...] = (
        lambda part: _ends_of_sentences(part, language),
        lambda part: (match.end() for match in _CLAUSE.finditer(part)),
        lambda part: (match.end() for match in _SPACE.finditer(part)),
        _between_words,
    )
    for finder in finders:
        places = [start + place for place in finder(window) if 0 < place <= reach - start]
        if places:
            return min(places, key=lambda place: abs(place - aim))
    whole = next((place for place in range(reach, start, -1) if not _clings(text, place)), start)
    return whole if whole > start else max(reach, start + 1)


def _ends_of_sentences(text: str, language: str) -> Iterator[int]:
    """After each sentence and the white space that follows it."""
    for found in sentencex.get_sentence_boundaries(language, text):
        end: int = found["end_index"]
        space = _SPACE.match(text, end)
        yield space.end() if space else end


def _between_words(text: str) -> list[int]:
    """The places beside a wide letter: its script writes no spaces between words."""
    return [
        place
        for place in range(1, len(text))
        if (_is_wide_letter(text[place - 1]) or _is_wide_letter(text[place])) and not _clings(text, place)
    ]


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in ("W", "F")


def _is_wide_letter(character: str) -> bool:
    return character.isalpha() and _is_wide(character)


def _clings(text: str, place: int) -> bool:
    """Whether what follows `place` belongs to the character or the quotation before it."""
    after = text[place]
    return unicodedata.category(after) in ("Mn", "Mc", "Me", "Sk", "Pe", "Pf", "Po") or JOINER in (
        after,
        text[place - 1],
    )


def _with_something_to_speak(pieces: Iterable[str]) -> list[str]:
    """`pieces` with those that show nothing joined to the one before, or at the start to the one after."""
    joined: list[str] = []
    for piece in pieces:
        if joined and not (is_visible(piece) and is_visible(joined[-1])):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined
