"""What of the frame kernel can be checked without a GPU: that it compiles, and how weights are packed for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engine_lib import random_model
from engine_lib.kernels.compile import compiled
from engine_lib.kernels.target import CompileError
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.frame_kernel import defines, tiles_for, why_not
from engine_lib.talker.frame_weights import WARPS, Packed, interleaved, pack_matrix


def config(size: str, directory: Path) -> TalkerConfig:
    (directory / "config.json").write_text(json.dumps(random_model.talker_config(size)), encoding="utf-8")
    return TalkerConfig.from_directory(directory)


@pytest.mark.parametrize(("size", "tiles"), [("1.7B", (4, 4)), ("0.6B", (2, 2))])
def test_both_sizes_compile_without_a_gpu(size: str, tiles: tuple[int, int], tmp_path: Path) -> None:
    cubin = compiled("frame.cu", defines(config(size, tmp_path), 2048, tiles))
    assert cubin.startswith(b"\x7fELF")


def test_the_stress_build_compiles(tmp_path: Path) -> None:
    stress = defines(config("1.7B", tmp_path), 2048, (1, 1)) | {"STRESS": 1}
    assert compiled("frame.cu", stress).startswith(b"\x7fELF")


def test_a_source_that_does_not_compile_says_why(tmp_path: Path) -> None:
    wrong = defines(config("1.7B", tmp_path), 2048, (1, 1)) | {"HIDDEN": 1000}
    with pytest.raises(CompileError, match=r"frame\.cu"):
        compiled("frame.cu", wrong, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_what_was_compiled_once_is_read_from_the_cache(tmp_path: Path) -> None:
    options = defines(config("0.6B", tmp_path), 256, (1, 1)) | {"LAYERS": 1}
    first = compiled("frame.cu", options, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    assert kept.read_bytes() == first
    kept.write_bytes(b"from the cache")
    assert compiled("frame.cu", options, tmp_path / "cache") == b"from the cache"


@pytest.mark.parametrize(("blocks", "tiles", "inputs"), [(2, 1, 512), (2, 2, 512), (1, 3, 1024), (1, 6, 512)])
def test_the_tensor_cores_read_the_packed_weights_as_they_were(blocks: int, tiles: int, inputs: int) -> None:
    outputs = blocks * tiles * 16
    weight = torch.randint(-8, 9, (outputs, inputs)).to(torch.bfloat16)
    column = torch.randint(-4, 5, (inputs,)).double()
    packed = pack_matrix(weight, blocks)
    torch.testing.assert_close(product(packed, tiles, inputs, column), weight.double() @ column, rtol=0, atol=0)


def product(packed: Packed, tiles: int, inputs: int, column: torch.Tensor) -> torch.Tensor:
    """A matrix times one column, tile by tile, by the register layout in the PTX manual (mma.m16n8k16, A operand)."""
    k_tiles = inputs // 16 // WARPS
    parts = packed.tiles.double().view(packed.blocks, WARPS, k_tiles, tiles, 32, 8)
    result = torch.zeros(packed.blocks, tiles, 16, dtype=torch.float64)
    for lane in range(32):
        row, k = lane // 4, lane % 4 * 2
        for register, (down, right) in enumerate([(0, 0), (8, 0), (0, 8), (8, 8)]):
            values = parts[..., lane, 2 * register : 2 * register + 2]  # block, warp, k-tile, tile, element
            starts = torch.arange(WARPS * k_tiles).view(WARPS, k_tiles) * 16 + k + right
            inputs_here = torch.stack((column[starts], column[starts + 1]), dim=-1)
            result[:, :, row + down] += torch.einsum("bwkte,wke->bt", values, inputs_here)
    return result.flatten()


def test_a_tile_of_gates_and_ups_holds_both_sides_of_eight_products() -> None:
    gate, up = torch.arange(16).view(16, 1), 100 + torch.arange(16).view(16, 1)
    tile = interleaved(gate, up).flatten().tolist()
    assert tile == [*range(8), *range(100, 108), *range(8, 16), *range(108, 116)]


def test_a_launch_takes_the_smallest_variant_that_holds_it() -> None:
    assert tiles_for(1, 1) == (1, 1)
    assert tiles_for(10, 1) == (2, 1)
    assert tiles_for(9, 9) == (2, 2)
    assert tiles_for(32, 0) == (4, 1)
    assert tiles_for(32, 32) == (4, 4)


def test_a_cpu_has_no_frame_kernel_and_is_told_so(tmp_path: Path) -> None:
    assert "CUDA" in why_not(config("1.7B", tmp_path), torch.bfloat16, torch.device("cpu"))
