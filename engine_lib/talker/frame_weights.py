"""A talker's weights as the frame kernel reads them: fragments of tensor-core tiles in the order of use.

See engine_lib/kernels/cuda/frame.cu. The weight of every RMSNorm is folded into the matrix behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine_lib.layers import rotary
from engine_lib.talker.config import TransformerConfig
from engine_lib.talker.model import Talker

BLOCKS, WARPS = 128, 8  # protocol.cuh
LEGS = 512  # room for one kind of block's schedule
CHUNK_TILES = 8  # 16x16 tiles of one bulk copy
TEXT_BATCH = 8192  # text ids projected at a time


@dataclass(frozen=True)
class Packed:
    """One matrix: `tiles` on the device, for `blocks` blocks that take `chunks` chunks a warp each."""

    tiles: Tensor
    blocks: int
    chunks: int
    keep: bool = False  # in L2, because every position of the predictor reads it again


@dataclass(frozen=True)
class FrameWeights:
    """Everything that the kernel reads and never writes. Names as in frame.cu's Params."""

    tensors: dict[str, Tensor]
    frame_schedule: Tensor
    prompt_schedule: Tensor  # stops before the head: for launches in which nothing samples
    matrices: list[Packed]  # held here because the schedules hold their addresses


def pack_matrix(weight: Tensor, blocks: int, *, keep: bool = False) -> Packed:
    """[outputs, inputs] as mma.m16n8k16 A fragments: [block][warp][k-tile][tile][lane][8], all bf16.

    A block has outputs / blocks / 16 tiles; a warp an eighth of the inputs.
    """
    outputs, inputs = weight.shape
    tiles, k_tiles = outputs // blocks // 16, inputs // 16 // WARPS
    assert (outputs, inputs) == (blocks * tiles * 16, WARPS * k_tiles * 16)
    # block, tile, upper/lower half, lane's row | warp, k-tile, left/right half, lane's quarter, element
    parts = weight.reshape(blocks, tiles, 2, 8, WARPS, k_tiles, 2, 4, 2)
    packed = parts.permute(0, 4, 5, 1, 3, 7, 6, 2, 8).contiguous().view(-1).to(torch.bfloat16)
    return Packed(packed, blocks, k_tiles * tiles // CHUNK_TILES, keep)


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """Eight rows of gate, the same eight of up, and so on: so that one tile holds both sides of the product."""
    rows, inputs = gate.shape
    return torch.cat([gate.view(rows // 8, 8, inputs), up.view(rows // 8, 8, inputs)], dim=1).reshape(2 * rows, inputs)


def scaled(weight: Tensor, norm: Tensor) -> Tensor:
    """`weight` [outputs, inputs] behind a norm with the weight `norm` [inputs]."""
    return (weight.float() * norm.float()).to(weight.dtype)


@torch.inference_mode()
def pack_talker(talker: Talker, positions: int) -> FrameWeights:
    """Pack a bf16 talker on its CUDA device, for slots of `positions`."""
    config = talker.config
    named = talker.state_dict()
    device = talker.codec_head.weight.device
    layers = [_layer(named, f"model.layers.{n}.") for n in range(config.talker.layers)]
    small = [_layer(named, f"code_predictor.model.layers.{n}.", keep=n == 0) for n in range(config.predictor.layers)]
    norm, small_norm = named["model.norm.weight"], named["code_predictor.model.norm.weight"]
    if config.talker.hidden != config.predictor.hidden:
        projection = named["code_predictor.small_to_mtp_projection.weight"]
        bias = named["code_predictor.small_to_mtp_projection.bias"]
    else:  # the small model's talker is as wide as its predictor: an identity costs little there
        projection, bias = torch.eye(config.talker.hidden, dtype=norm.dtype, device=device), torch.zeros_like(norm)
    groups = range(config.code_groups - 1)
    heads = [pack_matrix(scaled(named[f"code_predictor.lm_head.{n}.weight"], small_norm), BLOCKS) for n in groups]

    prompt = [matrix for layer in layers for matrix in layer]
    frame = [*prompt, pack_matrix(scaled(named["codec_head.weight"], norm), config.talker.vocabulary // 32)]
    frame.append(pack_matrix(scaled(projection, norm), projection.shape[0] // 16))
    for position in range(config.code_groups):
        frame += [matrix for layer in small for matrix in layer]
        frame += heads[position - 1 : position] if position else []

    first = named["model.codec_embedding.weight"]
    others = torch.stack([named[f"code_predictor.model.codec_embedding.{n}.weight"] for n in groups])
    tensors = {
        "p_bias": bias.float(),
        "rotations": _rotations(config.talker, positions, device),
        "p_rotations": _rotations(config.predictor, config.code_groups, device),
        "text": torch.cat([talker.text_side(ids) for ids in _batches(config.text_vocabulary, device)]),
        "first_codes": first.contiguous(),
        "other_codes": others,
        "p_first_codes": F.linear(first, projection, bias),
        "p_other_codes": F.linear(others[:-1], projection, bias),
    }
    for kind in ("q_norm", "k_norm"):
        tensors[kind] = _norms(named, "model.layers.", kind, config.talker.layers)
        tensors[f"p_{kind}"] = _norms(named, "code_predictor.model.layers.", kind, config.predictor.layers)
    return FrameWeights(tensors, _schedule(frame, device), _schedule(prompt, device), frame)


def _layer(named: Mapping[str, Tensor], prefix: str, *, keep: bool = False) -> list[Packed]:
    q, k, v, o = (named[f"{prefix}self_attn.{name}_proj.weight"] for name in "qkvo")
    gate, up, down = (named[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    before, after = named[f"{prefix}input_layernorm.weight"], named[f"{prefix}post_attention_layernorm.weight"]
    return [
        pack_matrix(scaled(torch.cat([q, k, v]), before), BLOCKS, keep=keep),
        pack_matrix(o, o.shape[0] // 16, keep=keep),
        pack_matrix(scaled(interleaved(gate, up), after), BLOCKS, keep=keep),
        pack_matrix(down, down.shape[0] // 16, keep=keep),
    ]


def _norms(named: Mapping[str, Tensor], prefix: str, kind: str, layers: int) -> Tensor:
    return torch.stack([named[f"{prefix}{n}.self_attn.{kind}.weight"] for n in range(layers)]).float()


def _rotations(config: TransformerConfig, positions: int, device: torch.device) -> Tensor:
    """[positions, head_dim / 2, (cos, sin)] float32."""
    cos, sin = rotary(torch.arange(positions, device=device), config.head_dim, config.rope_theta)
    half = config.head_dim // 2
    return torch.stack((cos[:, half:], sin[:, half:]), dim=-1).contiguous()


def _batches(count: int, device: torch.device) -> Iterator[Tensor]:
    """0..count-1 in parts."""
    for begin in range(0, count, TEXT_BATCH):
        yield torch.arange(begin, min(begin + TEXT_BATCH, count), device=device)


def _schedule(matrices: list[Packed], device: torch.device) -> Tensor:
    """What a block streams, for blocks below 64, below 96 and the rest: [3, LEGS, (low, high, chunks, keep)]."""
    table = np.zeros((3, LEGS, 4), np.uint32)
    for kind, least in enumerate((0, 64, 96)):
        own = [matrix for matrix in matrices if matrix.blocks > least]
        addresses = np.array([matrix.tiles.data_ptr() for matrix in own], np.uint64)
        table[kind, : len(own), 0] = addresses & np.uint64(0xFFFFFFFF)
        table[kind, : len(own), 1] = addresses >> np.uint64(32)
        table[kind, : len(own), 2] = [matrix.chunks for matrix in own]
        table[kind, : len(own), 3] = [matrix.keep for matrix in own]
    return torch.from_numpy(table.view(np.int32)).to(device)
