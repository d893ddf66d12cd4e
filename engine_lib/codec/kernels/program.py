"""The steps of one decoder call for `rows` rows of up to `frames` frames, and the memory that they work in.

A step names its tensors and says nothing of how it is run: launch.py starts a kernel for it, and a test can do the same
in plain torch. Layouts are codec_common.cuh's: an activation is [channels / 8, rows * columns, 8].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_lib.codec.kernels.weights import DEPTHWISE_TAPS, GROUP, Product, Snake, Unit, Weights

RING = 128  # frames of keys and values that a slot keeps: a power of two, at least window - 1 + a call's frames
FUSED = (96,)  # channels of residual units that are one kernel: with 192, two kernels are faster
MOST_REACH = 54  # columns before the present one that any layer looks at: 6 taps, 9 apart


@dataclass(frozen=True)
class State:
    """The last `tail` columns of an activation in each slot, twice: [slots, 2, channels / 8, tail, 8]."""

    numbers: Tensor

    @property
    def tail(self) -> int:
        """Columns kept."""
        return self.numbers.shape[3]


@dataclass(frozen=True)
class Embed:
    """Codes to the sum of their entries."""

    table: Tensor
    output: Tensor
    state: State


@dataclass(frozen=True)
class Convolve:
    """A product with all that is done to its result, in the order of the fields."""

    product: Product
    per_frame: int  # input columns of a frame
    input: Tensor
    input_state: State | None = None
    norm_eps: float | None = None  # the input is divided by its root mean square
    then: tuple[Snake, Product] | None = None  # an activation and a second product of one tap
    gelu: bool = False
    swiglu: bool = False
    residual: Tensor | None = None
    wide: Tensor | None = None  # float32: added, and holds the sum ...
    fresh: bool = False  # ... unless it held nothing yet
    raw: Tensor | None = None
    snake: Snake | None = None
    output: Tensor | None = None
    output_state: State | None = None


@dataclass(frozen=True)
class Attend:
    """One layer's attention over new and kept frames."""

    input: Tensor
    output: Tensor
    layer: int


@dataclass(frozen=True)
class Depthwise:
    """A depthwise convolution and the norm behind it."""

    per_frame: int
    input: Tensor
    input_state: State
    weights: Tensor
    bias: Tensor
    eps: float
    output: Tensor


@dataclass(frozen=True)
class Sound:
    """The last convolution."""

    per_frame: int
    input: Tensor
    input_state: State
    weights: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Carry:
    """Moves on the state of layers that may get fewer columns than they keep."""

    states: tuple[tuple[State, int], ...]  # and columns of a frame


Step = Embed | Convolve | Attend | Depthwise | Sound | Carry


class Workspace:
    """Activations of a call, the largest call's size. Calls follow one another, so one is enough."""

    def __init__(self, weights: Weights, most_frames: int, device: torch.device) -> None:
        """`most_frames`: rows times frames."""
        config = weights.config
        widest = max(stage.expand.outputs for stage in weights.stages)
        low = low_rate(weights) * max(widest, 3 * config.heads * config.head_dim, config.intermediate)
        channels, columns = config.channels, low_rate(weights)
        high = channels * columns
        for rate in config.upsample_rates:
            channels, columns = channels // 2, columns * rate
            high = max(high, channels * columns)  # channels times columns of a frame
        self._low = [torch.empty(low * most_frames, dtype=weights.dtype, device=device) for _ in range(3)]
        self._high = [torch.empty(high * most_frames, dtype=weights.dtype, device=device) for _ in range(3)]
        self._wide = torch.empty(config.hidden * most_frames, dtype=torch.float32, device=device)

    def low(self, number: int, channels: int, columns: int) -> Tensor:
        """One of three activations at a low rate."""
        return _shaped(self._low[number], channels, columns)

    def high(self, number: int, channels: int, columns: int) -> Tensor:
        """One of three activations at a high rate."""
        return _shaped(self._high[number], channels, columns)

    def wide(self, channels: int, columns: int) -> Tensor:
        """The transformer's residual stream."""
        return _shaped(self._wide, channels, columns)

    def bytes(self) -> int:
        """Memory of all activations."""
        return sum(part.numel() * part.element_size() for part in (*self._low, *self._high, self._wide))


