"""What the codec engine takes and gives: one chunk of frames in, one chunk of samples out. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine_lib.errors import ServiceError
from engine_lib.wire import CODEBOOKS


@dataclass(frozen=True, eq=False)
class PcmChunk:
    """The samples of one chunk [samples] at 24 kHz, and what came with its frames, passed through."""

    pcm: npt.NDArray[np.int16]
    index: int
    last: bool
    finish_reason: str
    usage: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class CodecJob:
    """One chunk of a stream: codes [frames, 16], the `index`-th of its stream. `reply` is called exactly once.

    Without frames and stream id it's a heartbeat. `primer` [frames, 16], of a first chunk only: a voice's sample, which
    the stream's sound goes on from without sounding it. `reply` runs on the engine's thread: it must return at once.
    """

    stream_id: str
    index: int
    codes: npt.NDArray[np.int32]
    last: bool
    finish_reason: str  # wire.FinishReason on the last chunk, else empty
    usage: npt.NDArray[np.int32]
    reply: Callable[[PcmChunk | ServiceError], None]
    primer: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty((0, CODEBOOKS), np.int32))

    def chunk(self, pcm: npt.NDArray[np.int16]) -> PcmChunk:
        """The answer with these samples."""
        return PcmChunk(pcm, self.index, self.last, self.finish_reason, self.usage)

    def silence(self) -> PcmChunk:
        """The answer without samples."""
        return self.chunk(np.zeros(0, dtype=np.int16))
