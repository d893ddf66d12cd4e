"""How the fast path packs streams into launches, without a device."""

from __future__ import annotations

import random

import numpy as np
import pytest

from engine_lib.talker.frame_kernel import MOST_COLUMNS, ROW
from engine_lib.talker.kernel_runner import MOST_AHEAD, KernelRunner
from engine_lib.talker.scheduler import Batch
from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import Prompt

RULES = Sampling(1.0, 0, 1.0, 1.0, 1.0, 0, 1.0)
SLOT, POSITION, FIRST, BASE = 1, 2, 3, 4  # of a column


class Packer(KernelRunner):
    """The packing alone."""

    def __init__(self) -> None:
        self._rules = np.zeros(256, ROW)
        self._voices = {}


def stream(slot: int, positions: int, *, speaks: bool = False) -> Stream:
    made = Stream(
        str(slot),
        Prompt((1,) * positions, (1,) * positions, (), 1),
        sampling=RULES,
        seed=0,
        limit=100,
        chunk_schedule=(1,),
        hurry_lead_s=0.0,
        eos_id=99,
        pad_id=98,
        ignore_eos=False,
        mask_eos=False,
        deliver=lambda event: None,
    )
    made.slot = slot
    if speaks:
        made.prefilled, made.asked = positions, 3
    return made


def run(packer: Packer, batch: Batch) -> list[Stream]:
    """Pack one step and check the laws of a launch; the streams that sample."""
    before = {new.slot: new.prefilled for new in batch.prefill}
    plans = packer._plans(batch)
    seen: dict[int, list[int]] = {slot: list(range(done)) for slot, done in before.items()}
    for plan in plans:
        assert 0 < len(plan.own) + len(plan.earlier) <= MOST_COLUMNS
        assert len(plan.own) == len(plan.sampling)
        columns = plan.earlier + plan.own
        for place, column in enumerate(plan.earlier):
            # The kernel finds a prompt's other positions of this launch by these two.
            assert plan.earlier[column[BASE]][SLOT] == column[SLOT]
            assert place - column[BASE] == column[POSITION] - column[FIRST]
        for column in columns:
            if column[SLOT] in seen:
                seen[column[SLOT]].append(column[POSITION])
    for new in batch.prefill:
        assert seen[new.slot] == list(range(new.prefilled)), "each position once, in order"
    assert sum(not plan.own for plan in plans) <= MOST_AHEAD
    return [one for plan in plans for one in plan.sampling]


@pytest.mark.parametrize("speaking", [0, 1, 4, 31, 32])
@pytest.mark.parametrize("positions", [1, 2, 10, 31, 32, 33, 40, 64, 65, 96])
def test_a_new_stream_makes_its_first_frame_in_the_step_that_takes_in_its_prompt(speaking: int, positions: int) -> None:
    old = [stream(slot, 5, speaks=True) for slot in range(speaking)]
    new = stream(100, positions)
    assert run(Packer(), Batch([new], old)) == [*old, new]
    assert not new.in_prefill


def test_a_prompt_that_takes_too_many_launches_goes_on_in_the_next_step() -> None:
    packer, old, new = Packer(), [stream(0, 5, speaks=True)], stream(100, 250)
    assert run(packer, Batch([new], old)) == old
    assert new.prefilled == MOST_AHEAD * MOST_COLUMNS
    assert run(packer, Batch([new], old)) == old
    assert run(packer, Batch([new], old)) == [*old, new]


@pytest.mark.parametrize("seed", range(30))
def test_any_streams_are_packed_in_order_and_each_gets_there(seed: int) -> None:
    rng, packer = random.Random(seed), Packer()
    old = [stream(slot, 5, speaks=True) for slot in range(rng.randrange(65))]
    new = [stream(100 + slot, rng.randrange(1, 200)) for slot in range(rng.randrange(1, 40))]
    for _ in range(100):
        waiting = [one for one in new if one.in_prefill]
        if not waiting:
            return
        sampled = run(packer, Batch(waiting, old))
        assert set(sampled) == {*old, *(one for one in waiting if not one.in_prefill)}
        assert len(sampled) == len(set(sampled))
    pytest.fail("some prompt never got through")
