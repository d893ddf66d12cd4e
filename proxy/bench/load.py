"""The run: each request is sent when it is due, whatever became of those before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.bench.listening import Listener, Malformed
from proxy.bench.outcome import Failed, Failure, Outcome
from proxy.bench.plan import Request
from proxy.bench.targets import Stopwatch, Target


@dataclass(frozen=True)
class Sound:
    """How the sound comes that was asked for."""

    sample_rate: int
    wav: bool


@dataclass(frozen=True)
class Run:
    """All that was seen at one rate."""

    outcomes: list[Outcome]  # in order of the plan, warm-up included
    in_flight_peak: int  # of all requests, while measured ones were sent


class _InFlight:
    """How many requests are on their way."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0


async def run(
    target: Target, requests: Sequence[Request], sound: Sound, limit_s: float, done: Callable[[Outcome], None]
) -> Run:
    """Send `requests` as they are due; each may take `limit_s`. `done` hears of each."""
    in_flight = _InFlight()
    begin = time.perf_counter()

    async def one(request: Request) -> Outcome:
        in_flight.now += 1
        if request.measured:
            in_flight.peak = max(in_flight.peak, in_flight.now)
        try:
            outcome = await _speak(target, request, begin + request.due_s, sound, limit_s)
        finally:
            in_flight.now -= 1
        done(outcome)
        return outcome

    async with asyncio.TaskGroup() as group:
        tasks = []
        for request in requests:
            await asyncio.sleep(begin + request.due_s - time.perf_counter())
            tasks.append(group.create_task(one(request)))
    return Run([task.result() for task in tasks], in_flight.peak)


async def _speak(target: Target, request: Request, due: float, sound: Sound, limit_s: float) -> Outcome:
    """`due` as time.perf_counter() tells."""
    watch, listener = Stopwatch(), Listener(sound.sample_rate, wav=sound.wav)
    failure, detail = None, ""
    try:
        async with asyncio.timeout(limit_s):
            await target.speak(request, watch, listener)
        if listener.finish().audio_s == 0:
            failure, detail = Failure.EMPTY, "no sound"
    except Failed as error:
        failure, detail = error.kind, error.detail
    except Malformed as error:
        failure, detail = Failure.MALFORMED, str(error)
    except TimeoutError:
        failure, detail = Failure.TIMEOUT, f"not through after {limit_s:g} s"
    watch.start()  # one that never came so far
    assert watch.zero is not None
    return Outcome(
        number=request.number,
        measured=request.measured,
        due_s=request.due_s,
        lag_s=watch.zero - due,
        total_s=watch.elapsed_s,
        heard=listener.heard,
        failure=failure,
        detail=detail,
    )
