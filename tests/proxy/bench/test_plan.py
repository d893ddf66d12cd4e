"""Laws of the plan and of the texts."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest

from engine_lib.errors import ConfigurationError
from engine_lib.wire import FRAME_SECONDS, MAX_SEED
from proxy.bench import compose
from proxy.bench.plan import plan
from proxy.bench.texts import FOLDER, frames_of, read_texts, words_of

TEXTS = ["One.", "Two.", "Three."]


def test_the_same_seed_and_rate_make_the_same_plan_and_others_another() -> None:
    first = plan(TEXTS, 5, 1, 10, 1)
    assert first == plan(TEXTS, 5.0, 1, 10, 1)
    assert first != plan(TEXTS, 5, 1, 10, 2)


def test_gaps_are_exponential_with_the_rate_as_mean() -> None:
    due = [request.due_s for request in plan(TEXTS, 20, 0, 500, 1)]
    gaps = [late - early for early, late in itertools.pairwise(due)]
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 20, rel=0.05)  # as large as the mean
    assert statistics.median(gaps) == pytest.approx(0.6931 / 20, rel=0.05)


def test_what_comes_before_the_warm_up_is_over_isnt_measured_and_nothing_comes_after_the_end() -> None:
    requests = plan(TEXTS, 50, 2, 3, 1)
    assert [request.number for request in requests] == list(range(len(requests)))
    assert all(request.measured == (request.due_s >= 2) for request in requests)
    assert {request.measured for request in requests} == {True, False}
    assert max(request.due_s for request in requests) < 5
    assert all(0 <= request.seed <= MAX_SEED for request in requests)


def test_every_text_comes_once_before_one_comes_again() -> None:
    texts = [request.text for request in plan(TEXTS, 50, 0, 3, 1)]
    assert all(sorted(texts[n : n + 3]) == sorted(TEXTS) for n in range(0, len(texts) - 3, 3))


def test_the_sets_are_what_their_composer_makes() -> None:
    for name, lines in compose.files().items():
        assert (FOLDER / name).read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.parametrize(("name", "count"), [("en", 1000), ("zh", 250)])
def test_a_set_has_different_texts_of_four_to_five_seconds_on_average(name: str, count: int) -> None:
    texts = read_texts(name)
    assert len(set(texts)) == len(texts) == count
    seconds = [frames_of(text) * FRAME_SECONDS for text in texts]
    assert 4 < statistics.mean(seconds) < 5
    assert min(seconds) > 2.4
    assert max(seconds) < 6


def test_words_joined_are_the_text_and_each_is_one_word() -> None:
    for text in ("Two words, then  more.", "我们说 some English。", " leading", "x"):
        assert "".join(words_of(text)) == text
    assert words_of("Two words.") == ["Two ", "words."]
    assert words_of("我们 go") == ["我", "们 ", "go"]


def test_a_file_without_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="no text"):
        read_texts(str(tmp_path / "empty.txt"))
