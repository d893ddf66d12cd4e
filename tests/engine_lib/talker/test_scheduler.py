"""The policy by simulation: real streams and scheduler, a made-up clock, no model."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from engine_lib.profile import Profile, load_profile
from engine_lib.talker.scheduler import PATIENCE, Scheduler
from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import Prompt

EOS, PAD = 99, 98
FRAME_S = 0.08
RULES = Sampling(1.0, 0, 1.0, 1.0, 1.0, 0, 1.0)
PROMPT = Prompt((1,) * 10, (1,) * 10, (), 3)


class Listener:
    """Plays one stream from its first chunk on, and counts how often it runs out of sound."""

    def __init__(self, name: str, frames: int, schedule: tuple[int, ...]) -> None:
        self.stream = Stream(
            name,
            PROMPT,
            sampling=RULES,
            seed=0,
            limit=frames + 1,
            chunk_schedule=schedule,
            hurry_lead_s=0.2,
            eos_id=EOS,
            pad_id=PAD,
            ignore_eos=False,
            mask_eos=False,
            deliver=lambda event: None,
        )
        self.begun: float | None = None
        self.frames = 0
        self.underruns = 0

    def hear(self, now: float) -> None:
        chunk = self.stream.take_chunk(now)
        if chunk is None:
            return
        if self.begun is None:
            self.begun = now
        elif len(chunk.codes) and now > self.begun + self.frames * FRAME_S:
            self.underruns += 1
        self.frames += len(chunk.codes)


def simulate(profile: Profile, listeners: list[Listener], step_s: float, arrivals: list[float]) -> float:
    """Serve all to their ends, each step taking `step_s`; when it's over."""
    scheduler, now = Scheduler(profile), 0.0
    coming = sorted(zip(arrivals, listeners, strict=True), key=lambda pair: pair[0])
    running: dict[str, Listener] = {}
    while coming or running:
        while coming and coming[0][0] <= now:
            _, listener = coming.pop(0)
            scheduler.add(listener.stream, now)
            running[listener.stream.id] = listener
        batch = scheduler.next(now)
        if batch is None:
            now = coming[0][0]
            continue
        now += step_s
        for stream in batch.prefill:
            stream.prefilled = len(stream.prompt)
        for stream in [*batch.decode, *batch.prefill]:
            stream.accept(np.zeros(16, np.int32))
            running[stream.id].hear(now)
            if stream.finish_reason:
                scheduler.remove(stream)
                del running[stream.id]
    assert scheduler.active == scheduler.waiting == 0
    return now


@pytest.mark.parametrize("name", ["ttfa", "balanced", "throughput"])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_runs_dry_while_capacity_suffices(name: str, seed: int) -> None:
    dice = random.Random(seed)
    profile = dataclasses.replace(load_profile(name), rows_per_step=8, max_active=24)
    # 24 streams over 8 rows: a frame each every third step, 60 ms, where a listener needs one every 80 ms.
    listeners = [Listener(str(n), dice.randint(20, 150), profile.chunk_schedule) for n in range(24)]
    simulate(profile, listeners, 0.02, [dice.uniform(0, 3) for _ in listeners])
    assert [listener.underruns for listener in listeners] == [0] * 24


@pytest.mark.parametrize("name", ["ttfa", "balanced"])
def test_nobody_starves_under_overload(name: str) -> None:
    profile = dataclasses.replace(load_profile(name), rows_per_step=4, max_active=40)
    listeners = [Listener(str(n), 60, profile.chunk_schedule) for n in range(40)]
    over = simulate(profile, listeners, 0.05, [0.001 * n for n in range(40)])
    for listener in listeners:
        assert listener.begun is not None
        assert listener.begun < over / 2
        assert listener.frames == 60


def test_new_streams_are_heard_sooner_by_deadline_than_in_turns() -> None:
    def mean_wait(scheduling: str) -> float:
        profile = dataclasses.replace(
            load_profile("ttfa"), rows_per_step=8, max_active=30, scheduling=scheduling, chunk_schedule=(4,)
        )
        old = [Listener(f"old-{n}", 200, (4,)) for n in range(22)]
        new = [Listener(f"new-{n}", 10, (4,)) for n in range(4)]
        simulate(profile, [*old, *new], 0.02, [0.0] * 22 + [5.0] * 4)
        assert not any(listener.underruns for listener in [*old, *new])
        return sum(listener.begun or 0 for listener in new) / 4 - 5.0

    assert mean_wait("deadline") < mean_wait("round_robin")


def test_a_stream_that_is_about_to_run_dry_goes_first() -> None:
    profile = dataclasses.replace(load_profile("ttfa"), rows_per_step=1, max_active=3)
    scheduler = Scheduler(profile)
    dry, ahead, fresh = (Listener(name, 100, (1,)).stream for name in ("dry", "ahead", "fresh"))
    for stream, frames in ((ahead, 30), (fresh, 0), (dry, 1)):
        scheduler.add(stream, 0.0)
        stream.prefilled = len(PROMPT)
        for _ in range(frames):
            stream.accept(np.zeros(16, np.int32))
            stream.take_chunk(0.0)
    order = []
    for _ in range(3):
        batch = scheduler.next(0.05)
        assert batch
        order.append(batch.decode[0].id)
        scheduler.remove(batch.decode[0])
    assert order == ["dry", "fresh", "ahead"]


def test_the_order_of_ties_follows_arrival_not_names() -> None:
    for names in (["a", "b", "c", "d"], ["d", "c", "b", "a"]):
        scheduler = Scheduler(dataclasses.replace(load_profile("ttfa"), rows_per_step=2, max_active=4))
        for name in names:
            stream = Listener(name, 10, (1,)).stream
            stream.prefilled = len(PROMPT)
            scheduler.add(stream, 0.0)
        batch = scheduler.next(0.0)
        assert batch
        assert [stream.id for stream in batch.decode] == names[:2]


def test_whoever_was_passed_over_too_often_goes_first() -> None:
    scheduler = Scheduler(dataclasses.replace(load_profile("ttfa"), rows_per_step=1, max_active=2))
    urgent, patient = Listener("urgent", 1000, (1,)).stream, Listener("patient", 1000, (1,)).stream
    for stream in (urgent, patient):
        scheduler.add(stream, 0.0)
        stream.prefilled = len(PROMPT)
    urgent.accept(np.zeros(16, np.int32))
    urgent.take_chunk(0.0)
    chosen = []
    for _ in range(PATIENCE + 2):
        batch = scheduler.next(1.0)
        assert batch
        chosen.append(batch.decode[0].id)
    assert chosen == ["urgent"] * (PATIENCE + 1) + ["patient"]
