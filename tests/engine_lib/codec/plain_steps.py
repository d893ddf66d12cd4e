"""The kernels' steps in plain torch: what each kernel must do, on tensors in the kernels' layouts, of any dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_lib.codec.kernels.program import (
    RING,
    Attend,
    Carry,
    Convolve,
    Depthwise,
    Embed,
    Memory,
    Sound,
    State,
    Step,
)  # fmt: skip
from engine_lib.codec.kernels.weights import Product, Snake, Weights

Row = tuple[int, int, int, int]  # slot, start, length, half


def unpacked(product: Product) -> Tensor:
    """The matrix [N, taps, inputs] that `pack` took."""
    blocks, taps = product.inputs // product.block, product.taps
    tiles, _, groups, planes, *_ = product.weights.shape
    parts = product.weights.view(tiles, blocks, taps, groups, planes, 8, 8)
    return parts.permute(0, 3, 5, 2, 1, 4, 6).reshape(product.up * product.outputs, taps, product.inputs).float()


def snaked(x: Tensor, snake: Snake) -> Tensor:
    return x + (x * snake.rate).sin().square() * snake.gain


class PlainSteps:
    """Runs the steps of one call."""

    def __init__(self, weights: Weights, memory: Memory, rows: list[Row], frames: int, codes: Tensor) -> None:
        self.weights, self.memory, self.frames, self.codes = weights, memory, frames, codes
        self.rows = [(number, row) for number, row in enumerate(rows) if row[2]]  # without the idle ones
        self.device = codes.device
        self.wave = torch.full((len(rows), frames * 1920), torch.nan, device=self.device)

    def run(self, steps: list[Step]) -> Tensor:
        """Samples [rows, frames * 1920]; not a number where a row has none."""
        for step in steps:
            self.one(step)
        return self.wave

    def one(self, step: Step) -> None:
        match step:
            case Embed():
                self.embed(step)
            case Convolve():
                self.convolve(step)
            case Attend():
                self.attend(step)
            case Depthwise():
                self.depthwise(step)
            case Sound():
                self.sound(step)
            case Carry():
                self.carry(step)

    def take(self, activation: Tensor, row: int, columns: int) -> Tensor:
        """A row's columns [columns of the call, channels]."""
        part = activation[:, row * columns : (row + 1) * columns]
        return part.transpose(0, 1).flatten(1).float()

    def put(self, activation: Tensor, row: int, columns: int, x: Tensor) -> None:
        width = activation.shape[0]
        activation[:, row * columns : row * columns + len(x)] = (
            x.view(-1, width, 8).transpose(0, 1).to(activation.dtype)
        )

    def before(self, state: State, row: Row) -> Tensor:
        slot, start, _, half = row
        kept = state.numbers[slot, half].transpose(0, 1).flatten(1).float()
        return kept if start else torch.zeros_like(kept)

    def keep(self, state: State, row: Row, x: Tensor) -> None:
        """Of the valid columns `x`, the last ones go to the other half, at its end."""
        slot, _, _, half = row
        last = x[-state.tail :]
        state.numbers[slot, half ^ 1][:, state.tail - len(last) :] = (
            last.view(len(last), -1, 8).transpose(0, 1).to(state.numbers.dtype)
        )

    def embed(self, step: Embed) -> None:
        for number, row in self.rows:
            codes = self.codes[number, : row[2]]
            x = sum(step.table[quantizer][codes[:, quantizer]] for quantizer in range(codes.shape[1]))
            self.put(step.output, number, self.frames, x)
            self.keep(step.state, row, x)

    def convolve(self, step: Convolve) -> None:
        product = step.product
        columns = step.per_frame * self.frames
        matrix = unpacked(product)
        for number, row in self.rows:
            valid = row[2] * step.per_frame
            x = self.take(step.input, number, columns)[:valid]
            if step.norm_eps is not None:
                x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + step.norm_eps)
            if step.input_state is not None:
                x = torch.cat((self.before(step.input_state, row), x))
            spread = [x[tap * product.dilation :][:valid] for tap in range(product.taps)]
            y = torch.einsum("tmk,ntk->mn", torch.stack(spread), matrix)
            bias = product.bias
            if step.then is not None:
                snake, second = step.then
                y = snaked(y + bias, snake).to(step.input.dtype).float() @ unpacked(second)[:, 0].T
                bias = second.bias
            y = y + bias
            y = y.reshape(valid * product.up, product.outputs)
            out = columns * product.up
            if step.swiglu:
                y = F.silu(y[:, 0::2]) * y[:, 1::2]
            if step.gelu:
                y = F.gelu(y)
            if step.residual is not None:
                y = y + self.take(step.residual, number, out)[: len(y)]
            if step.wide is not None:
                if not step.fresh:
                    y = y + self.take(step.wide, number, out)[: len(y)]
                self.put(step.wide, number, out, y)
            if step.raw is not None:
                self.put(step.raw, number, out, y)
            if step.snake is not None:
                y = snaked(y, step.snake)
            if step.output is not None:
                self.put(step.output, number, out, y)
            if step.output_state is not None:
                self.keep(step.output_state, row, y)

    def attend(self, step: Attend) -> None:
        config = self.weights.config
        heads, size, before = config.heads, config.head_dim, config.window - 1
        for number, (slot, start, length, _) in self.rows:
            mixed = self.take(step.input, number, self.frames)[:length].view(length, 3, heads, size)
            queries, keys, values = (part.transpose(0, 1) for part in mixed.unbind(1))
            angles = torch.arange(start, start + length, device=self.device)[:, None] * self.weights.speed
            cos, sin = angles.cos(), angles.sin()

            def turned(x: Tensor, cos: Tensor = cos, sin: Tensor = sin) -> Tensor:
                low, high = x.chunk(2, -1)
                return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

            queries, keys = turned(queries), turned(keys)
            ring = self.memory.ring[slot, step.layer]
            seen = torch.arange(max(0, start - before), start) % RING
            new = torch.arange(start, start + length) % RING
            keys = torch.cat((ring[0][:, seen].float(), keys.to(ring.dtype).float()), 1)
            values = torch.cat((ring[1][:, seen].float(), values.to(ring.dtype).float()), 1)
            ring[0][:, new] = keys[:, len(seen) :].to(ring.dtype)
            ring[1][:, new] = values[:, len(seen) :].to(ring.dtype)
            at = torch.arange(length, device=self.device)[:, None] + len(seen)
            column = torch.arange(len(seen) + length, device=self.device)
            mask = (column <= at) & (column > at - config.window)
            out = F.scaled_dot_product_attention(queries, keys, values, mask)
            self.put(step.output, number, self.frames, out.transpose(0, 1).flatten(1))

    def depthwise(self, step: Depthwise) -> None:
        for number, row in self.rows:
            columns = step.per_frame * self.frames
            x = self.take(step.input, number, columns)[: row[2] * step.per_frame]
            x = torch.cat((self.before(step.input_state, row), x))
            y = F.conv1d(x.T[None], step.weights.T[:, None], step.bias, groups=x.shape[1])[0].T
            self.put(step.output, number, columns, F.layer_norm(y, y.shape[1:], eps=step.eps))

    def sound(self, step: Sound) -> None:
        weights = step.weights.transpose(1, 2).flatten(0, 1)[None]
        for number, row in self.rows:
            columns = step.per_frame * self.frames
            x = self.take(step.input, number, columns)[: row[2] * step.per_frame]
            x = torch.cat((self.before(step.input_state, row), x))
            self.wave[number, : row[2] * step.per_frame] = F.conv1d(x.T[None], weights, step.bias)[0, 0].clamp(-1, 1)

    def carry(self, step: Carry) -> None:
        for state, per_frame in step.states:
            for _, row in self.rows:
                fresh = row[2] * per_frame
                if fresh < state.tail:
                    old = self.before(state, row)[fresh:]
                    state.numbers[row[0], row[3] ^ 1][:, : len(old)] = (
                        old.view(len(old), -1, 8).transpose(0, 1).to(state.numbers.dtype)
                    )
