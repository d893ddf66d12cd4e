"""The plain path: one step of many streams in plain torch operations. The oracle of the frame kernel.

The law of reproducibility lives here. A matrix product's last bits depend on its shape but, within one shape, not on
the neighbouring rows. So every product runs on tiles of a fixed number of rows, padded with idle ones: a tile's shape
follows from a row's own position alone, never from who else runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_lib.cuda_graph import Graphs
from engine_lib.talker.config import SUPPRESSED_TAIL
from engine_lib.talker.kv_cache import KVCache
from engine_lib.talker.model import Talker
from engine_lib.talker.prefixes import Prefixes
from engine_lib.talker.random_numbers import uniforms
from engine_lib.talker.sampler import NEVER, Rules, Shape, choose, penalise
from engine_lib.talker.scheduler import Batch
from engine_lib.talker.step import Step
from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import NOTHING
from engine_lib.wire import CODEBOOKS

PREFILL_ROWS, PREFILL_WIDTH = 4, 16  # one prefill tile: prompts side by side, positions of each
PREFILL_ROUNDS = 4  # prefill tiles a stream may take in one step, so that long prompts don't starve the speaking
LEAST_CONTEXT = 64  # cache positions that attention reads at least; then doubled as a stream grows
IDLE = Sampling(0.0, 1, 1.0, 1.0, 0.0, 1, 1.0)


class Runner:
    """The model with everything that a slot holds on the device."""

    def __init__(self, talker: Talker, slots: int, positions: int, row_tile: int, prefix_positions: int = 0) -> None:
        """`slots` streams of `positions` (prompt and frames) each; products run on `row_tile` rows at a time.

        Of prompts' beginnings `prefix_positions` are kept at most.
        """
        sizes = talker.config.talker
        weight = talker.codec_head.weight
        self.device = weight.device
        self.path = "plain"
        self.overlaps = self.device.type == "cuda"
        self._talker = talker
        self._row_tile = row_tile
        # Prefill tiles write whole, so the last one may reach past the prompt's end.
        positions = -(-positions // PREFILL_WIDTH) * PREFILL_WIDTH
        self.cache = KVCache(sizes.layers, slots, positions, sizes.kv_heads, sizes.head_dim, weight.dtype, self.device)
        self._prefixes = Prefixes(
            self.cache.keys, self.cache.values, most_positions=prefix_positions, multiple=PREFILL_WIDTH
        )
        self._hidden = torch.zeros(slots + 1, sizes.hidden, dtype=weight.dtype, device=self.device)
        self._codes = torch.zeros(slots + 1, CODEBOOKS, dtype=torch.long, device=self.device)
        self._seen = torch.zeros(slots + 1, sizes.vocabulary, dtype=torch.bool, device=self.device)
        self._true = torch.ones((), dtype=torch.bool, device=self.device)
        self._clones = talker.config.kind == "base"
        self._voices: dict[int, Tensor] = {}  # by slot, while its prompt runs: [1 + frames, hidden]
        self._graphs = Graphs(self.device, self.cache.scratch)
        ids = torch.arange(sizes.vocabulary, device=self.device)
        self._eos = talker.config.ids.codec_eos
        self._suppressed = (ids >= sizes.vocabulary - SUPPRESSED_TAIL) & (ids != self._eos)

    @torch.inference_mode()
    def start(self, batch: Batch) -> Step:
        """Advance prompts and make one frame of every other stream."""
        for stream in batch.prefill:
            if stream.prefilled == 0:
                self._seen[stream.slot] = False
                self._take_voice(stream)
                self._prefixes.fill(stream)
        prompts = list(batch.prefill)
        for _ in range(PREFILL_ROUNDS):
            for context, rows in _tiles(prompts, PREFILL_ROWS, self._prefill_context):
                self._prefill(rows, context)
            prompts = [stream for stream in prompts if stream.in_prefill]
        finished = [stream for stream in batch.prefill if not stream.in_prefill]
        for stream in finished:
            self._prefixes.keep(stream)
        for context, rows in _tiles(batch.decode, self._row_tile, self._decode_context):
            self._decode(rows, context)
        sampling = [*batch.decode, *finished]
        frames = [self._frame(rows) for _, rows in _tiles(sampling, self._row_tile, lambda stream: 0)]
        return Step(sampling, self._fetch(torch.cat(frames)) if frames else _nothing)

    def _fetch(self, codes: Tensor) -> Callable[[], NDArray[np.int32]]:
        """Begin to copy codes [streams, 16] to the host; the result waits for them."""
        here = torch.empty(codes.shape, dtype=torch.int32, pin_memory=self.overlaps)
        here.copy_(codes, non_blocking=True)
        if not self.overlaps:
            return here.numpy
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def wait() -> NDArray[np.int32]:
            done.synchronize()
            return here.numpy()

        return wait

    @torch.inference_mode()
    def warm_up(self, usual: Sampling) -> None:
        """Record the graphs of every context size, and of frames sampled as `usual`, before anyone waits for them."""
        if self.device.type == "cpu":
            return
        context = 0
        while context < self.cache.positions:
            context = self._context(context + 1)
            self._prefill([], context)
            self._decode([], context)
        self._frame([], usual)

    def bytes(self) -> int:
        """Memory of all slots' keys and values."""
        return self.cache.bytes()

    def _prefill(self, streams: Sequence[Stream], context: int) -> None:
        """Run the next PREFILL_WIDTH positions of up to PREFILL_ROWS prompts."""
        text = np.full((PREFILL_ROWS, PREFILL_WIDTH), NOTHING)
        codec = np.full((PREFILL_ROWS, PREFILL_WIDTH), NOTHING)
        starts = np.zeros(PREFILL_ROWS, np.int64)
        final = np.zeros(PREFILL_ROWS, np.int64)
        for row, stream in enumerate(streams):
            begin = stream.prefilled
            part = slice(begin, begin + PREFILL_WIDTH)
            width = len(stream.prompt.text[part])
            text[row, :width], codec[row, :width] = stream.prompt.text[part], stream.prompt.codec[part]
            starts[row], final[row] = begin, width - 1
            stream.prefilled += width
        side = self._voice_side(streams, starts) if self._clones else ()
        self._graphs.run(
            ("prefill", context),
            functools.partial(self._prefill_tile, context),
            self._slots(streams, PREFILL_ROWS),
            self._tensor(text),
            self._tensor(codec),
            self._tensor(starts[:, None] + np.arange(PREFILL_WIDTH)),
            self._tensor(final),
            *side,
        )

    def _prefill_tile(
        self, context: int, slots: Tensor, text: Tensor, codec: Tensor, positions: Tensor, final: Tensor, *side: Tensor
    ) -> Tensor:
        x = self._talker.prompt_embedding(text, codec, *side)
        states = self._talker(x, self.cache, slots, positions, context)
        rows = torch.arange(PREFILL_ROWS, device=self.device)
        return self._hidden.index_copy_(0, slots, states[rows, final])

    def _take_voice(self, stream: Stream) -> None:
        """Embed the cloned voice of a stream whose prompt begins."""
        voice = stream.prompt.voice
        if voice is not None and stream.slot is not None:
            x_vector, codes = self._tensor(voice.x_vector), self._tensor(voice.codes.astype(np.int64))
            self._voices[stream.slot] = self._talker.voice_embedding(x_vector, codes)

    def _voice_side(self, streams: Sequence[Stream], starts: NDArray[np.int64]) -> tuple[Tensor]:
        """What cloned voices add to a prefill tile: [PREFILL_ROWS, PREFILL_WIDTH, hidden]."""
        side = self._hidden.new_zeros(PREFILL_ROWS, PREFILL_WIDTH, self._hidden.shape[1])
        for row, (stream, begin) in enumerate(zip(streams, starts, strict=False)):
            picked = self._tensor(np.array(stream.prompt.side[begin : begin + PREFILL_WIDTH]))
            if stream.slot in self._voices:
                rows = self._voices[stream.slot][picked.clamp(min=0)]
                side[row, : len(picked)] = rows * (picked >= 0)[:, None]
                if not stream.in_prefill:
                    del self._voices[stream.slot]
        return (side,)

    def _decode(self, streams: Sequence[Stream], context: int) -> None:
        """Feed back the latest frame of up to `row_tile` streams."""
        idle = self._row_tile - len(streams)
        text = self._tensor(np.array([stream.next_text() for stream in streams] + [NOTHING] * idle))
        positions = self._tensor(np.array([stream.position for stream in streams] + [0] * idle))
        self._graphs.run(
            ("decode", context),
            functools.partial(self._decode_tile, context),
            self._slots(streams, self._row_tile),
            text,
            positions[:, None],
        )

    def _decode_tile(self, context: int, slots: Tensor, text: Tensor, positions: Tensor) -> Tensor:
        x = self._talker.frame_embedding(self._codes[slots]) + self._talker.text_side(text)
        states = self._talker(x[:, None], self.cache, slots, positions, context)
        return self._hidden.index_copy_(0, slots, states[:, 0])

    def _frame(self, streams: Sequence[Stream], idle_rules: Sampling = IDLE) -> Tensor:
        """Sample a frame of up to `row_tile` streams from their states: codes [streams, 16]."""
        idle = self._row_tile - len(streams)
        seeds = np.array([stream.seed for stream in streams] + [0] * idle, np.uint64)
        frames = np.array([stream.asked for stream in streams] + [0] * idle)
        rules = [stream.sampling for stream in streams] + [idle_rules] * idle
        first = Rules.of(*_columns((r.temperature, r.top_k, r.top_p) for r in rules), self.device)
        others = Rules.of(*_columns((r.sub_temperature, r.sub_top_k, r.sub_top_p) for r in rules), self.device)
        codes = self._graphs.run(
            ("frame", first.shape, others.shape),
            functools.partial(self._frame_tile, first.shape, others.shape),
            self._slots(streams, self._row_tile),
            self._tensor(uniforms(seeds, frames)),
            self._tensor(np.array([r.repetition_penalty for r in rules], np.float32)),
            self._tensor(np.array([not stream.may_end() for stream in streams] + [True] * idle)),
            *first.tensors,
            *others.tensors,
        )
        return codes[: len(streams)].clone()  # the next tile's replay writes to the same place

    def _frame_tile(
        self,
        first_shape: Shape,
        others_shape: Shape,
        slots: Tensor,
        numbers: Tensor,
        penalty: Tensor,
        endless: Tensor,
        *settings: Tensor,
    ) -> Tensor:
        first_rules, other_rules = Rules(first_shape, *settings[:4]), Rules(others_shape, *settings[4:])
        hidden = self._hidden[slots]
        logits = penalise(self._talker.codec_head(hidden).float(), self._seen[slots], penalty)
        logits = logits.masked_fill(self._suppressed, NEVER)
        logits[:, self._eos].masked_fill_(endless, NEVER)
        first = choose(logits, first_rules, numbers[:, 0])
        others = self._talker.code_predictor(
            hidden,
            self._talker.model.codec_embedding(first),
            lambda group, logits: choose(logits, other_rules, numbers[:, group]),
        )
        codes = torch.cat((first[:, None], others), dim=1)
        self._codes.index_copy_(0, slots, codes)
        self._seen.index_put_((slots, first), self._true)
        return codes

    def _prefill_context(self, stream: Stream) -> int:
        return self._context(stream.prefilled + PREFILL_WIDTH)

    def _decode_context(self, stream: Stream) -> int:
        return self._context(stream.position + 1)

    def _context(self, positions: int) -> int:
        """The fixed size that covers `positions`: LEAST_CONTEXT doubled as often as it takes, the slot's at most."""
        size = LEAST_CONTEXT
        while size < positions:
            size *= 2
        return min(size, self.cache.positions)

    def _slots(self, streams: Sequence[Stream], rows: int) -> Tensor:
        slots = np.full(rows, self.cache.scratch)
        slots[: len(streams)] = [stream.slot for stream in streams]
        return self._tensor(slots)

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)


def _tiles(
    streams: Iterable[Stream], rows: int, context: Callable[[Stream], int]
) -> Iterator[tuple[int, list[Stream]]]:
    """Tiles of up to `rows` streams that share one context size."""
    for size, group in groupby(sorted(streams, key=context), key=context):
        members = list(group)
        for begin in range(0, len(members), rows):
            yield size, members[begin : begin + rows]


def _nothing() -> NDArray[np.int32]:
    return np.empty((0, CODEBOOKS), np.int32)


def _columns(rows: Iterable[tuple[float, int, float]]) -> tuple[list[float], list[int], list[float]]:
    first, second, third = zip(*rows, strict=True)
    return list(first), list(second), list(third)
