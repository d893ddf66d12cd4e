"""Drop the tags of SSML from a text, and speak what stands between them. Any other `<` is text: a < b is spoken.

A tag that parts words (break, p, s, ...) leaves a space, any other leaves nothing. Entities (&lt;) stay as they are.
A text may come in pieces, cut anywhere: what comes out is that of the whole text.
"""

from __future__ import annotations

import re

# https://www.w3.org/TR/speech-synthesis11, and what the large clouds add under their own prefixes.
PARTING = ("break", "p", "s", "par", "seq", "media", "audio", "speak", "voice")
INLINE = (
    "prosody", "emphasis", "say-as", "sub", "phoneme", "mark", "lang", "w", "token", "desc", "lexicon", "lookup",
    "meta", "metadata",
)  # fmt: skip
PREFIXES = ("amazon:", "mstts:", "google:", "ibm:")
LONGEST = 512  # characters of a tag; a longer one is text

_NAME = "|".join([*PARTING, *INLINE, *(f"{prefix}[a-z][a-z-]*" for prefix in PREFIXES)])
_VALUE = r"\"[^\"<]*\"|'[^'<]*'"
_ATTRIBUTES = rf"(?:\s+[a-z:_-]+\s*=\s*(?:{_VALUE}))*\s*"
_TAG = re.compile(rf"</?(?P<name>{_NAME}){_ATTRIBUTES}/?>|<\?xml(?:\s[^<>]*)?\?>", re.IGNORECASE)
# What can still become one.
_NAME_BEGUN = "|".join(
    sorted({re.escape(name[:end]) for name in (*PARTING, *INLINE, *PREFIXES, "?xml") for end in range(len(name) + 1)})
)
_ATTRIBUTE_BEGUN = r"(?:(?<=\s)[a-z:_-]+(?:\s*(?:=\s*(?:\"[^\"<]*|'[^'<]*)?)?)?|/)?"
_BEGUN = re.compile(
    rf"<(?:/?(?:{_NAME_BEGUN})|/?(?:{_NAME}){_ATTRIBUTES}{_ATTRIBUTE_BEGUN}|\?xml(?:\s[^<>]*)?)", re.IGNORECASE
)


class TagFilter:
    """One text without its tags, piece by piece."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of what may be a tag
        self._after_space = True  # whether what has come out ends with white space, or is nothing
        self._skips_space = False

    def feed(self, piece: str) -> str:
        """What can be spoken once `piece` is known."""
        text, self._held = self._held + piece, ""
        spoken, at = [], 0
        while (begin := text.find("<", at)) >= 0:
            spoken.append(self._plain(text[at:begin]))
            window = text[begin : begin + LONGEST]
            if tag := _TAG.match(window):
                spoken.append(self._in_place_of(tag))
                at = begin + tag.end()
            elif len(window) < LONGEST and begin + len(window) == len(text) and _BEGUN.fullmatch(window):
                self._held = window
                return "".join(spoken)
            else:
                spoken.append(self._plain("<"))
                at = begin + 1
        spoken.append(self._plain(text[at:]))
        return "".join(spoken)

    def finish(self) -> str:
        """The rest, when no more comes."""
        held, self._held = self._held, ""
        return self._plain(held)

    def _plain(self, text: str) -> str:
        if self._skips_space:
            text = text.lstrip()
        if text:
            self._skips_space = False
            self._after_space = text[-1].isspace()
        return text

    def _in_place_of(self, tag: re.Match[str]) -> str:
        name = tag["name"]
        parts = not self._after_space and name is not None and name.lower() in PARTING
        self._after_space = self._after_space or parts
        self._skips_space = self._skips_space or self._after_space
        return " " if parts else ""


def without_tags(text: str) -> str:
    """A whole text without its tags."""
    tags = TagFilter()
    return tags.feed(text) + tags.finish()
