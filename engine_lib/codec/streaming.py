"""State of streaming layers in fixed slots, and the causal convolutions that carry it from chunk to chunk.

Knows rows, slots and time; knows neither checkpoints nor samples. Every layer looks back only, so columns that pad a
row at its end never reach the valid ones before them, and a row's state moves on by its own length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rows:
    """What one decoder call works on: row r is the next `lengths[r]` frames of the stream in `slots[r]`.

    slots, starts, lengths: int64 [rows]; no slot occurs twice. starts: frames that the stream had before. frames:
    columns of the call, at least max(lengths), the rest is padding. even: every row has `frames` frames.
    """

    slots: Tensor
    starts: Tensor
    lengths: Tensor
    frames: int
    even: bool

    def extend(self, state: Tensor, new: Tensor, dim: int = -1) -> Tensor:
        """`new` [rows, ...] behind what `state` [slots, ...] holds of its streams, along `dim`.

        Moves the state on: it keeps as many columns as before, up to the end of each row.
        """
        width = state.shape[dim]
        if width == 0:
            return new
        both = torch.cat((state.index_select(0, self.slots), new), dim)
        if self.even:
            tail = both.narrow(dim, new.shape[dim], width)
        else:
            ends = self.lengths * (new.shape[dim] // self.frames)
            columns = ends[:, None] + torch.arange(width, device=ends.device)  # [rows, width]
            shape = [1] * both.ndim
            shape[0], shape[dim] = columns.shape
            tail = torch.take_along_dim(both, columns.view(shape), dim)
        state.index_copy_(0, self.slots, tail)
        return both


class StreamingLayer(nn.Module):
    """A layer that keeps `state_shape` numbers of every stream; StateStore gives it `state` [slots, *state_shape]."""

    state: Tensor

    def __init__(self, state_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.state_shape = state_shape


class StateStore:
    """The state of all streaming layers of a module: one tensor [slots, numbers], of which each layer sees its part."""

    def __init__(self, module: nn.Module, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        layers = [layer for layer in module.modules() if isinstance(layer, StreamingLayer)]
        sizes = [math.prod(layer.state_shape) for layer in layers]
        self.numbers = torch.zeros((slots, sum(sizes)), dtype=dtype, device=device)
        for layer, part in zip(layers, torch.split(self.numbers, sizes, dim=1), strict=True):
            layer.state = part.view(slots, *layer.state_shape)

    def reset(self, slot: int) -> None:
        """Make `slot` fresh: zeros are what the official decoder pads a stream's start with."""
        self.numbers[slot].zero_()

    def bytes(self) -> int:
        """Memory of all slots."""
        return self.numbers.numel() * self.numbers.element_size()


class CausalConv(StreamingLayer):
    """A convolution of stride 1 whose window ends at the present column."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__((inputs, (kernel - 1) * dilation))
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, inputs, columns] -> [rows, outputs, columns]."""
        return self.conv(rows.extend(self.state, x))  # type: ignore[no-any-return]


class CausalUpsample(StreamingLayer):
    """A transposed convolution, `stride` columns for each; a kernel of n strides also sees n - 1 columns back."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        back = kernel // stride - 1
        super().__init__((inputs, back))
        self.stride, self.back = stride, back
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, inputs, columns] -> [rows, outputs, columns * stride]."""
        wide = self.conv(rows.extend(self.state, x))
        # The first columns belong to the past, and what lies beyond the last column's stride still lacks its future.
        return wide.narrow(-1, self.back * self.stride, x.shape[-1] * self.stride)  # type: ignore[no-any-return]
