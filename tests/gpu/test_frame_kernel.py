"""The frame kernel against plain torch on a Hopper GPU, at the published sizes with random weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from engine_lib import bench, random_model
from engine_lib.layers import fold
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.frame_kernel import (
    COLUMN,
    FED_BACK,
    FIRST_FRAME,
    GREEDY,
    MAY_END,
    ROW,
    SUB_GREEDY,
    FrameKernel,
)
from engine_lib.talker.frame_weights import pack_talker
from engine_lib.talker.kernel_runner import KernelRunner
from engine_lib.talker.model import Talker
from engine_lib.talker.random_numbers import uniforms
from engine_lib.talker.sampler import NEVER, Rules, choose, penalise, scores

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda:0")
SLOTS, POSITIONS = 33, 1280


@pytest.fixture(scope="module", params=["1.7B", "0.6B"])
def talker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Talker:
    """Eight layers suffice to be wrong in. Norms differ by channel, and some channels are outliers."""
    directory = tmp_path_factory.mktemp("config")
    written = random_model.talker_config(request.param)
    written["talker_config"]["num_hidden_layers"] = 8
    (directory / "config.json").write_text(json.dumps(written), encoding="utf-8")
    made = random_model.talker(TalkerConfig.from_directory(directory), CUDA)
    generator = torch.Generator(CUDA).manual_seed(1)
    for name, weight in made.named_parameters():
        if name.endswith("norm.weight"):
            weight.data.copy_(1 + 0.1 * torch.randn(weight.shape, generator=generator, device=CUDA))
            if len(weight) > 128:
                weight.data[::97] *= 8
    fold(made)
    return made


@pytest.fixture(scope="module")
def kernel(talker: Talker) -> Iterator[FrameKernel]:
    yield FrameKernel(talker.config, pack_talker(talker, POSITIONS), SLOTS, POSITIONS)
    torch.cuda.empty_cache()


def poison(kernel: FrameKernel) -> None:
    """Nothing may be read that wasn't written."""
    kernel.keys.fill_(torch.nan)
    kernel.values.fill_(torch.nan)


