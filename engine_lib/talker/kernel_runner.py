"""The fast path: streams into columns and rows of the frame kernel's launches.

The kernel's results don't depend on which columns share a launch, nor on how a prompt is cut, so any packing keeps the
law of reproducibility. A prompt's last position samples its first frame in the launch that it runs in.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine_lib.talker.frame_kernel import (
    COLUMN,
    FED_BACK,
    FIRST_FRAME,
    GREEDY,
    MAY_END,
    MOST_COLUMNS,
    ROW,
    SUB_GREEDY,
    TILES,
    FrameKernel,
    KernelFailed,
    Launched,
    tiles_for,
)
from engine_lib.talker.frame_weights import pack_talker
from engine_lib.talker.model import Talker
from engine_lib.talker.prefixes import Prefixes
from engine_lib.talker.scheduler import Batch
from engine_lib.talker.step import Step
from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import NOTHING

EVERY = 2**31 - 1  # as a top_k
MOST_AHEAD = 3  # launches of prompts in one step: speakers wait meanwhile
Column = tuple[int, int, int, int, int, int, int]  # the fields of COLUMN up to `code`


@dataclass
class _Plan:
    """One launch: streams that sample, each with its own column, and the positions of prompts that go before them."""

    sampling: list[Stream] = field(default_factory=list)
    own: list[Column] = field(default_factory=list)
    earlier: list[Column] = field(default_factory=list)

    @property
    def room(self) -> int:
        return MOST_COLUMNS - len(self.own) - len(self.earlier)


class KernelRunner:
    """The model with everything that a slot holds, in the frame kernel's layout."""

    path = "frame kernel"
    overlaps = True

    def __init__(
        self, talker: Talker, slots: int, positions: int, prefix_positions: int = 0, *, cache: Path | None
    ) -> None:
        """Packs the weights of `talker`; of prompts' beginnings `prefix_positions` are kept at most.

        Raises CompileError or LaunchError.
        """
        self._scratch = slots  # for launches that only warm up
        self.weights = pack_talker(talker, positions)
        self.kernel = FrameKernel(talker.config, self.weights, slots + 1, positions, cache=cache)
        self.device = self.kernel.device
        keys, values = (kept.transpose(2, 3) for kept in (self.kernel.keys, self.kernel.values))
        self._prefixes = Prefixes(keys, values, most_positions=prefix_positions)
        self._rules = np.zeros(slots + 1, ROW)
        self._voices: dict[int, torch.Tensor] = {}  # by slot, while its prompt runs: [1 + frames, hidden]

    def start(self, batch: Batch) -> Step:
        """Advance prompts and make one frame of every other stream."""
        launches: list[Launched] = []
        sampling: list[Stream] = []
        kind: list[Hashable] = []
        for plan in self._plans(batch):
            columns = _table([*plan.own, *plan.earlier])
            columns["base"] += len(plan.own)
            launches.append(self.kernel.launch(columns, self._rows(plan.sampling)))
            sampling += plan.sampling
            kind.append((tiles_for(len(columns), len(plan.sampling)), bool(plan.sampling)))
        for stream in batch.prefill:
            if not stream.in_prefill:
                self._voices.pop(_slot(stream), None)
                self._prefixes.keep(stream)

        def wait() -> NDArray[np.int32]:
            try:
                return np.concatenate([launched.wait() for launched in launches])
            except KernelFailed:
                self._prefixes.clear()  # any kept since may be wrong
                raise

        def took() -> float:
            took_ms: float = launches[0].begun.elapsed_time(launches[-1].done)
            return took_ms / 1000

        return Step(sampling, wait, tuple(kind), took)

    def warm_up(self, usual: Sampling) -> None:
        """Launch every variant once, so that its code is on the device."""
        self._rules[self._scratch] = _rule(usual, 0)
        for talker_tiles, predictor_tiles in TILES:
            columns = _table([(0, self._scratch, 0, 0, 0, NOTHING, 0)] * talker_tiles * 8)
            rows = np.repeat(self._rules[self._scratch :], predictor_tiles * 8)
            self.kernel.launch(columns, rows).wait()

    def bytes(self) -> int:
        """Memory of all slots' keys and values."""
        return self.kernel.bytes()

    def _plans(self, batch: Batch) -> list[_Plan]:
        """A step's launches in order: prompts first, then those that make frames.

        Prompts share a launch with frames as long as there is room. Of any other all but the end goes before, in
        launches that make no frames, which are twice as fast; so its first frame comes in this step too.
        """
        frames, ahead = [_Plan()], list[_Plan]()
        for stream in batch.decode:
            if frames[-1].room == 0:
                frames.append(_Plan())
            frames[-1].sampling.append(stream)
            frames[-1].own.append((0, _slot(stream), stream.position, stream.position, 0, stream.next_text(), FED_BACK))
        for stream in batch.prefill:
            if stream.prefilled == 0:
                self._begin(stream)
            if frames[-1].room == 0:
                frames.append(_Plan())
            while (left := len(stream.prompt) - stream.prefilled) > frames[-1].room:
                if not ahead or ahead[-1].room == 0:
                    if len(ahead) == MOST_AHEAD:
                        break  # the next step goes on
                    ahead.append(_Plan())
                self._place(stream, ahead[-1], min(left - 1, ahead[-1].room))
            else:
                self._place(stream, frames[-1], left)
        return [plan for plan in (*ahead, *frames) if plan.room < MOST_COLUMNS]

    def _begin(self, stream: Stream) -> None:
        self._rules[_slot(stream)] = _rule(stream.sampling, stream.seed)
        self._prefixes.fill(stream)
        voice = stream.prompt.voice
        if voice is not None and any(row != NOTHING for row in stream.prompt.side[stream.prefilled :]):
            self._voices[_slot(stream)] = self.kernel.voice_embedding(voice.x_vector, voice.codes)

    def _place(self, stream: Stream, plan: _Plan, width: int) -> None:
        """The next `width` positions of a prompt into a launch."""
        prompt, begin, end = stream.prompt, stream.prefilled, stream.prefilled + width
        base = len(plan.earlier)  # among these; the launch's own columns come before them
        for position in range(begin, end):
            side = self._side(stream, position)
            column = (side, _slot(stream), position, begin, base, prompt.text[position], prompt.codec[position])
            if position < len(prompt) - 1:
                plan.earlier.append(column)
            else:
                plan.own.append(column)
                plan.sampling.append(stream)
        stream.prefilled = end

    def _side(self, stream: Stream, position: int) -> int:
        """Where a cloned voice's embedding for a prompt's position lies on the device; 0 where there is none."""
        if stream.prompt.voice is None or (row := stream.prompt.side[position]) == NOTHING:
            return 0
        return self._voices[_slot(stream)][row].data_ptr()

    def _rows(self, streams: list[Stream]) -> NDArray[np.void]:
        rows = self._rules[[_slot(stream) for stream in streams]]
        if streams:
            first = np.array([stream.asked == 0 for stream in streams])
            may_end = np.array([stream.may_end() for stream in streams])
            rows["frame"] = [stream.asked for stream in streams]
            rows["flags"] |= np.where(first, FIRST_FRAME, 0) | np.where(may_end, MAY_END, 0)
        return rows


def _slot(stream: Stream) -> int:
    assert stream.slot is not None
    return stream.slot


def _table(columns: list[Column]) -> NDArray[np.void]:
    return np.array([(*column, 0, 0) for column in columns], COLUMN)


def _rule(sampling: Sampling, seed: int) -> NDArray[np.void]:
    """A stream's rules as the kernel reads them: [1] ROW."""
    rule = np.zeros(1, ROW)
    rule["seed"] = seed
    rule["flags"] = (0 if sampling.temperature else GREEDY) | (0 if sampling.sub_temperature else SUB_GREEDY)
    rule["inverse_temperature"], rule["sub_inverse_temperature"] = (
        1 / (value or 1) for value in (sampling.temperature, sampling.sub_temperature)
    )
    rule["top_k"], rule["sub_top_k"] = (k or EVERY for k in (sampling.top_k, sampling.sub_top_k))
    rule["top_p"], rule["sub_top_p"] = sampling.top_p, sampling.sub_top_p
    rule["penalty"] = sampling.repetition_penalty
    return rule
