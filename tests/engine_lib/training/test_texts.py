from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine_lib.training import everyday, listening, texts


def test_no_sentence_of_the_evaluation_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = texts.evaluation_texts()
    two = next(text for text in asked if ". " in text)
    examples = [asked[0].upper(), two.split(". ")[0], f"{two} Really.", "the weather was fine that day"]
    gloss = "; ".join(f'"{example}"' for example in examples)
    for name in ("data.adj", "data.adv", "data.noun", "data.verb"):
        (tmp_path / name).write_text(f"00001740 03 n 01 x 0 000 | a thing of some kind; {gloss}\n", encoding="latin-1")
    (tmp_path / "cntlist.rev").write_text(
        "".join(f"{word}%1:03:00:: 1 5\n" for word in ["apple", "table", "window", "garden", "river", "letter"]),
        encoding="latin-1",
    )
    for what, count in (("EVERYDAY", 50), ("GLOSSES", 4), ("LISTS", 5)):
        monkeypatch.setattr(texts, what, count)
    made = {texts.plain(text) for text in texts.texts(tmp_path)}
    assert "the weather was fine that day" in made
    assert made.isdisjoint(texts.withheld())
    assert not any(texts.plain(two) in text for text in made)


def test_the_evaluation_holds_a_hundred_different_texts_of_one_to_three_sentences() -> None:
    asked = texts.evaluation_texts()
    assert len({texts.plain(text) for text in asked}) == 100
    assert {sum(text.count(mark) for mark in ".!?") for text in asked} == {1, 2, 3}


def test_everyday_sentences_fill_every_slot_and_are_the_same_each_time() -> None:
    made = [everyday.sentence(random.Random(seed)) for seed in range(2000)]
    assert made == [everyday.sentence(random.Random(seed)) for seed in range(2000)]
    assert not [sentence for sentence in made if "{" in sentence or "}" in sentence]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("$3", "Three dollars."),
        ("It costs $12.50!", "it costs twelve dollars and 50 cents"),
        ("At 7:45.", "at seven forty-five"),
        ("9:00", "nine"),
        ("May 3rd, 1987", "May 3, nineteen eighty-seven"),
        ("in 2019", "in twenty nineteen"),
        ("1,200 people", "one thousand two hundred people"),
        ("555-0192", "5 5 5, 0 1 9 2"),
        ("the 21st of June", "the twenty-first of June"),
        ("50%", "fifty percent"),
        ("six o'clock", "6 o'clock"),
    ],
)
def test_numbers_count_as_the_same_words_however_they_are_written(one: str, other: str) -> None:
    assert listening.words(one) == listening.words(other)


@pytest.mark.parametrize(
    ("said", "heard", "wrong"),
    [("a b c", "a b c", 0), ("a b c", "a c", 1), ("a b c", "a x b c", 1), ("a b c", "", 3), ("a b c", "c b a", 2)],
)
def test_errors_are_the_fewest_changes_of_words(said: str, heard: str, wrong: int) -> None:
    assert listening.errors(said.split(), heard.split()) == wrong
