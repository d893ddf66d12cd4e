"""Run the decoder for a batch of rows: frames in, samples out, each row's stream going on where it was.

Knows arrays and slots; knows nothing of streams, order or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_lib import wire
from engine_lib.codec.model import Decoder
from engine_lib.codec.streaming import Rows, StateStore

Codes = npt.NDArray[np.integer[Any]]  # [frames, 16]
Pcm = npt.NDArray[np.int16]  # [samples]

PIECE_FRAMES = 25  # a longer chunk is decoded in pieces ...
CALL_FRAMES = 400  # ... and so are many rows of long chunks: both bound the memory of a call, to 4 GB in float32
PRIMED_VOICES = 32  # whose state is remembered


class Runner:
    """A decoder with `slots` streams' state. Not thread-safe: one thread calls it."""

    def __init__(
        self, decoder: Decoder, slots: int, *, piece_frames: int = PIECE_FRAMES, primed: int = PRIMED_VOICES
    ) -> None:
        weight = decoder.pre_conv.conv.weight
        self.device = weight.device
        self.codebook_size = decoder.config.codebook_size
        self._decoder = decoder
        self._store = StateStore(decoder, slots, weight.dtype, weight.device)
        self._positions = np.zeros(slots, dtype=np.int64)  # frames that each slot's stream has had
        self._piece_frames = piece_frames
        self._primed: OrderedDict[bytes, Tensor] = OrderedDict()  # by a sample's codes: a slot's numbers
        self._most_primed = primed

    @property
    def slots(self) -> int:
        """Streams whose state fits."""
        return len(self._positions)

    @property
    def free_padding(self) -> int:
        """Frames of padding that cost no more than a call of their own: none, since arithmetic takes the time here."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Memory of all slots' state."""
        return self._store.bytes()

    def reset(self, slot: int) -> None:
        """Make `slot` ready for a new stream."""
        with torch.inference_mode():
            self._store.reset(slot)
        self._positions[slot] = 0

    def prime(self, slot: int, codes: Codes) -> None:
        """Make `slot` ready for a new stream that goes on from `codes` [frames, 16], as if they had been decoded.

        The state that the latest few samples lead to is remembered, so that a known voice costs one copy.
        """
        key = codes.astype(np.int32).tobytes()
        with torch.inference_mode():
            if key in self._primed:
                self._store.numbers[slot] = self._primed[key]
                self._positions[slot] = len(codes)
            else:
                self.reset(slot)
                self._decode([slot], [codes], as_int16=True)
                self._primed[key] = self._store.numbers[slot].clone()
            self._primed.move_to_end(key)
            if len(self._primed) > self._most_primed:
                self._primed.popitem(last=False)

    def decode(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[Pcm]:
        """16-bit samples [frames * 1,920] of each row's next frames [frames, 16]; no slot twice.

        After an exception these slots' state is of no use: reset them.
        """
        return [samples.numpy() for samples in self._decode(slots, codes, as_int16=True)]

    def decode_float(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[npt.NDArray[np.float32]]:
        """As `decode`, but samples in -1..1."""
        return [samples.numpy() for samples in self._decode(slots, codes, as_int16=False)]

    def _decode(self, slots: Sequence[int], codes: Sequence[Codes], *, as_int16: bool) -> list[Tensor]:
        """Piece by piece; rows that run out of frames drop out."""
        pieces: list[list[Tensor]] = [[] for _ in slots]
        longest = max((len(row) for row in codes), default=0)
        for done in range(0, longest, self._piece_frames):
            going = [row for row in range(len(slots)) if len(codes[row]) > done]
            together = max(1, CALL_FRAMES // min(longest - done, self._piece_frames))
            for group in (going[begin : begin + together] for begin in range(0, len(going), together)):
                parts = [codes[row][done : done + self._piece_frames] for row in group]
                decoded = self._piece([slots[row] for row in group], parts, as_int16=as_int16)
                for row, samples in zip(group, decoded, strict=True):
                    pieces[row].append(samples)
        dtype = torch.int16 if as_int16 else torch.float32
        return [torch.cat(row) if row else torch.empty(0, dtype=dtype) for row in pieces]

    @torch.inference_mode()
    def _piece(self, slots: list[int], codes: list[Codes], *, as_int16: bool) -> list[Tensor]:
        """One decoder call for rows of at least one frame each."""
        lengths = [len(row) for row in codes]
        frames = max(lengths)
        padded = np.zeros((len(slots), frames, wire.CODEBOOKS), dtype=np.int64)
        for row, length in enumerate(lengths):
            padded[row, :length] = codes[row]
        rows = Rows(
            slots=torch.tensor(slots, device=self.device),
            starts=torch.from_numpy(self._positions[slots]).to(self.device),
            lengths=torch.tensor(lengths, device=self.device),
            frames=frames,
            even=min(lengths) == frames,
        )
        # TF32 rounds a convolution's inputs to 11 bits: the same frames in another batch would be off by many steps.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            samples = self._decoder(torch.from_numpy(padded).to(self.device), rows)
        samples = samples.float()
        if as_int16:
            samples = (samples * 32767).round().to(torch.int16)
        self._positions[slots] += lengths
        host = samples.cpu()
        return [host[row, : length * wire.SAMPLES_PER_FRAME] for row, length in enumerate(lengths)]