def logits(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((rows, 3072), torch.nan, device=CUDA), torch.full((15, rows, 2048), torch.nan, device=CUDA)


def rules(count: int, frame: int = 0, seed: int = 0) -> Any:
    row = (0, frame, 0, 1 / 0.9, 1.0, 1.05, 50, 1 / 0.9, 1.0, 50, 0)
    made = np.array([row] * count, ROW)
    made["seed"] = np.uint64(seed) + np.arange(count, dtype=np.uint64)
    return made


def decoding(positions: list[int], slots: list[int] | None = None) -> Any:
    return np.array(
        [
            (0, slot, at, at, 0, slot, FED_BACK, 0, 0)
            for slot, at in zip(slots or range(len(positions)), positions, strict=True)
        ],
        COLUMN,
    )


def test_logits_are_nearer_to_float32_than_those_of_torch_in_bf16(talker: Talker, kernel: FrameKernel) -> None:
    poison(kernel)
    error = bench.errors(talker, kernel)
    assert error["kernel talker"] <= 1.2 * error["torch talker"]
    assert error["kernel predictor"] <= 1.2 * error["torch predictor"]


@pytest.mark.parametrize("position", [1, 2, 127, 128, 255, 256, 257, 900, 1023])
def test_any_context_is_attended_whole(position: int, talker: Talker, kernel: FrameKernel) -> None:
    poison(kernel)
    generator = torch.Generator(CUDA).manual_seed(position)
    past = torch.randn(2, *kernel.keys[:, 0, :, :position].shape, generator=generator, device=CUDA).bfloat16()
    kernel.keys[:, 5, :, :position], kernel.values[:, 5, :, :position] = past
    latest = torch.randint(0, 2048, (1, 16), generator=generator, device=CUDA)
    kernel.latest[5] = latest[0]
    ours = logits(1)
    codes = kernel.launch(decoding([position], [5]), rules(1, frame=3), ours).wait().copy()
    references = bench.Reference(copy.deepcopy(talker).float()), bench.Reference(talker)
    found = []
    for reference in references:
        reference.remember(past)
        found.append(reference.frame(latest, 5, position, torch.from_numpy(codes).to(CUDA, torch.long)))
    for ours_part, wanted, plain in zip(ours, *found, strict=True):
        assert bench.relative(ours_part, wanted) <= 1.2 * bench.relative(plain, wanted)


def test_every_row_samples_as_the_plain_sampler_by_its_own_rules(kernel: FrameKernel) -> None:
    count, chance = 32, np.random.default_rng(0)
    kernel.keys.normal_()
    kernel.values.normal_()
    kernel.latest.copy_(torch.randint(0, 2048, kernel.latest.shape, device=CUDA))
    seen = torch.rand(kernel.seen.shape, device=CUDA) < 0.1
    kernel.seen.copy_(seen)
    rows = rules(count, frame=11, seed=2**63)
    rows["top_k"] = chance.choice([1, 2, 5, 50, 200, 2048, 2**31 - 1], count)
    rows["top_p"] = chance.choice([0.1, 0.5, 0.9, 0.99, 1.0], count)
    rows["inverse_temperature"] = 1 / chance.choice([0.3, 0.7, 0.9, 1.5], count)
    rows["penalty"] = chance.choice([1.0, 1.05, 1.5], count)
    rows["sub_top_k"] = chance.choice([1, 5, 50, 200, 2**31 - 1], count)
    rows["sub_top_p"] = chance.choice([0.1, 0.5, 0.9, 1.0], count)
    rows["sub_inverse_temperature"] = 1 / chance.choice([0.3, 0.9, 1.5], count)
    rows["flags"][::2] |= MAY_END
    rows["flags"][::5] |= GREEDY | SUB_GREEDY
    rows["flags"][7] |= FIRST_FRAME
    made = logits(count)
    codes = kernel.launch(decoding([200 + slot for slot in range(count)]), rows, made).wait().copy()

    had = seen[:count].clone()
    had[7] = False
    first = penalise(made[0], had, torch.from_numpy(rows["penalty"]).to(CUDA))
    ids = torch.arange(3072, device=CUDA)
    first = first.masked_fill((ids >= 2048) & (ids != 2150), NEVER)
    first[torch.from_numpy((rows["flags"] & MAY_END) == 0).to(CUDA), 2150] = NEVER
    numbers = torch.from_numpy(uniforms(rows["seed"], rows["frame"].astype(np.int64))).to(CUDA)
    wanted = [choose(first, plain_rules(rows, ""), numbers[:, 0])]
    wanted += [choose(made[1][n - 1], plain_rules(rows, "sub_"), numbers[:, n]) for n in range(1, 16)]
    np.testing.assert_array_equal(codes, torch.stack(wanted, dim=1).cpu().numpy())
    had[torch.arange(count), torch.from_numpy(codes[:, 0]).long()] = True
    torch.testing.assert_close(kernel.seen[:count].bool(), had)


def plain_rules(rows: Any, prefix: str) -> Rules:
    greedy = (rows["flags"] & GREEDY) != 0
    inverses = rows[f"{prefix}inverse_temperature"]
    temperatures = [0.0 if fixed else float(1 / value) for fixed, value in zip(greedy, inverses, strict=True)]
    top_k = [0 if k == 2**31 - 1 else int(k) for k in rows[f"{prefix}top_k"]]
    return Rules.of(temperatures, top_k, [float(p) for p in rows[f"{prefix}top_p"]], CUDA)


def test_sampled_frequencies_are_those_of_the_distribution(kernel: FrameKernel) -> None:
    count, launches = 32, 400
    kernel.keys.normal_()
    kernel.values.normal_()
    kernel.keys[:, 1:count] = kernel.keys[:, :1]
    kernel.values[:, 1:count] = kernel.values[:, :1]
    made = logits(count)
    draws = []
    for number in range(launches):
        kernel.latest.zero_()
        kernel.seen.zero_()
        columns = decoding([100] * count)
        columns["text"] = 5
        draws.append(kernel.launch(columns, rules(count, seed=1000 * number), made).wait()[:, 0].copy())
    ids = torch.arange(3072, device=CUDA)
    alike = made[0][:1].masked_fill(ids >= 2048, NEVER)
    chances = scores(alike, plain_rules(rules(1), "")).softmax(dim=-1)[0].cpu().double().numpy()
    wanted, counted = chances * count * launches, np.bincount(np.concatenate(draws), minlength=3072)
    assert counted[chances == 0].sum() == 0
    often = wanted >= 5
    rare = wanted[~often].sum()
    wanted = np.append(wanted[often], rare)[: None if rare else -1]
    counted = np.append(counted[often], counted[~often].sum())[: len(wanted)]
    chi_square, freedom = ((counted - wanted) ** 2 / wanted).sum(), len(wanted) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_a_prompt_may_be_cut_anywhere(kernel: FrameKernel) -> None:
    length, chance = 300, np.random.default_rng(1)
    text, codec = chance.integers(0, 150000, length), chance.integers(2048, 3072, length)
    heard = []
    for width in (32, 8, 5, 31):
        poison(kernel)
        done = 0
        while length - done > width:
            part = range(done, done + width)
            columns = [(0, 0, at, done, 0, text[at], codec[at], 0, 0) for at in part]
            kernel.launch(np.array(columns, COLUMN), rules(0)).wait()
            done += width
        columns = [(0, 0, at, done, 1, text[at], codec[at], 0, 0) for at in (length - 1, *range(done, length - 1))]
        row = rules(1, seed=5)
        row["flags"] = FIRST_FRAME
        made = logits(1)
        codes = kernel.launch(np.array(columns, COLUMN), row, made).wait().copy()
        heard.append((codes.tolist(), made[0].tolist(), made[1].tolist()))
    assert all(one == heard[0] for one in heard)


def test_a_stream_sounds_the_same_alone_and_in_every_batch(talker: Talker) -> None:
    assert bench.is_batch_invariant(KernelRunner(talker, 64, POSITIONS, cache=None), [1, 7, 32, 64])


def test_delays_at_every_wait_and_write_change_nothing(talker: Talker, kernel: FrameKernel) -> None:
    """Millions of words travel; each is read right or the codes differ."""
    slow = FrameKernel(talker.config, pack_talker(talker, POSITIONS), SLOTS, POSITIONS, extra={"STRESS": 1})
    for count in (1, 8, 16, 32):
        heard = []
        for one in (kernel, slow):
            one.latest.zero_()
            one.seen.zero_()
            one.keys.fill_(0.5)
            one.values.fill_(0.5)
            frames = [
                one.launch(decoding([300 + at] * count), rules(count, frame=at)).wait().tolist() for at in range(40)
            ]
            heard.append(frames)
        assert heard[0] == heard[1]


def test_a_long_run_never_loses_touch(kernel: FrameKernel) -> None:
    for number in range(200_000 // 32):
        launched = kernel.launch(decoding([number % 1000 + 1] * 32), rules(32, frame=number))
        if number % 3 == 2:  # the host has places for some launches' codes, not for all
            launched.wait()
    launched.wait()
