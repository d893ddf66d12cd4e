"""How streams become launches, with a kernel that only writes down what it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_lib.talker import kernel_runner
from engine_lib.talker.frame_kernel import FED_BACK, FIRST_FRAME, MAY_END, MOST_COLUMNS, SUB_GREEDY, KernelFailed
from engine_lib.talker.kernel_runner import MOST_AHEAD, KernelRunner
from engine_lib.talker.scheduler import Batch
from engine_lib.talker.stream import Stream
from tests.engine_lib.talker.streams import PAD, prompted


@dataclass
class Made:
    codes: Any
    failed: bool

    def wait(self) -> Any:
        if self.failed:
            raise KernelFailed
        return self.codes


class Notebook:
    """Stands in for FrameKernel: a row's codes are its slot and its frame's number."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device = torch.device("cpu")
        self.keys, self.values = (torch.zeros(2, 65, 1, 256, 1) for _ in range(2))
        self.fails = False
        self.launches: list[tuple[Any, Any]] = []

    def launch(self, columns: Any, rows: Any) -> Made:
        self.launches.append((columns.copy(), rows.copy()))
        codes = np.zeros((len(rows), 16), np.int32)
        codes[:, 0], codes[:, 1] = columns["slot"][: len(rows)], rows["frame"]
        return Made(codes, self.fails)


def open_runner(monkeypatch: pytest.MonkeyPatch) -> KernelRunner:
    monkeypatch.setattr(kernel_runner, "FrameKernel", Notebook)
    monkeypatch.setattr(kernel_runner, "pack_talker", lambda talker, positions: None)

    class Talker:
        config = None

    return KernelRunner(Talker(), 64, 256, 100, cache=None)  # type: ignore[arg-type]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> KernelRunner:
    return open_runner(monkeypatch)


def step(runner: KernelRunner, streams: list[Stream]) -> list[Stream]:
    """One step of them all, and who sampled in it, each with codes of its own."""
    prefill, decode = [s for s in streams if s.in_prefill], [s for s in streams if not s.in_prefill]
    started = runner.start(Batch(prefill, decode))
    for one, codes in zip(started.streams, started.wait(), strict=True):
        assert codes[:2].tolist() == [one.slot, one.asked]
        one.asked += 1
    return started.streams


def notes(runner: KernelRunner) -> list[tuple[Any, Any]]:
    assert isinstance(runner.kernel, Notebook)
    return runner.kernel.launches


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_every_position_runs_once_in_order_and_finds_its_earlier_ones(lengths: list[int], chance: Any) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = open_runner(monkeypatch)
        coming = [prompted(slot, length) for slot, length in enumerate(lengths)]
        running: list[Stream] = []
        for _ in range(200):
            if coming:
                running += [coming.pop() for _ in range(min(len(coming), chance.randint(1, 9)))]
            step(made, running)
            if not coming and all(one.asked >= 2 for one in running):
                break
        else:
            raise AssertionError("a prompt starves")
        reached = dict.fromkeys(range(len(lengths)), 0)
        for columns, rows in notes(made):
            assert len(rows) <= len(columns) <= MOST_COLUMNS
            here = {(c["slot"], c["position"]): number for number, c in enumerate(columns)}
            for number, column in enumerate(columns):
                for position in range(column["first"], column["position"]):
                    assert here[column["slot"], position] == column["base"] + position - column["first"]
                assert here[column["slot"], column["position"]] == number
                if column["code"] != FED_BACK:
                    assert (column["text"], column["code"]) == (1000 + column["position"], 2100 + column["position"])
            for slot in set(columns["slot"].tolist()):
                own = sorted(columns["position"][columns["slot"] == slot].tolist())
                assert own == list(range(reached[slot], reached[slot] + len(own)))
                assert set(columns["first"][columns["slot"] == slot].tolist()) == {reached[slot]}
                reached[slot] += len(own)