def _shaped(flat: Tensor, channels: int, columns: int) -> Tensor:
    return flat[: channels * columns].view(channels // GROUP, columns, GROUP)


def low_rate(weights: Weights) -> int:
    """Columns of a frame where the first block begins."""
    columns = 1
    for ratio in weights.config.upsampling_ratios:
        columns *= ratio
    return columns


class Memory:
    """Every stream's state in slots, each layer's its own tensor; the last slot is for idle rows."""

    def __init__(self, weights: Weights, slots: int, device: torch.device) -> None:
        config = weights.config

        def state(channels: int, tail: int) -> State:
            shape = (slots + 1, 2, channels // GROUP, tail, GROUP)
            return State(torch.zeros(shape, dtype=weights.dtype, device=device))

        def reach(product: Product) -> State:
            return state(product.inputs, (product.taps - 1) * product.dilation)

        self.enter = reach(weights.enter)
        self.stages = [state(stage.depthwise.shape[1], DEPTHWISE_TAPS - 1) for stage in weights.stages]
        self.first = reach(weights.first)
        self.widen = [reach(block.widen) for block in weights.blocks]
        self.units = [[reach(unit.first) for unit in block.units] for block in weights.blocks]
        self.last = state(weights.last.shape[0] * GROUP, DEPTHWISE_TAPS - 1)
        self.ring = torch.zeros(
            (slots + 1, config.layers, 2, config.heads, RING, config.head_dim), dtype=weights.dtype, device=device
        )

    def states(self) -> list[State]:
        """All but the ring."""
        units = [state for block in self.units for state in block]
        return [self.enter, *self.stages, self.first, *self.widen, *units, self.last]

    def of_slot(self, slot: int) -> list[Tensor]:
        """All that one slot holds."""
        return [*(state.numbers[slot] for state in self.states()), self.ring[slot]]

    def bytes(self) -> int:
        """Memory of all slots."""
        tensors = [state.numbers for state in self.states()] + [self.ring]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Program:
    """Lists the steps of a call."""

    def __init__(self, weights: Weights, memory: Memory, workspace: Workspace) -> None:
        self._weights = weights
        self._memory = memory
        self._workspace = workspace

    def steps(self, frames: int) -> list[Step]:
        """For `frames` frames of all rows together (rows times columns)."""
        steps, x = self._transformer(frames)
        columns = 1
        for number in range(len(self._weights.stages)):
            added, x = self._stage(number, x, columns, frames)
            steps += added
            columns *= self._weights.stages[number].widen.up
        steps += self._blocks(x, columns, frames)
        steps.append(Carry(tuple(self._short())))
        return steps

    def _transformer(self, frames: int) -> tuple[list[Step], Tensor]:
        """Codes to the transformer's residual stream, and its 16-bit copy."""
        weights, memory, space = self._weights, self._memory, self._workspace
        config = weights.config
        codes = space.low(0, config.codebook_dim, frames)
        wide = space.wide(config.hidden, frames)
        x = space.low(1, config.hidden, frames)
        mixed = space.low(0, 3 * config.heads * config.head_dim, frames)
        seen = space.low(2, config.heads * config.head_dim, frames)
        steps: list[Step] = [
            Embed(weights.table, codes, memory.enter),
            Convolve(weights.enter, 1, codes, memory.enter, wide=wide, fresh=True, output=x),
        ]
        eps = config.rms_norm_eps
        for number, layer in enumerate(weights.layers):
            gated = space.low(0, layer.down.inputs, frames)
            steps += [
                Convolve(layer.queries_keys_values, 1, x, norm_eps=eps, output=mixed),
                Attend(mixed, seen, number),
                Convolve(layer.out, 1, seen, wide=wide, output=x),
                Convolve(layer.gate_up, 1, x, norm_eps=eps, swiglu=True, output=gated),
                Convolve(layer.down, 1, gated, wide=wide, output=x),
            ]
        return steps, x

    def _stage(self, number: int, x: Tensor, columns: int, frames: int) -> tuple[list[Step], Tensor]:
        """An upsampling stage from `columns` columns of a frame, input and result in place 1 of the workspace."""
        stage, state, space = self._weights.stages[number], self._memory.stages[number], self._workspace
        channels, ahead = stage.widen.outputs, columns * stage.widen.up
        wide = space.low(0, channels, ahead * frames)
        normed = space.low(2, channels, ahead * frames)
        expanded = space.low(1, stage.expand.outputs, ahead * frames)
        mixed = space.low(2, channels, ahead * frames)
        last = number == len(self._weights.stages) - 1
        eps = None if number else self._weights.config.rms_norm_eps
        steps: list[Step] = [
            Convolve(stage.widen, columns, x, norm_eps=eps, output=wide, output_state=state),
            Depthwise(ahead, wide, state, stage.depthwise, stage.depthwise_bias, stage.eps, normed),
            Convolve(stage.expand, ahead, normed, gelu=True, output=expanded),
            Convolve(
                stage.contract, ahead, expanded, residual=wide, output=mixed,
                output_state=self._memory.first if last else None,
            ),
        ]  # fmt: skip
        return steps, mixed

    def _blocks(self, x: Tensor, columns: int, frames: int) -> list[Step]:
        """The first convolution, the blocks and the last convolution."""
        weights, memory, space = self._weights, self._memory, self._workspace
        blocks = weights.blocks
        present, other = 1, 2  # places of the activation; place 0 holds what residual units add to
        y = space.high(present, weights.first.outputs, columns * frames)
        steps: list[Step] = [
            Convolve(
                weights.first, columns, x, memory.first,
                snake=blocks[0].enter, output=y, output_state=memory.widen[0],
            )
        ]  # fmt: skip
        for number, block in enumerate(blocks):
            channels, ahead = block.widen.outputs, columns * block.widen.up
            total = space.high(0, channels, ahead * frames)
            wide = space.high(other, channels, ahead * frames)
            states = memory.units[number]
            steps.append(
                Convolve(
                    block.widen, columns, y, memory.widen[number],
                    raw=total, snake=block.units[0].enter, output=wide, output_state=states[0],
                )
            )  # fmt: skip
            y, columns = wide, ahead
            present, other = other, present
            final = number == len(blocks) - 1
            after = (weights.leave, memory.last) if final else (blocks[number + 1].enter, memory.widen[number + 1])
            following = [*((unit.enter, state) for unit, state in zip(block.units[1:], states[1:], strict=True)), after]
            for unit, state, (enter, next_state) in zip(block.units, states, following, strict=True):
                raw = None if next_state is after[1] else total
                spare = space.high(other, channels, columns * frames)
                added, swap = self._unit(unit, columns, y, state, total, raw, enter, next_state, spare)
                steps += added
                if swap:
                    y = spare
                    present, other = other, present
        steps.append(Sound(columns, y, memory.last, weights.last, weights.last_bias))
        return steps

    def _unit(
        self, unit: Unit, columns: int, y: Tensor, state: State, total: Tensor, raw: Tensor | None, enter: Snake,
        next_state: State, spare: Tensor,
    ) -> tuple[list[Step], bool]:  # fmt: skip
        """A residual unit as one kernel where all channels fit a tile; whether the result is in `spare`, or in `y`."""
        if unit.first.outputs in FUSED:
            fused = Convolve(
                unit.first, columns, y, state, then=(unit.middle, unit.second),
                residual=total, raw=raw, snake=enter, output=spare, output_state=next_state,
            )  # fmt: skip
            return [fused], True
        first = Convolve(unit.first, columns, y, state, snake=unit.middle, output=spare)
        second = Convolve(
            unit.second, columns, spare,
            residual=total, raw=raw, snake=enter, output=y, output_state=next_state,
        )  # fmt: skip
        return [first, second], False

    def _short(self) -> list[tuple[State, int]]:
        """States that keep more columns than a frame has."""
        memory, columns = self._memory, 1
        found = [(memory.enter, 1)]
        for state, stage in zip(memory.stages, self._weights.stages, strict=True):
            columns *= stage.widen.up
            found.append((state, columns))
        found += [(memory.first, columns), (memory.widen[0], columns)]
        for number, block in enumerate(self._weights.blocks):
            columns *= block.widen.up
            after = memory.last if number == len(self._weights.blocks) - 1 else memory.widen[number + 1]
            found += [(state, columns) for state in (*memory.units[number], after)]
        return [(state, per_frame) for state, per_frame in found if state.tail > per_frame]
