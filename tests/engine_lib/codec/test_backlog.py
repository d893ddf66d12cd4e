from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from engine_lib.codec import backlog as backlog_module
from engine_lib.codec.backlog import Backlog, Turn
from engine_lib.codec.jobs import CodecJob, PcmChunk
from engine_lib.errors import GenerationFailed, ServiceError

IDLE_S = 10.0
PATIENCE_S = 1.0  # nothing waits for others as long


def job(stream: str, index: int, frames: int = 1, *, last: bool = False, reason: str = "") -> CodecJob:
    codes = np.zeros((frames, 16), dtype=np.int32)
    usage = np.array([1, index], dtype=np.int32)
    return CodecJob(stream, index, codes, last, reason, usage, lambda answer: None)


class Bench:
    """A Backlog with its answers, by (stream, index)."""

    def __init__(self, slots: int = 4, free_padding: int = 0) -> None:
        self.answers: list[tuple[tuple[str, int], PcmChunk | ServiceError]] = []
        self.backlog = Backlog(slots, IDLE_S, self._answer, free_padding=free_padding)

    def _answer(self, job: CodecJob, answer: PcmChunk | ServiceError) -> None:
        self.answers.append(((job.stream_id, job.index), answer))

    def add(self, *jobs: CodecJob, now: float = 0.0) -> None:
        for each in jobs:
            self.backlog.add(each, now)

    def run(self, most: int = 8, *, now: float = 0.0) -> list[tuple[str, int]]:
        """Take one batch and finish it."""
        turns = self.backlog.next_batch(most, now + PATIENCE_S)
        for turn in turns:
            self.backlog.finish(turn, turn.job.silence(), now)
        return names(turns)

    def failed(self) -> list[tuple[str, int]]:
        return [name for name, answer in self.answers if isinstance(answer, GenerationFailed)]

    def silent(self) -> list[tuple[str, int]]:
        return [name for name, answer in self.answers if isinstance(answer, PcmChunk) and not len(answer.pcm)]


def names(turns: list[Turn]) -> list[tuple[str, int]]:
    return [(turn.job.stream_id, turn.job.index) for turn in turns]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_chunks_of_a_stream_run_by_index_in_whatever_order_they_come(bench: Bench) -> None:
    bench.add(job("a", 2), job("a", 1))
    assert bench.run() == []
    bench.add(job("a", 0))
    assert [bench.run() for _ in range(4)] == [[("a", 0)], [("a", 1)], [("a", 2)], []]


def test_a_batch_holds_one_chunk_of_a_stream(bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 1), job("b", 0))
    assert bench.run() == [("a", 0), ("b", 0)]
    assert bench.run() == [("a", 1)]


def test_first_chunks_overtake_later_ones(bench: Bench) -> None:
    bench.add(job("a", 0), job("b", 0))
    bench.run()
    bench.add(job("a", 1), job("b", 1), job("c", 0), job("d", 0))
    assert bench.run(3) == [("c", 0), ("d", 0), ("a", 1)]
    assert bench.run(3) == [("b", 1)]


def test_a_batch_has_at_most_the_rows_asked_for(bench: Bench) -> None:
    bench.add(*(job(stream, 0) for stream in "abcd"))
    assert bench.run(3) == [("a", 0), ("b", 0), ("c", 0)]


def test_chunks_of_like_size_share_a_batch(bench: Bench) -> None:
    bench.add(job("a", 0, 8), job("b", 0, 1), job("c", 0, 5), job("d", 0, 9))
    assert [bench.run(), bench.run(), bench.run()] == [[("a", 0), ("c", 0)], [("b", 0)], [("d", 0)]]


def test_chunks_of_other_size_share_a_batch_where_their_padding_costs_nothing() -> None:
    bench = Bench(free_padding=11)
    bench.add(job("a", 0, 12), job("b", 0, 1), job("c", 0, 12), job("d", 0, 2))
    assert [bench.run(), bench.run()] == [[("a", 0), ("b", 0), ("c", 0)], [("d", 0)]]