def test_a_prompt_that_fits_samples_beside_those_who_speak(runner: KernelRunner) -> None:
    speaking, new = [prompted(slot, 1) for slot in range(8)], prompted(20, 10)
    step(runner, speaking)
    notes(runner).clear()
    assert step(runner, [*speaking, new])[-1] is new
    ((columns, rows),) = notes(runner)
    assert (len(columns), len(rows)) == (18, 9)


def test_more_prompts_than_fit_pass_before_the_frames_of_the_same_step(runner: KernelRunner) -> None:
    new = [prompted(slot, 12) for slot in range(4)]
    assert step(runner, new) == new
    (ahead, none), (columns, sampling) = notes(runner)
    assert (len(none), len(sampling)) == (0, 4)
    assert len(ahead) + len(columns) == 48


@pytest.mark.parametrize("speaking", [1, 4, 31, 32])
@pytest.mark.parametrize("length", [1, 2, 10, 31, 32, 33, 64, 65, 96])
def test_a_new_stream_samples_in_the_step_that_takes_in_its_prompt(
    speaking: int, length: int, runner: KernelRunner
) -> None:
    old, new = [prompted(slot, 1) for slot in range(speaking)], prompted(40, length)
    step(runner, old)
    assert step(runner, [*old, new]) == [*old, new]


def test_a_prompt_of_too_many_launches_goes_on_in_the_next_step(runner: KernelRunner) -> None:
    old, new = prompted(0, 1), prompted(40, 250)
    step(runner, [old])
    for sampling in ([old], [old], [old, new]):
        notes(runner).clear()
        assert step(runner, [old, new]) == sampling
        assert sum(not len(rows) for _, rows in notes(runner)) <= MOST_AHEAD
    assert new.prefilled == 250


def test_a_prompt_finishes_even_when_all_rows_are_taken(runner: KernelRunner) -> None:
    speaking = [prompted(slot, 1) for slot in range(32)]
    step(runner, speaking)
    new = prompted(40, 10)
    assert new in step(runner, [*speaking, new])


def test_rules_text_and_flags_are_the_streams_own(runner: KernelRunner) -> None:
    one = prompted(3, 2, trailing=(71, 72))
    for _ in range(5):
        step(runner, [one])
    launches = notes(runner)
    assert [int(columns["text"][0]) for columns, _ in launches] == [1001, 71, 72, PAD, PAD]
    assert [int(columns["position"][0]) for columns, _ in launches] == [1, 2, 3, 4, 5]
    flags = [int(rows["flags"][0]) for _, rows in launches]
    assert [bool(flag & FIRST_FRAME) for flag in flags] == [True, False, False, False, False]
    assert [bool(flag & MAY_END) for flag in flags] == [False, False, True, True, True]  # text out, and two samples
    assert all(flag & SUB_GREEDY for flag in flags)
    rule = launches[-1][1][0]
    assert rule["seed"] == 2**63 + 3
    assert (rule["inverse_temperature"], rule["top_k"]) == (2.0, 2**31 - 1)
    assert rule["top_p"] == pytest.approx(0.8)
    assert rule["penalty"] == pytest.approx(1.1)


def test_what_one_prompt_left_another_need_not_run_until_a_launch_failed(runner: KernelRunner) -> None:
    def columns_of(slot: int) -> list[int]:
        notes(runner).clear()
        step(runner, [prompted(slot, 40, before_text=30)])
        return [int(position) for columns, _ in notes(runner) for position in columns["position"]]

    assert sorted(columns_of(0)) == list(range(40))
    assert sorted(columns_of(1)) == list(range(30, 40))
    runner.kernel.fails = True  # type: ignore[attr-defined]
    with pytest.raises(KernelFailed):
        columns_of(2)
    runner.kernel.fails = False  # type: ignore[attr-defined]
    assert sorted(columns_of(3)) == list(range(40))
    assert sorted(columns_of(4)) == list(range(30, 40))
