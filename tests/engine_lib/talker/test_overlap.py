"""The loop on a device that runs one step while the codes of the one before are handled."""

from __future__ import annotations

import time

import numpy as np
import pytest

from engine_lib.talker import engine
from engine_lib.talker.runner import Runner
from engine_lib.talker.scheduler import Batch
from engine_lib.talker.step import Step
from tests.engine_lib.talker.test_engine import TEXTS, mixed_requests


class Overlapping(Runner):
    """The plain path, whose steps may be started ahead. Writes down how many were under way at most."""

    most = 0
    under_way = 0
    took_s: float | None = None  # what a step claims to have taken on the device

    def __init__(self, *sizes) -> None:
        super().__init__(*sizes)
        self.batches: list[Batch] = []

    def start(self, batch: Batch) -> Step:
        self.overlaps = False  # the copy to the host is the CPU's
        step = super().start(batch)
        self.overlaps = True
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.batches.append(batch)
        took = self.took_s

        def wait():
            self.under_way -= 1
            return step.wait()

        return Step(step.streams, wait, "any", None if took is None else lambda: took)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, open_studio):
    """A studio of each kind: plain, and with steps that overlap."""
    plain = open_studio()
    made: list[Overlapping] = []

    def overlapping(talker, profile) -> Overlapping:
        made.append(Overlapping(talker, profile.max_active, profile.slot_positions, 8))
        made[-1].overlaps = True
        return made[-1]

    monkeypatch.setattr(engine, "choose_path", overlapping)
    return plain, open_studio(), made


def test_codes_limits_and_ends_are_the_same(opened) -> None:
    plain, ahead, (steps,) = opened
    asked = mixed_requests(12)
    together = [ahead.start(text, **options) for text, options in asked]
    for listener, (text, options) in zip(together, asked, strict=True):
        heard, wanted = listener.all(), plain.speak(text, **options)
        np.testing.assert_array_equal(heard.codes, wanted.codes)
        assert (heard.reason, heard.chunks[-1].frames) == (wanted.reason, wanted.chunks[-1].frames)
    assert steps.most == 2


def test_a_stream_that_leaves_midway_disturbs_nobody(opened) -> None:
    plain, ahead, _ = opened
    wanted = plain.speak(TEXTS[0], seed=4, max_new_tokens=60, ignore_eos=True).codes
    leaving = [ahead.start(TEXTS[1], f"leaving-{n}", ignore_eos=True, stream_chunk_schedule=[1]) for n in range(3)]
    staying = ahead.start(TEXTS[0], seed=4, max_new_tokens=60, ignore_eos=True)
    for number, listener in enumerate(leaving):
        listener.next()
        ahead.cancel(f"leaving-{number}")
    np.testing.assert_array_equal(staying.all().codes, wanted)
    np.testing.assert_array_equal(  # in a slot that one of them left while a step of its was under way
        ahead.speak(TEXTS[0], seed=4, max_new_tokens=60, ignore_eos=True).codes, wanted
    )
    assert ahead.engine.active == 0


def test_a_step_that_fails_while_the_next_is_under_way_ends_its_streams_alone(opened, monkeypatch) -> None:
    plain, ahead, _ = opened
    wanted = plain.speak(TEXTS[0], seed=9, max_new_tokens=20).codes
    start = Overlapping.start

    def breaks_on_bad(self, batch: Batch) -> Step:
        step = start(self, batch)
        if not any(stream.id == "bad" for stream in batch.decode):
            return step

        def wait():
            step.wait()
            raise RuntimeError("broken on purpose")

        return Step(step.streams, wait)

    monkeypatch.setattr(Overlapping, "start", breaks_on_bad)
    assert ahead.start(TEXTS[0], "bad").all().reason == "failed"
    np.testing.assert_array_equal(ahead.speak(TEXTS[0], seed=9, max_new_tokens=20).codes, wanted)
    assert ahead.engine.metrics.failed_steps >= 1


def test_who_arrives_while_a_step_is_under_way_joins_the_next_one(opened) -> None:
    plain, ahead, (steps,) = opened
    steps.took_s = 3.0  # so the loop waits for so long before it starts the next one
    speaking = ahead.start(TEXTS[0], "speaking", seed=4, max_new_tokens=20, ignore_eos=True)
    while len(steps.batches) < 3:  # the first step's time is known when the second has been started
        time.sleep(0.001)
    arriving = ahead.start(TEXTS[1], "arriving", seed=5, max_new_tokens=20, ignore_eos=True)
    while len(steps.batches) < 4:
        time.sleep(0.001)
    steps.took_s = 0.0
    assert [stream.id for stream in (*steps.batches[3].prefill, *steps.batches[3].decode)] == ["arriving", "speaking"]
    for listener, text, seed in ((speaking, TEXTS[0], 4), (arriving, TEXTS[1], 5)):
        wanted = plain.speak(text, seed=seed, max_new_tokens=20, ignore_eos=True).codes
        np.testing.assert_array_equal(listener.all().codes, wanted)
