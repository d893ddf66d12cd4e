from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_lib.codec.kernels.program import Memory, Program, Workspace
from engine_lib.codec.kernels.weights import weights_of
from engine_lib.codec.model import Decoder
from engine_lib.codec.runner import Runner
from tests.engine_lib.codec.plain_steps import PlainSteps
from tests.engine_lib.codec.random_decoder import SMALL, random_decoder

SLOTS = 4


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return random_decoder(SMALL)


@pytest.mark.parametrize("chunks", [[3], [1, 1, 1, 2], [2, 5, 1]])
def test_the_kernels_steps_in_float32_equal_the_plain_decoder(decoder: Decoder, chunks: list[int]) -> None:
    """Folding, packing, state halves and order of the steps; two streams of different lengths, and an idle row."""
    device = torch.device("cpu")
    codes = np.random.default_rng(0).integers(0, SMALL.codebook_size, (2, sum(chunks), 16))
    plain = Runner(decoder, SLOTS)
    want = [plain.decode_float([slot], [codes[slot]])[0] for slot in (0, 1)]
    weights = weights_of(decoder, torch.float32)
    memory, space = Memory(weights, SLOTS, device), Workspace(weights, 3 * (max(chunks) + 1), device)
    for state in memory.states():
        state.numbers.fill_(torch.nan)  # what a new stream must not see
    program = Program(weights, memory, space)
    got: list[list[torch.Tensor]] = [[], []]
    done, half = [0, 0], [0, 0]
    slots = [2, 0]
    for chunk in chunks:
        lengths = [chunk, max(1, chunk - 1)]
        frames = chunk + 1  # a padded column, as in a bucket
        batch = torch.zeros(3, frames, 16, dtype=torch.long)
        for row in (0, 1):
            batch[row, : lengths[row]] = torch.from_numpy(codes[row, done[row] : done[row] + lengths[row]])
        rows = [(slots[row], done[row], lengths[row], half[row]) for row in (0, 1)] + [(SLOTS, 0, 0, 0)]
        with torch.inference_mode():
            wave = PlainSteps(weights, memory, rows, frames, batch).run(program.steps(3 * frames))
        for row in (0, 1):
            got[row].append(wave[row, : lengths[row] * 1920])
            done[row] += lengths[row]
            half[row] ^= 1
    for row in (0, 1):
        have = torch.cat(got[row]).numpy()
        np.testing.assert_allclose(have, want[row][: len(have)], rtol=0, atol=1e-4)
    assert np.abs(want[0]).max() < 1, "nothing is clipped"
    assert np.abs(want[0]).std() > 0.01
