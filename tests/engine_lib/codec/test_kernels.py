"""What can be known of the kernels without a GPU. tests/gpu runs them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.kernels.fit import misfit, unfit_size
from engine_lib.codec.kernels.launch import KERNELS, SOURCE, defines
from engine_lib.codec.kernels.program import FUSED
from engine_lib.codec.kernels.runner import FRAMES, row_buckets
from engine_lib.codec.kernels.tiles import MOST_PLACES, SHARED, Shape, choose, tiles
from engine_lib.kernels.compile import compiled
from tests.engine_lib.codec.conftest import TOKENIZER
from tests.engine_lib.codec.random_decoder import SMALL, TRUE


def test_every_kernel_compiles_without_a_gpu_or_nvcc() -> None:
    cubin = compiled(SOURCE, defines("float16"))
    assert [name for name in KERNELS if name.encode() not in cubin] == []


def shapes(rows: int, frames: int) -> list[Shape]:
    """Products of the released decoder."""
    found, columns = [], 4
    widths = [TRUE.channels >> number for number in range(5)]
    for inputs, outputs, rate in zip(widths[:-1], widths[1:], TRUE.upsample_rates, strict=True):
        width = next(width for width in (192, 96) if outputs % width == 0)
        found.append(Shape(rate * outputs, width, 2 * inputs // 64, 64, 2, 1, rows, columns * frames, fused=False))
        columns *= rate
        block = 96 if outputs == 96 else 64
        for dilation in (1, 3, 9):
            fused = outputs in FUSED
            unit = (outputs, width, 7 * outputs // block, block, 7, 6 * dilation, rows, columns * frames)
            found.append(Shape(*unit, fused=fused))
    linear = [(3072, 512), (512, 1024), (2048, 512), (2048, 1024), (4096, 1024), (1024, 4096)]
    for outputs, inputs in linear:
        found.append(Shape(outputs, 128, inputs // 64, 64, 1, 0, rows, frames, fused=False))
    return found


@pytest.mark.parametrize("rows", row_buckets(32))
@pytest.mark.parametrize("frames", FRAMES)
def test_every_tile_fits_and_together_they_cover_the_product(rows: int, frames: int) -> None:
    for shape in shapes(rows, frames):
        found = tiles(shape)
        assert choose(shape) in found
        for tile in found:
            across, down = tile.grid
            assert tile.shared <= SHARED
            assert 1 <= tile.blocks <= MOST_PLACES
            assert 1 <= tile.stages <= MOST_PLACES
            assert across * tile.width == shape.outputs
            tall = 64 * tile.groups
            if shape.taps == 1:
                assert down * tall >= rows * shape.columns
            else:
                assert down % rows == 0
                assert down // rows * tall >= shape.columns
            assert down <= 65535


@pytest.mark.parametrize("config", [TRUE, SMALL])
def test_the_released_decoder_fits(config: DecoderConfig) -> None:
    assert unfit_size(config) is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"head_dim": 32}, "64 numbers"), ({"kv_heads": 4}, "keys of their own"), ({"window": 73}, "73 frames"),
        ({"latent": 1088}, "256"), ({"channels": 1280}, "160"), ({"channels": 2048}, "128"), ({"hidden": 500}, "500"),
    ],
)  # fmt: skip
def test_a_size_that_the_kernels_cannot_do_is_named(change: dict, word: str) -> None:
    assert word in (unfit_size(dataclasses.replace(TRUE, **change)) or "")


def test_a_cpu_takes_the_plain_path() -> None:
    assert "GPU" in (misfit(TRUE, torch.device("cpu")) or "")


def test_the_tests_checkpoint_takes_the_plain_path_on_any_device() -> None:
    assert unfit_size(DecoderConfig.from_directory(TOKENIZER)) is not None
