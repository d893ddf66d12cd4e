"""Runs the kernels for batches of rows: the fast twin of codec/runner.py, whose rows it gives the same samples.

Calls are recorded as CUDA graphs, for some numbers of rows and frames; a call takes the next larger ones, and what is
left of it is idle.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_lib import wire
from engine_lib.codec.kernels.launch import Call, Launch, Module, launches
from engine_lib.codec.kernels.program import MOST_REACH, Memory, Program, Step, Workspace
from engine_lib.codec.kernels.weights import GROUP, Weights
from engine_lib.codec.runner import PRIMED_VOICES, Codes, Pcm

FRAMES = (1, 2, 4, 8, 12, 16, 25)  # of a recorded call; longer chunks are decoded in pieces
FREE_PADDING = 40  # a call takes 0.67 ms before its frames count, and a frame 15 us (docs/benchmarks/codec.md)
ROW = 4  # numbers that describe a row: slot, start, length, half


@dataclass(frozen=True)
class Pending:
    """A call that has been started. Its samples are there once `ready` has been reached."""

    lengths: list[int]
    pcm: Tensor  # pinned int16 [rows, frames * 1,920]
    ready: torch.cuda.Event

    def wait(self) -> list[Pcm]:
        """Every row's samples, parts of one array. Blocks until they are there."""
        self.ready.synchronize()
        rows = self.pcm.numpy()
        return [rows[row, : length * wire.SAMPLES_PER_FRAME] for row, length in enumerate(self.lengths)]


@dataclass(frozen=True)
class Kept:
    """A slot's state, and which half of it is next to be read."""

    numbers: list[Tensor]
    half: int


