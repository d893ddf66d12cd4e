"""The sampler against the official processors and against its own laws."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_lib.talker.random_numbers import uniforms
from engine_lib.talker.sampler import NEVER, Rules, choose, penalise, scores
from tests.golden import golden

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", ["default", "topp"])
def test_scores_equal_the_official_processors(case: str) -> None:
    stored = golden("sampling")
    info = stored.info[case]
    logits = torch.from_numpy(stored[f"{case}_logits"])
    tokens = stored[f"{case}_tokens"]
    rules = Rules.of([info["temperature"]], [info["top_k"]], [info["top_p"]], CPU)
    first, last, step = info["suppress_tokens"]
    assert step == last - first  # the fixture stores first, last and count
    for place in range(len(tokens)):
        seen = torch.zeros(1, logits.shape[1], dtype=torch.bool)
        seen[0, tokens[:place]] = True
        row = penalise(logits[place : place + 1], seen, torch.tensor([info["repetition_penalty"]]))
        if place < info["min_new_tokens"]:
            row[:, info["eos_token_id"]] = NEVER
        eos = row[:, info["eos_token_id"]].clone()
        row[:, first : last + 1] = NEVER
        row[:, info["eos_token_id"]] = eos
        actual, expected = scores(row, rules)[0].numpy(), stored[f"{case}_scores"][place]
        np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)


def test_a_row_samples_the_same_beside_any_neighbours() -> None:
    logits = torch.randn(8, 96, generator=torch.Generator().manual_seed(1)) * 3
    settings = [
        (0.9, 50, 1.0),
        (0.0, 0, 1.0),
        (5.0, 0, 0.3),
        (0.1, 1, 1.0),
        (1.0, 7, 0.9),
        (0.7, 96, 1.0),
        (1, 200, 1),
        (2, 3, 0.01),
    ]
    numbers = torch.from_numpy(uniforms(np.arange(8, dtype=np.uint64), np.arange(8)))[:, 0]
    together = choose(logits, Rules.of(*map(list, zip(*settings, strict=True)), CPU), numbers)
    for row, (temperature, top_k, top_p) in enumerate(settings):
        alone = choose(logits[row : row + 1], Rules.of([temperature], [top_k], [top_p], CPU), numbers[row : row + 1])
        assert alone.item() == together[row].item()


def test_draws_follow_the_distribution_and_never_take_what_was_dropped() -> None:
    rows = 20_000
    logits = torch.tensor([[1.0, 0.0, -1.0, NEVER, 2.0]]).expand(rows, 5)
    numbers = torch.from_numpy(uniforms(np.arange(rows, dtype=np.uint64), np.zeros(rows, dtype=np.int64)))[:, 3]
    rules = Rules.of([1.0] * rows, [3] * rows, [1.0] * rows, CPU)
    counts = torch.bincount(choose(logits, rules, numbers), minlength=5) / rows
    expected = torch.tensor([1.0, 0.0, NEVER, NEVER, 2.0]).softmax(0)
    assert counts[2] == counts[3] == 0
    assert (counts - expected).abs().max() < 0.012  # 3.5 standard deviations of the commonest


@pytest.mark.parametrize("number", [0.0, float(np.float32(1) - np.float32(2**-24))])
def test_the_extreme_numbers_choose_an_id_that_may_be_chosen(number: float) -> None:
    logits = torch.tensor([[NEVER, 1.0, 0.5, NEVER]])
    assert choose(logits, Rules.of([1.0], [0], [1.0], CPU), torch.tensor([number])).item() in (1, 2)


def test_random_numbers_depend_on_seed_frame_and_codebook_alone() -> None:
    seeds = np.array([0, 1, 2**63 - 1, 1], dtype=np.uint64)
    frames = np.array([0, 0, 7, 1])
    together = uniforms(seeds, frames)
    for row in range(4):
        np.testing.assert_array_equal(uniforms(seeds[row : row + 1], frames[row : row + 1])[0], together[row])
    assert len(np.unique(together)) == together.size
    assert together.min() >= 0
    assert together.max() < 1


def test_random_numbers_are_even_over_each_address() -> None:
    block = uniforms(np.arange(500, dtype=np.uint64), np.arange(500))
    counts = np.histogram(block, bins=16, range=(0, 1))[0]
    assert (((counts - 500) ** 2) / 500).sum() < 45  # chi-square, 15 degrees: 45 is p = 1e-4; the numbers never change
    assert abs(np.corrcoef(block[:, 0], block[:, 1])[0, 1]) < 0.2
