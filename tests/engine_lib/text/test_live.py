"""Live text: however it is cut, its tokens are the whole text's, and only what could still change is held."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_lib.talker.config import TalkerConfig
from engine_lib.text.live import LiveText
from engine_lib.text.tokenizer import ASSISTANT, TextTokenizer
from tests.golden import CHECKPOINT

IDS = TalkerConfig.from_directory(CHECKPOINT).ids
TOKENIZER = TextTokenizer(CHECKPOINT, im_start=IDS.im_start, im_end=IDS.im_end)

TEXTS = [
    "Hello there, this is a tiny test of speech. It's what we'll say; don't you THINK they've 'RE-done it?",
    "  two  spaces \n\n and\r\n lines\t\n  end  \n ",
    "其实我真的有发现，我是一个特别善于观察的人。3次！",
    "สวัสดีครับ นี่คือการทดสอบ",
    "नमस्ते, यह एक परीक्षण है। क्षत्रिय",
    "مرحبا، هذا اختبار ١٢٣ אבג 456",
    "👨‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️‍🔥 1️⃣",
    "e\u0301 e\u031b\u0301 q\u0323\u0307 s\u0307\u0323 \u1100\u1161\u11a8",
    "か\u3099 \u09c7\u09be = \u0338 <\u0338 a\u0345\u0300",
    "12345 3.14 $250 at 7:45AM",
    "\u0301 starts with a mark",
    "\n\nstarts with lines",
    "word\u200b\u2060\ufeffjoined \u202eright\u202c",
]
# Characters that decide something: letters, digits, marks, spaces, lines, quotes, joiners, syllable parts.
ALPHABET = (
    "aAbsStTréß'’ \t\n\r\u00a0\u3000.,!?-/0159\u0301\u0308\u0323\u031b\u0338\u3099"
    "\u1100\u1161\u11a8\uac00か中।क्षि\u200d👩👧️1⃣\u09c7\u09be\u0345"
)


def live(parts: list[str]) -> list[int]:
    text = LiveText(TOKENIZER, ASSISTANT)
    tokens = [token for part in parts for token in text.append(part)]
    return tokens + text.flush()


def cuts(text: str, places: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in itertools.pairwise(borders)]


@pytest.mark.parametrize("text", TEXTS)
def test_one_character_at_a_time_gives_the_tokens_of_the_whole(text: str) -> None:
    assert live(list(text)) == TOKENIZER.encode(ASSISTANT + text)


@pytest.mark.parametrize("text", TEXTS)
def test_any_one_cut_gives_the_tokens_of_the_whole(text: str) -> None:
    whole = TOKENIZER.encode(ASSISTANT + text)
    for place in range(len(text) + 1):
        assert live([text[:place], text[place:]]) == whole


@settings(max_examples=1500, deadline=None)
@given(st.one_of(st.text(ALPHABET, max_size=40), st.text(max_size=30)), st.lists(st.integers(0, 60), max_size=12))
@example("e\u031b\u0301", [2])
@example("a \n \nb", [2, 3, 4])
def test_no_text_and_no_cut_gives_other_tokens(text: str, places: list[int]) -> None:
    assert live(cuts(text, places)) == TOKENIZER.encode(ASSISTANT + text)


def test_words_become_tokens_as_soon_as_the_next_begins() -> None:
    text = LiveText(TOKENIZER, ASSISTANT)
    heard = [len(text.append(part)) > 0 for part in ["Hel", "lo", " ", "wor", "ld", ".", " ", "So"]]
    assert heard == [True, False, True, False, False, True, True, False]
    assert text.held == len(" So")


def test_the_alphabet_covers_what_regex_and_normalisation_tell_apart() -> None:
    kinds = {unicodedata.category(character)[0] for character in ALPHABET}
    assert kinds >= {"L", "M", "N", "P", "S", "Z", "C"}
