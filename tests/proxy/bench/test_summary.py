"""Laws of the run and of its figures."""

from __future__ import annotations

import asyncio

import pytest

from proxy.bench.listening import Heard, Listener
from proxy.bench.load import Run, Sound, run
from proxy.bench.outcome import Failure, Outcome, by_status
from proxy.bench.plan import Request, plan
from proxy.bench.summary import percentile, summarise
from proxy.bench.targets import Stopwatch


def outcome(total_s: float, *, failure: Failure | None = None, measured: bool = True, **heard: float) -> Outcome:
    return Outcome(
        number=0, measured=measured, due_s=10.0, lag_s=0.5, total_s=total_s, failure=failure, detail="",
        heard=Heard(first_byte_s=0.1, playable_s=0.2, audio_s=2.0, **heard),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("count", "percent", "rank"), [(1, 50, 1), (2, 50, 1), (3, 50, 2), (20, 95, 19), (100, 99, 99), (101, 99, 100)]
)
def test_percentiles_are_nearest_rank(count: int, percent: float, rank: int) -> None:
    assert percentile([float(value) for value in range(count, 0, -1)], percent) == rank


def test_only_measured_requests_that_succeeded_have_latencies_but_all_measured_have_underruns() -> None:
    outcomes = [
        outcome(1.0, audible_s=0.3, onset_s=0.0),
        outcome(1.0, audible_s=0.3, onset_s=0.0, underruns=2, stalled_s=0.25),
        outcome(9.0, failure=Failure.BROKEN, underruns=1, stalled_s=0.5),
        outcome(9.0, measured=False, underruns=5, stalled_s=5.0),
        outcome(1.0),
    ]
    level = summarise(4, Run(outcomes, in_flight_peak=3))
    assert (level.requests, level.succeeded, level.silent, level.failures) == (4, 3, 1, {"broken": 1})
    assert (level.underruns, level.underrun_requests, level.stalled_ms) == (3, 2, 750.0)
    assert level.end_to_end_ms is not None
    assert level.end_to_end_ms.p99 == 1000.0
    assert level.real_time_factor is not None
    assert level.real_time_factor.p50 == 0.5
    assert level.audio_s == 6.0
    assert level.audio_per_second == pytest.approx(6 / 9.5, abs=1e-3)


def test_where_nothing_succeeded_there_are_no_latencies() -> None:
    level = summarise(4, Run([outcome(1.0, failure=Failure.TIMEOUT)], in_flight_peak=1))
    assert (level.audible_ms, level.end_to_end_ms, level.gap_ms, level.audio_per_second) == (None, None, None, 0.0)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "overloaded"), (503, "not_ready"), (500, "server_error"), (504, "server_error"), (400, "refused"),
     (302, "refused")],
)  # fmt: skip
def test_a_status_means_one_kind_of_failure(status: int, kind: str) -> None:
    assert by_status(status) == kind


class Held:
    """A target that answers nobody until all have asked."""

    name = "held"

    def __init__(self, expected: int) -> None:
        self.asked = 0
        self._expected = expected
        self._all = asyncio.Event()

    async def speak(self, request: Request, watch: Stopwatch, listener: Listener) -> None:
        watch.start()
        self.asked += 1
        if self.asked == self._expected:
            self._all.set()
        await self._all.wait()
        listener.feed(bytes(4800), watch.elapsed_s)

    async def close(self) -> None:
        pass


async def test_requests_are_sent_without_waiting_for_those_before() -> None:
    requests = plan(["Hello."], 200, 0.1, 0.2, 1)
    target = Held(len(requests))
    heard: list[Outcome] = []
    seen = await run(target, requests, Sound(24_000, wav=False), 30, heard.append)
    assert seen.in_flight_peak == len(requests) > 30
    assert [one.number for one in seen.outcomes] == [one.number for one in requests]
    assert len(heard) == len(requests)
    assert all(one.failure is None and one.lag_s >= 0 for one in seen.outcomes)