def test_later_chunks_wait_for_others_a_part_of_their_length_and_first_ones_dont() -> None:
    bench = Bench(free_padding=100)
    bench.add(job("a", 0), job("b", 0))
    bench.run()
    bench.add(job("a", 1, 8))
    due = bench.backlog.deadline()
    assert due == pytest.approx(8 * 0.08 / 32)
    assert bench.backlog.next_batch(8, due - 0.001) == []
    assert names(bench.backlog.next_batch(8, due)) == [("a", 1)]


@pytest.mark.parametrize(
    ("other", "batch"),
    [
        (("c", 0, 1), [("c", 0), ("a", 1)]),  # a first chunk takes along who waits
        (("b", 1, 8), [("a", 1), ("b", 1)]),  # nobody else can come
    ],
)
def test_waiting_ends_when_it_is_of_no_use(other: tuple[str, int, int], batch: list[tuple[str, int]]) -> None:
    bench = Bench(free_padding=100)
    bench.add(job("a", 0), job("b", 0))
    bench.run()
    bench.add(job("a", 1, 8))
    assert bench.backlog.next_batch(8, 0.0) == []
    bench.add(job(*other))
    assert names(bench.backlog.next_batch(8, 0.0)) == batch


def test_who_has_no_slot_sets_no_deadline() -> None:
    bench = Bench(slots=1)
    bench.add(job("a", 0))
    bench.run(now=5.0)
    bench.add(job("b", 0), now=5.0)
    assert bench.backlog.deadline() == 5.0 + IDLE_S


def test_a_stream_keeps_its_slot_and_only_its_first_turn_is_fresh(bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 1), job("b", 0), job("b", 1))
    first = bench.backlog.next_batch(8, PATIENCE_S)
    for turn in first:
        bench.backlog.finish(turn, turn.job.silence(), 0.0)
    second = bench.backlog.next_batch(8, PATIENCE_S)
    assert [turn.slot for turn in first] == [turn.slot for turn in second]
    assert len({turn.slot for turn in first}) == 2
    assert [turn.fresh for turn in first + second] == [True, True, False, False]


def test_the_last_chunk_frees_the_slot(bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 1, last=True, reason="stop"))
    bench.run()
    assert bench.backlog.active == 1
    bench.run()
    assert bench.backlog.active == 0


def test_a_last_chunk_without_frames_needs_no_turn(bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 1, 0, last=True, reason="stop"))
    assert bench.silent() == []
    bench.run()
    assert [name for name, _ in bench.answers] == [("a", 0), ("a", 1)]
    assert bench.backlog.active == 0


def test_streams_wait_for_a_slot_and_get_it_in_order() -> None:
    bench = Bench(slots=1)
    bench.add(job("a", 0), job("b", 0, last=True), job("c", 0, last=True))
    assert bench.run() == [("a", 0)]
    assert bench.run() == []
    bench.add(job("a", 1, last=True), now=IDLE_S - 1)
    assert [bench.run(now=IDLE_S - 1), bench.run(), bench.run()] == [[("a", 1)], [("b", 0)], [("c", 0)]]
    assert bench.failed() == []


def test_a_slot_that_an_idle_stream_held_goes_to_a_waiting_one() -> None:
    bench = Bench(slots=1)
    bench.add(job("a", 0), job("b", 0, last=True))
    bench.run()
    assert bench.backlog.expire(IDLE_S) == ["a"]
    assert bench.run() == [("b", 0)]


@pytest.mark.parametrize("index", [0, 1])
def test_a_repeated_index_fails_alone(index: int, bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 2))
    bench.run()
    bench.add(job("a", 1), job("a", index), job("a", 2))
    assert bench.failed() == [("a", index), ("a", 2)]
    assert [bench.run(), bench.run()] == [[("a", 1)], [("a", 2)]]
    assert bench.failed() == [("a", index), ("a", 2)]


def test_a_chunk_behind_the_last_one_fails(bench: Bench) -> None:
    bench.add(job("a", 1), job("a", 0, last=True, reason="stop"))
    bench.run()
    assert bench.failed() == [("a", 1)]
    assert bench.backlog.deadline() is None


