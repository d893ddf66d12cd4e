"""What is said, and how long it takes to say."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from engine_lib.errors import ConfigurationError
from engine_lib.wire import FRAME_SECONDS

FOLDER = Path(__file__).parent / "texts"
SETS = ("en", "zh")
NARROW_PER_SECOND, WIDE_PER_SECOND = 16.0, 4.7  # characters that a brisk speaker says: letters, and e.g. Chinese ones


def read_texts(name: str) -> list[str]:
    """The texts of a set, or of a file with one on each line. Raises ConfigurationError."""
    path = FOLDER / f"{name}.txt" if name in SETS else Path(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"--texts {name}: can't be read ({error}).", param="texts") from None
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ConfigurationError(f"--texts {name}: it has no text.", param="texts")
    return texts


def frames_of(text: str) -> int:
    """How many frames of sound `text` takes to say, by its length."""
    wide = sum(is_wide(character) for character in text)
    seconds = (len(text) - wide) / NARROW_PER_SECOND + wide / WIDE_PER_SECOND
    return max(1, round(seconds / FRAME_SECONDS))


def words_of(text: str) -> Sequence[str]:
    """`text` in the pieces that a writer would send: a word with the space after it, or one wide character."""
    words = [""]
    for character in text:
        before = words[-1][-1:]
        if (before.isspace() and not character.isspace()) or (is_wide(character) and before):
            words.append("")
        words[-1] += character
    return words


def is_wide(character: str) -> bool:
    """Whether it takes the room of two letters, as Chinese characters do."""
    return unicodedata.east_asian_width(character) in "WF"
