"""The codec's kernels on a Hopper GPU: each against its plain twin, and all together against the plain decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.kernels.launch import Module, convolution, shape_of
from engine_lib.codec.kernels.program import Attend, Carry, Convolve, Embed, Sound, Step
from engine_lib.codec.kernels.runner import KernelRunner
from engine_lib.codec.kernels.tiles import tiles
from engine_lib.codec.kernels.weights import weights_of
from engine_lib.codec.model import Decoder
from engine_lib.codec.path import DTYPES, load_kernels
from engine_lib.codec.runner import Runner
from engine_lib.wire import SAMPLES_PER_FRAME
from tests.engine_lib.codec.plain_steps import PlainSteps
from tests.engine_lib.codec.random_decoder import SMALL, TRUE, random_decoder

pytestmark = pytest.mark.gpu

NUMBERS = ["float16", "bfloat16"]
# Of one kernel against float32 on the same inputs: sums are float32, only results are rounded.
ROUNDING = {"float16": 1e-3, "bfloat16": 6e-3}
# Of all kernels together, random weights of the released sizes; docs/benchmarks/codec.md states what was measured.
ERROR = {"float16": 4e-3, "bfloat16": 3e-2}
SLOTS = 40


@pytest.fixture(scope="module")
def module() -> Callable[[str], Module]:
    known: dict[str, Module] = {}

    def load(number: str) -> Module:
        if number not in known:
            known[number] = load_kernels(number)
        return known[number]

    return load


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return random_decoder(TRUE, device="cuda")


@pytest.fixture(scope="module", params=NUMBERS)
def runner(request: pytest.FixtureRequest, decoder: Decoder, module: Callable[[str], Module]) -> KernelRunner:
    return KernelRunner(weights_of(decoder, DTYPES[request.param]), module(request.param), SLOTS, 32)


def utterance(seed: int, frames: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, TRUE.codebook_size, (frames, 16))


def play(runner: KernelRunner, plan: Sequence[int], slots: Sequence[int], seeds: Sequence[int]) -> list[np.ndarray]:
    """Samples of streams in `slots`, decoded together in chunks of `plan`."""
    for slot in slots:
        runner.reset(slot)
    codes, done = [utterance(seed, sum(plan)) for seed in seeds], 0
    pieces: list[list[np.ndarray]] = [[] for _ in slots]
    for frames in plan:
        decoded = runner.decode(slots, [row[done : done + frames] for row in codes])
        done += frames
        for row, samples in zip(pieces, decoded, strict=True):
            row.append(samples)
    return [np.concatenate(row) for row in pieces]


def written(step: Step, ring: Tensor) -> dict[str, Tensor]:
    """Every tensor that a step writes."""
    match step:
        case Embed():
            return {"output": step.output, "state": step.state.numbers}
        case Convolve():
            named = {"output": step.output, "raw": step.raw, "wide": step.wide}
            state = {"state": step.output_state.numbers} if step.output_state else {}
            return {name: tensor for name, tensor in named.items() if tensor is not None} | state
        case Attend():
            return {"output": step.output, "ring": ring}
        case Carry():
            return {f"state {number}": state.numbers for number, (state, _) in enumerate(step.states)}
        case Sound():
            return {}
        case _:
            return {"output": step.output}


def distance(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm().clamp(min=1e-20))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    ("config", "lengths", "start"),
    [
        (SMALL, [2, 1], 0), (SMALL, [3, 2, 3], 5), (TRUE, [1], 0), (TRUE, [4, 3], 2), (TRUE, [12, 11], 80),
        (TRUE, [25], 70),
    ],
    ids=str,
)  # fmt: skip
def test_each_kernel_equals_its_plain_twin(
    number: str, config: DecoderConfig, lengths: list[int], start: int, module: Callable[[str], Module]
) -> None:
    """On the same inputs; what a kernel writes is poisoned before, padding is poison throughout."""
    weights = weights_of(random_decoder(config, device="cuda"), DTYPES[number])
    runner = KernelRunner(weights, module(number), 8, len(lengths), record=False)
    draw, slots = np.random.default_rng(1), list(range(len(lengths)))
    for done in range(0, start, 20):
        frames = min(20, start - done)
        runner.decode_float(slots, [draw.integers(0, config.codebook_size, (frames, 16)) for _ in slots])
    rows = [(slot, start, length, int(runner._halves[slot])) for slot, length in zip(slots, lengths, strict=True)]
    codes = [draw.integers(0, config.codebook_size, (length, 16)) for length in lengths]
    _, count, frames = runner._upload(slots, codes)
    rows += [(8, 0, 0, 0)] * (count - len(rows))
    call = runner.call(count, frames, torch.zeros(count * frames * SAMPLES_PER_FRAME, device="cuda"))
    assert call.wave is not None
    plain = PlainSteps(weights, runner._memory, rows, frames, call.codes.long())
    for step, launch in zip(runner.steps(count, frames), runner.launches(count, frames, call.wave), strict=True):
        places = written(step, runner._memory.ring)
        before = {name: tensor.clone() for name, tensor in places.items()}
        plain.one(step)
        wanted = {name: tensor.clone() for name, tensor in places.items()}
        for name, tensor in places.items():
            tensor.copy_(before[name])
            if name == "output":
                tensor.fill_(torch.nan)
        runner._module.start(launch)
        for name, tensor in places.items():
            if name.startswith(("state", "ring")):
                assert distance(tensor, wanted[name]) < ROUNDING[number], (launch, name)
                continue
            columns = tensor.shape[1] // count
            for row, length in enumerate(lengths):
                valid = slice(row * columns, row * columns + length * columns // frames)
                assert distance(tensor[:, valid], wanted[name][:, valid]) < ROUNDING[number], (launch, name)
    for row, length in enumerate(lengths):
        valid = slice(length * SAMPLES_PER_FRAME)
        assert distance(call.wave.view(count, -1)[row, valid], plain.wave[row, valid]) < ROUNDING[number]


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (8, 4)])
def test_every_tile_gives_the_same_bits(rows: int, frames: int, runner: KernelRunner) -> None:
    slots = list(range(rows))
    play(runner, [3], slots, slots)
    runner._upload(slots, [utterance(seed, frames) for seed in slots])
    seen = set()
    for step, launch in zip(runner.steps(rows, frames), runner.launches(rows, frames), strict=True):
        if not isinstance(step, Convolve) or step.wide is not None or shape_of(step, rows, frames) in seen:
            runner._module.start(launch)
            continue
        seen.add(shape_of(step, rows, frames))
        assert step.output is not None
        before = step.raw.clone() if step.raw is not None else None
        results = []
        for tile in tiles(shape_of(step, rows, frames)):
            if step.raw is not None and before is not None:
                step.raw.copy_(before)  # what is added to is also what is written
            step.output.fill_(torch.nan)
            runner._module.start(convolution(step, runner.call(rows, frames), tile))
            results.append(step.output.clone())
        assert not results[0].isnan().any()
        assert all(torch.equal(result, results[0]) for result in results)
    assert len(seen) > 10


@pytest.mark.parametrize("plan", [[4] * 10, [1, 2, 4, 8, 12, 13], [25, 15], [3] * 13 + [1], [12, 12, 12, 4]], ids=str)
def test_any_chunks_give_the_same_samples_bit_for_bit(plan: list[int], runner: KernelRunner) -> None:
    (alone,) = play(runner, [1] * 40, [5], [0])
    (got,) = play(runner, plan, [7], [0])
    np.testing.assert_array_equal(got, alone)


@pytest.mark.parametrize("rows", [2, 3, 8, 31, 32])
def test_a_row_gives_the_same_samples_beside_any_neighbours_bit_for_bit(rows: int, runner: KernelRunner) -> None:
    plan = [1, 2, 4, 8, 12]
    (alone,) = play(runner, plan, [5], [0])
    seeds = list(range(rows))
    got = play(runner, plan, list(range(rows, 0, -1)), seeds[1:] + seeds[:1])
    np.testing.assert_array_equal(got[-1], alone)


def test_rows_of_any_position_and_length_equal_their_solo_decode(runner: KernelRunner) -> None:
    """Streams come and go at random, 300 calls: who is in a batch, in which order, with how many frames."""
    draw = np.random.default_rng(0)
    solo = [play(runner, [25, 25, 25, 25, 20], [0], [seed])[0] for seed in range(12)]
    done, slots = [0] * 12, draw.permutation(SLOTS)[:12].tolist()
    for slot in slots:
        runner.reset(slot)
    for _ in range(300):
        going = [row for row in draw.permutation(12).tolist() if draw.random() < 0.6]
        for row in going:
            if done[row] == 120:
                done[row] = 0
                runner.reset(slots[row])
        takes = [utterance(row, 120)[done[row] : done[row] + int(draw.integers(1, 14))] for row in going]
        for row, samples, take in zip(going, runner.decode([slots[row] for row in going], takes), takes, strict=True):
            begin, end = done[row] * SAMPLES_PER_FRAME, (done[row] + len(take)) * SAMPLES_PER_FRAME
            np.testing.assert_array_equal(samples, solo[row][begin:end])
            done[row] += len(take)


def test_the_error_against_float32_is_as_documented(runner: KernelRunner, decoder: Decoder) -> None:
    number = str(runner._weights.dtype).removeprefix("torch.")
    plain = Runner(decoder, 4)
    for seed in (0, 1):
        plain.reset(0)
        want = plain.decode_float([0], [utterance(seed, 40)])[0]
        got = play(runner, [1, 2, 4, 8, 12, 13], [3], [seed])[0] / 32767
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < ERROR[number]


def test_calls_begun_before_others_are_awaited_give_the_same_samples(runner: KernelRunner) -> None:
    codes = [utterance(seed, 24) for seed in range(3)]
    want = [play(runner, [4] * 6, [seed], [seed])[0] for seed in range(3)]
    for slot in range(3):
        runner.reset(slot)
    calls = [runner.begin([slot], [codes[slot][at : at + 4]]) for at in range(0, 24, 4) for slot in range(3)]
    got = [call.wait()[0] for call in calls]
    for slot in range(3):
        np.testing.assert_array_equal(np.concatenate(got[slot::3]), want[slot])


def test_a_reset_slot_remembers_nothing(runner: KernelRunner) -> None:
    (fresh,) = play(runner, [1, 2], [4], [0])
    for numbers in runner._memory.of_slot(4):
        numbers.fill_(torch.nan)
    np.testing.assert_array_equal(play(runner, [1, 2], [4], [0])[0], fresh)


def test_a_primed_stream_goes_on_as_if_its_sample_had_been_decoded(runner: KernelRunner) -> None:
    codes = utterance(0, 60)
    whole = play(runner, [20, 20, 20], [4], [0])[0][30 * SAMPLES_PER_FRAME :]
    for slot in (6, 9):  # the second time it's known
        runner.prime(slot, codes[:30])
        got = np.concatenate([runner.decode([slot], [codes[at : at + 10]])[0] for at in (30, 40, 50)])
        np.testing.assert_array_equal(got, whole)


def test_no_frames_give_no_samples(runner: KernelRunner) -> None:
    assert runner.decode([], []) == []
    (nothing,) = runner.decode([0], [utterance(0, 0)])
    assert nothing.dtype == np.int16
    assert nothing.shape == (0,)