class KernelRunner:
    """The decoder's kernels with `slots` streams' state, at most `rows` rows a call."""

    def __init__(
        self,
        weights: Weights,
        module: Module,
        slots: int,
        rows: int,
        *,
        primed: int = PRIMED_VOICES,
        record: bool = True,
    ) -> None:
        """`record` all calls now, so that none is slower than another when it comes for the first time."""
        self.device = weights.table.device
        self.codebook_size = weights.config.codebook_size
        self.row_buckets = row_buckets(rows)
        most_rows, most_frames = self.row_buckets[-1], FRAMES[-1]
        self._weights, self._module = weights, module
        self._memory = Memory(weights, slots, self.device)
        self._workspace = Workspace(weights, most_rows * most_frames, self.device)
        self._program = Program(weights, self._memory, self._workspace)
        self._zeros = torch.zeros(MOST_REACH * GROUP, dtype=weights.dtype, device=self.device)
        self._positions = np.zeros(slots, dtype=np.int32)  # frames that each slot's stream has had
        self._halves = np.zeros(slots, dtype=np.int32)
        numbers = most_rows * (ROW + most_frames * wire.CODEBOOKS)
        self._input = torch.zeros(numbers, dtype=torch.int32, device=self.device)
        samples = most_rows * most_frames * wire.SAMPLES_PER_FRAME
        self._pcm = torch.zeros(samples, dtype=torch.int16, device=self.device)
        self._primed: OrderedDict[bytes, Kept] = OrderedDict()  # by a sample's codes
        self._most_primed = primed
        self._aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        if record:
            for count in self.row_buckets:
                for frames in FRAMES:
                    self._graphs[count, frames] = self._record(count, frames)

    @property
    def slots(self) -> int:
        """Streams whose state fits."""
        return len(self._positions)

    @property
    def free_padding(self) -> int:
        """Frames of padding that cost no more than a call of their own."""
        return FREE_PADDING

    @property
    def state_bytes(self) -> int:
        """Memory of all slots' state."""
        return self._memory.bytes()

    @property
    def workspace_bytes(self) -> int:
        """Memory of a call's activations."""
        return self._workspace.bytes()

    def reset(self, slot: int) -> None:
        """Make `slot` ready for a new stream: at its start, kernels take zeros for what the slot holds."""
        self._positions[slot] = 0

    @torch.inference_mode()
    def prime(self, slot: int, codes: Codes) -> None:
        """Make `slot` ready for a new stream that goes on from `codes` [frames, 16], as if they had been decoded.

        The state that the latest few samples lead to is remembered, so that a known voice needs no decoding.
        """
        key = codes.astype(np.int32).tobytes()
        if key in self._primed:
            kept = self._primed[key]
            for place, remembered in zip(self._memory.of_slot(slot), kept.numbers, strict=True):
                place.copy_(remembered)
            self._positions[slot], self._halves[slot] = len(codes), kept.half
        else:
            self.reset(slot)
            self.decode([slot], [codes])
            numbers = [place.clone() for place in self._memory.of_slot(slot)]
            self._primed[key] = Kept(numbers, int(self._halves[slot]))
        self._primed.move_to_end(key)
        if len(self._primed) > self._most_primed:
            self._primed.popitem(last=False)

    def decode(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[Pcm]:
        """16-bit samples [frames * 1,920] of each row's next frames [frames, 16]; no slot twice.

        After an exception these slots' state is of no use: reset them.
        """
        pieces: list[list[Pcm]] = [[] for _ in slots]
        longest = max((len(row) for row in codes), default=0)
        most = self.row_buckets[-1]
        for done in range(0, longest, FRAMES[-1]):
            going = [row for row in range(len(slots)) if len(codes[row]) > done]
            for group in (going[begin : begin + most] for begin in range(0, len(going), most)):
                parts = [codes[row][done : done + FRAMES[-1]] for row in group]
                for row, samples in zip(group, self.begin([slots[row] for row in group], parts).wait(), strict=True):
                    pieces[row].append(samples)
        return [_joined(row) for row in pieces]

    @torch.inference_mode()
    def begin(self, slots: Sequence[int], codes: Sequence[Codes]) -> Pending:
        """Start a call for at most as many rows and frames as the largest recorded one; every row has a frame."""
        lengths, count, frames = self._upload(slots, codes)
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(self._copied)  # the samples before these have left the device
        self.replay(count, frames)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(stream)
        width = frames * wire.SAMPLES_PER_FRAME
        samples = len(lengths) * width
        # Pinned memory comes from torch's cache and goes back there when nobody holds it and no copy is under way.
        host = torch.empty(samples, dtype=torch.int16, pin_memory=True)
        with torch.cuda.stream(self._aside):
            self._aside.wait_event(done)
            host.copy_(self._pcm[:samples], non_blocking=True)
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(self._aside)
        self._copied = ready
        return Pending(lengths, host.view(len(lengths), width), ready)

    @torch.inference_mode()
    def decode_float(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[npt.NDArray[np.float32]]:
        """As `decode` for one call, but samples in -1..1, without a graph."""
        lengths, count, frames = self._upload(slots, codes)
        wave = torch.zeros(count * frames * wire.SAMPLES_PER_FRAME, device=self.device)
        self._module.start_all(self.launches(count, frames, wave))
        rows = wave.view(count, -1).cpu().numpy()
        return [rows[row, : length * wire.SAMPLES_PER_FRAME] for row, length in enumerate(lengths)]

    def replay(self, count: int, frames: int) -> None:
        """Run a recorded call on what is uploaded."""
        self._graphs[count, frames].replay()

    def steps(self, count: int, frames: int) -> list[Step]:
        """What a call for `count` rows does."""
        return self._program.steps(count * frames)

    def launches(self, count: int, frames: int, wave: Tensor | None = None) -> list[Launch]:
        """The kernels of a call for `count` rows."""
        return launches(
            self._program.steps(count * frames), self._weights, self._memory.ring, self.call(count, frames, wave)
        )

    def call(self, count: int, frames: int, wave: Tensor | None = None) -> Call:
        """What the steps of a call share."""
        rows = self._input[: count * ROW].view(count, ROW)
        codes = self._input[count * ROW : count * (ROW + frames * wire.CODEBOOKS)].view(count, frames, wire.CODEBOOKS)
        return Call(count, frames, rows, codes, self._pcm, wave, self._zeros)

    def _upload(self, slots: Sequence[int], codes: Sequence[Codes]) -> tuple[list[int], int, int]:
        """Bring rows and codes to the device and move the streams on; each row's frames, and the bucket."""
        lengths = [len(row) for row in codes]
        count = next(bucket for bucket in self.row_buckets if bucket >= len(slots))
        frames = next(bucket for bucket in FRAMES if bucket >= max(lengths))
        end = count * (ROW + frames * wire.CODEBOOKS)
        host = torch.empty(end, dtype=torch.int32, pin_memory=True)
        numbers = host.numpy()
        rows = numbers[: count * ROW].reshape(count, ROW)
        rows[:] = self.slots, 0, 0, 0  # idle
        rows[: len(slots), 0] = slots
        rows[: len(slots), 1] = self._positions[slots]
        rows[: len(slots), 2] = lengths
        rows[: len(slots), 3] = self._halves[slots]
        padded = numbers[count * ROW :].reshape(count, frames, wire.CODEBOOKS)
        for row, length in enumerate(lengths):
            padded[row, :length] = codes[row]
        self._input[:end].copy_(host, non_blocking=True)
        self._positions[slots] += lengths
        self._halves[slots] ^= 1
        return lengths, count, frames

    def _record(self, count: int, frames: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        kernels = self.launches(count, frames)
        with torch.cuda.graph(graph):
            self._module.start_all(kernels)
        return graph


def _joined(pieces: list[Pcm]) -> Pcm:
    """Pieces of one row, copied only where there are several."""
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, dtype=np.int16), *pieces])


def row_buckets(rows: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, ... and `rows` itself: a third of a call is idle at most."""
    sizes = {size for power in range(rows.bit_length()) for size in (2**power, 3 * 2**power // 2) if size < rows}
    return (*sorted(sizes), rows)
