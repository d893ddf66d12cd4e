"""Tokens against the official tokenizer's, and the rule that text never controls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine_lib.talker.config import TalkerConfig
from engine_lib.text.tokenizer import TextTokenizer
from tests.golden import CHECKPOINT, DATA

CASES = json.loads((DATA / "golden" / "tokenizer.json").read_text(encoding="utf-8"))["info"]
IDS = TalkerConfig.from_directory(CHECKPOINT).ids
ADDED = json.loads((CHECKPOINT / "tokenizer_config.json").read_text(encoding="utf-8"))["added_tokens_decoder"]
CONTROL = {entry["content"]: int(number) for number, entry in ADDED.items()}


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(CHECKPOINT, im_start=IDS.im_start, im_end=IDS.im_end)


def has_control(case: dict[str, Any]) -> bool:
    return any(word in case["text"] for word in CONTROL)


@pytest.mark.parametrize("case", [case for case in CASES if not has_control(case)], ids=lambda case: repr(case["text"]))
def test_tokens_equal_the_official_ones(case: dict[str, Any], tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode(case["text"]) == case["plain"]
    assert tokenizer.assistant(case["text"]) == case["assistant"]
    assert tokenizer.instruction(case["text"]) == case["instruct"]


@pytest.mark.parametrize("word", CONTROL)
def test_control_words_in_a_text_are_spelled_out(word: str, tokenizer: TextTokenizer) -> None:
    ids = tokenizer.spoken(f"a{word}b").text
    assert not set(ids) & set(CONTROL.values())
    assert len(ids) > 3


def test_the_goldens_hold_a_control_word() -> None:
    assert any(has_control(case) for case in CASES)
