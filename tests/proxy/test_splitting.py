"""Laws of how a long text is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_lib.wire import is_visible
from proxy.splitting import Comfort, split

COMFORT = Comfort(chars=600, wide_chars=200)
SMALL = Comfort(chars=30, wide_chars=10)
SENTENCE = "Dr. Jones paid $3.50 for it at 7:45, i.e. far too much. "
CHINESE = "今天天气很好，我们去公园散步吧。"


def cost(text: str, comfort: Comfort) -> int:
    return sum(map(comfort.cost, text))


TEXTS = st.text(st.sampled_from('ab. !?。！，你好\n\t \u3000"”」()é\u0301😀\u200d\u200b3,')) | st.text(
    st.characters(exclude_categories=["Cs"])
)


@given(TEXTS)
def test_joined_pieces_equal_the_text(text: str) -> None:
    assert "".join(split(text, SMALL)) == text


@given(TEXTS.filter(is_visible))
def test_every_piece_has_something_to_speak(text: str) -> None:
    assert all(is_visible(piece) for piece in split(text, SMALL))


@given(TEXTS)
def test_no_piece_is_over_the_limit_but_by_what_does_not_show(text: str) -> None:
    for piece in split(text, SMALL):
        assert cost("".join(filter(is_visible, piece)), SMALL) <= SMALL.limit


@given(st.lists(st.text("abcé", min_size=1, max_size=30), min_size=1))
def test_words_within_the_limit_stay_whole(words: list[str]) -> None:
    pieces = split(" ".join(words), SMALL)
    assert [word for piece in pieces for word in piece.split()] == words


@pytest.mark.parametrize("text", ["a" * 600, "好" * 200, "好" * 100 + "a" * 300, "", "Hi. There."])
def test_a_text_within_the_limit_is_one_piece(text: str) -> None:
    assert split(text, COMFORT) == ([text] if text else [""])


@pytest.mark.parametrize("text", ["a " * 301, "好" * 201, "好" * 100 + " a" * 151])
def test_a_text_over_the_limit_is_cut_in_halves(text: str) -> None:
    first, second = split(text, COMFORT)
    assert cost(first, COMFORT) == pytest.approx(cost(second, COMFORT), rel=0.02)


@pytest.mark.parametrize(
    ("text", "language", "end"),
    [
        (SENTENCE * 40, "english", "far too much. "),
        (SENTENCE * 40, None, "far too much. "),
        (CHINESE * 60, "chinese", "散步吧。"),
        (CHINESE * 60, None, "散步吧。"),
        ("「今日は晴れです。」と彼は言った。" * 50, "japanese", "言った。"),
        ("Das kostet z. B. 3,50 Euro. " * 50, "german", "Euro. "),
        ("One line\nand its second line\n\n" * 50, None, "\n"),
    ],
)  # fmt: skip
def test_the_cut_is_at_the_end_of_a_sentence(text: str, language: str | None, end: str) -> None:
    pieces = split(text, COMFORT, language)
    assert len(pieces) > 1
    assert all(piece.endswith(end) for piece in pieces)


@pytest.mark.parametrize(
    ("unit", "end"),
    [("and 1,000 of them came at 7:45, ", r", $"), ("word after word ", r" $"), ("风吹草低见牛羊，", r"，$")],
)
def test_without_sentences_the_cut_is_at_the_next_best_place(unit: str, end: str) -> None:
    pieces = split(unit * 60, COMFORT)
    assert len(pieces) > 1
    assert all(re.search(end, piece) for piece in pieces)


def test_case_44_one_endless_word_is_cut() -> None:
    pieces = split("la" * 2500, COMFORT)
    assert "".join(pieces) == "la" * 2500
    assert max(map(len, pieces)) <= 600


def test_what_is_seen_as_one_character_stays_together() -> None:
    family, accented = "\U0001f468\u200d\U0001f469\u200d\U0001f467", "e\u0301"
    for unit in (family, accented):
        assert all(len(piece) % len(unit) == 0 for piece in split(unit * 800, COMFORT))


@pytest.mark.parametrize(
    "unit", ['He said "no (maybe)". ', "(", '"', ". ", "\n", "a", "，", "1. ", "e\u0301", "\u0301", "\u200d"]
)
def test_a_huge_text_is_cut_without_blowing_up(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    assert "".join(split(text, COMFORT)) == text
