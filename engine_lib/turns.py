"""Talker and codec take turns at the GPU that they share.

They are two processes. Left alone the driver slices the GPU's time between them, and stops a frame half-way for a few
of the codec's small kernels: both take longer (docs/benchmarks/talker.md). So before a frame the talker looks whether
the codec has something to decode and lets it go first; the codec waits for the frame that is under way. They tell each
other through a few words of shared memory, in a file. Every wait has a limit, so a partner that died, hangs or was
never there costs a little time and nothing else.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

FRAME, DECODE = 0, 1  # since when it's under way, in ns of the monotonic clock; 0: it isn't
BATCHES, FIRSTS = 2, 3  # batches and streams' first chunks that were decoded
POLL_S = 50e-6
FRAME_LIMIT_S = 0.02  # the codec waits no longer for a frame; a few streams with three launches of prompts take 7 ms
DECODE_LIMIT_S = 0.01  # the talker waits no longer for a batch; 32 chunks of 12 frames take 6.5 ms
FIRST_LIMIT_S = 0.005  # nor for a first chunk to get to the codec and be decoded


class _Words:
    """Shared 64-bit numbers, each written by one side only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            self._map = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)
        self.words = memoryview(self._map).cast("Q")

    def close(self) -> None:
        self.words.release()
        self._map.close()
        self._path.unlink(missing_ok=True)


class TalkerTurns:
    """The talker's side."""

    def __init__(self, path: Path) -> None:
        self._shared = _Words(path)
        self._words = self._shared.words
        self._words[FRAME] = 0
        self._firsts = 0  # as many first chunks are decoded when those are that were announced
        self._firsts_until = 0.0  # seconds
        self._batches: int | None = None  # decoded when the wait for a batch began

    def begin(self) -> None:
        """A frame is under way from now on."""
        self._words[FRAME] = time.monotonic_ns()

    def end(self) -> None:
        """No frame is under way."""
        self._words[FRAME] = 0

    def first_chunk(self) -> None:
        """A stream's first chunk has just left for the codec."""
        self._firsts = max(self._firsts, self._words[FIRSTS]) + 1
        self._firsts_until = time.monotonic() + FIRST_LIMIT_S

    def are_the_codecs(self) -> bool:
        """Whether the next frame should wait: for first chunks on their way, or for one batch that has begun."""
        if self._words[FIRSTS] < self._firsts:
            if time.monotonic() < self._firsts_until:
                return True
            self._firsts = 0  # the codec has lost them, or ended their streams
        since = self._words[DECODE]
        if since and time.monotonic_ns() - since < DECODE_LIMIT_S * 1e9:
            if self._batches is None:
                self._batches = self._words[BATCHES]
            if self._words[BATCHES] == self._batches:
                return True
        self._batches = None
        return False

    def wait(self) -> None:
        """Let the codec have its turn."""
        while self.are_the_codecs():
            time.sleep(POLL_S)

    def close(self) -> None:
        """Tell the codec that no frame is under way, and let the memory go."""
        self.end()
        self._shared.close()


class CodecTurns:
    """The codec's side."""

    def __init__(self, path: Path) -> None:
        self._shared = _Words(path)
        self._words = self._shared.words
        self._words[DECODE] = 0

    def take(self) -> None:
        """Ask for the GPU, and wait until no frame is under way."""
        now = time.monotonic_ns()
        self._words[DECODE] = now
        until = now + int(FRAME_LIMIT_S * 1e9)
        while self._words[FRAME] and time.monotonic_ns() < until:
            time.sleep(POLL_S)

    def give_back(self, first_chunks: int) -> None:
        """A batch is decoded, with so many streams' first chunks."""
        self._words[FIRSTS] += first_chunks
        self._words[BATCHES] += 1
        self._words[DECODE] = 0

    def close(self) -> None:
        """Tell the talker that nothing is being decoded, and let the memory go."""
        self._words[DECODE] = 0
        self._shared.close()