def test_cancel_answers_what_waits_and_what_comes_without_samples(bench: Bench) -> None:
    bench.add(job("a", 0))
    bench.run()
    bench.answers.clear()
    bench.add(job("a", 2), job("a", 1))
    bench.backlog.cancel("a", 0.0)
    assert bench.backlog.active == 0
    bench.add(job("a", 3, last=True, reason="cancelled"))
    assert bench.silent() == [("a", 1), ("a", 2), ("a", 3)]
    final = bench.answers[-1][1]
    assert isinstance(final, PcmChunk)
    assert (final.last, final.finish_reason, final.index) == (True, "cancelled", 3)
    assert bench.run() == []


def test_cancel_reaches_a_stream_whose_first_chunk_is_on_its_way(bench: Bench) -> None:
    bench.backlog.cancel("a", 0.0)
    bench.add(job("a", 0), job("a", 1))
    assert bench.silent() == [("a", 0), ("a", 1)]
    assert bench.run() == []


def test_an_id_may_be_used_again_after_its_end(bench: Bench) -> None:
    bench.add(job("a", 0, last=True, reason="stop"))
    bench.run()
    bench.add(job("a", 0))
    assert bench.run() == [("a", 0)]
    bench.backlog.cancel("a", 0.0)
    bench.add(job("a", 0))
    assert bench.run() == [("a", 0)]


def test_a_cancel_is_forgotten_after_the_idle_timeout(bench: Bench) -> None:
    bench.backlog.cancel("a", 0.0)
    bench.add(job("a", 0), now=IDLE_S)
    assert bench.run() == [("a", 0)]


def test_a_stream_without_its_next_chunk_times_out_and_later_chunks_fail(bench: Bench) -> None:
    bench.add(job("a", 0), now=1.0)
    bench.run(now=2.0)
    bench.add(job("a", 2), now=3.0)
    assert bench.backlog.deadline() == 3.0 + IDLE_S
    assert bench.backlog.expire(2.9 + IDLE_S) == []
    assert bench.backlog.expire(3.0 + IDLE_S) == ["a"]
    assert bench.failed() == [("a", 2)]
    assert bench.backlog.active == 0
    bench.add(job("a", 1), now=4.0 + IDLE_S)
    assert bench.failed() == [("a", 2), ("a", 1)]


def test_a_stream_that_waits_for_its_turn_never_times_out(bench: Bench) -> None:
    bench.add(job("a", 0))
    assert bench.backlog.expire(1000 * IDLE_S) == []


def test_the_finish_reason_failed_is_an_error_and_frees_the_slot(bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 1, 3, last=True, reason="failed"))
    bench.run()
    assert bench.failed() == [("a", 1)]
    assert bench.backlog.active == 0


def test_a_failed_turn_ends_its_stream_and_no_other(bench: Bench) -> None:
    bench.add(job("a", 0), job("a", 1), job("b", 0), job("b", 1))
    first, second = bench.backlog.next_batch(8, PATIENCE_S)
    bench.backlog.fail(first, "broken", 0.0)
    bench.backlog.finish(second, second.job.silence(), 0.0)
    bench.add(job("a", 2, last=True))
    assert bench.failed() == [("a", 0), ("a", 1), ("a", 2)]
    assert bench.backlog.active == 1
    assert bench.run() == [("b", 1)]


def test_a_heartbeat_is_answered_at_once_and_takes_no_slot() -> None:
    bench = Bench(slots=1)
    bench.add(job("a", 0))
    bench.run()
    bench.add(job("", 0, 0))
    assert bench.silent()[-1] == ("", 0)
    assert bench.backlog.active == 1


def test_only_so_many_ended_streams_are_remembered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_module, "MAX_ENDED", 3)
    for number in range(10):
        bench.backlog.cancel(f"s{number}", 0.0)
    bench.add(job("s6", 0), job("s7", 0))
    assert bench.silent() == [("s7", 0)]
    assert bench.run() == [("s6", 0)]


def test_usage_and_finish_reason_are_passed_through() -> None:
    chunk = job("a", 4, last=True, reason="length").silence()
    assert dataclasses.asdict(chunk) | {"pcm": None, "usage": chunk.usage.tolist()} == {
        "pcm": None, "index": 4, "last": True, "finish_reason": "length", "usage": [1, 4],
    }  # fmt: skip
