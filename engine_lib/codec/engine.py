"""The codec's loop: chunks of codes from any thread in, each answered once with samples, in order within a stream.

Knows threads and the profile; order and slots are backlog.py's, decoding is runner.py's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
import torch

from engine_lib import wire
from engine_lib.codec.backlog import Backlog, Turn
from engine_lib.codec.jobs import CodecJob, PcmChunk
from engine_lib.codec.path import make_runner
from engine_lib.codec.runner import Codes, Pcm
from engine_lib.errors import NotReady, ServiceError
from engine_lib.metrics import Samples
from engine_lib.profile import Profile
from engine_lib.turns import CodecTurns

logger = logging.getLogger(__name__)

SILENCE = 32767 * 10 ** (-50 / 20)  # peaks under -50 dBFS are silence


class Decodes(Protocol):
    """What the engine needs of a Runner."""

    @property
    def slots(self) -> int: ...

    @property
    def codebook_size(self) -> int: ...

    @property
    def free_padding(self) -> int: ...

    def reset(self, slot: int) -> None: ...

    def prime(self, slot: int, codes: Codes) -> None: ...

    def decode(self, slots: Sequence[int], codes: Sequence[Codes]) -> list[Pcm]: ...


@dataclass
class Metrics:
    """Counts since the start. The engine's thread writes, any thread reads."""

    batches: int = 0
    rows: int = 0
    frames: int = 0
    failures: int = 0  # streams that ended because decoding failed or their codes were wrong
    timeouts: int = 0  # streams whose next chunk didn't come
    batch_rows: Samples = field(default_factory=Samples)
    batch_s: Samples = field(default_factory=Samples)


class Engine:
    """Owns a runner on one thread. Use it with `with`, or `close` it."""

    def __init__(
        self,
        runner: Decodes,
        profile: Profile,
        *,
        clock: Callable[[], float] = time.monotonic,
        turns: CodecTurns | None = None,
    ) -> None:
        """`turns`: with a talker on the same GPU."""
        self._turns = turns
        self.metrics = Metrics()
        self._runner = runner
        self._rows = profile.codec_rows
        self._withhold = profile.withhold_silent_first_frame
        self._clock = clock
        self._backlog = Backlog(
            runner.slots, profile.codec_idle_timeout_s, self._answer, free_padding=runner.free_padding
        )
        self._inbox: deque[CodecJob | str] = deque()  # chunks, and ids of streams to cancel
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="codec-engine", daemon=True)
        self._thread.start()

    @classmethod
    def from_checkpoint(
        cls, directory: Path, profile: Profile, device: torch.device, turns: CodecTurns | None = None
    ) -> Engine:
        """An engine for the checkpoint whose codec is in `directory`/speech_tokenizer.

        Raises ConfigurationError naming any key or tensor that doesn't fit.
        """
        runner = make_runner(directory / "speech_tokenizer", profile, device)
        logger.info("Codec state: %d slots, %.1f MiB on %s", runner.slots, runner.state_bytes / 2**20, device)
        return cls(runner, profile, turns=turns)

    @property
    def active(self) -> int:
        """Slots held by streams."""
        return self._backlog.active

    def submit(self, job: CodecJob) -> None:
        """Take in a chunk; `job.reply` gets its answer later, or NotReady at once when the engine is closing."""
        if not self._post(job):
            job.reply(NotReady("The codec engine is shutting down."))

    def cancel(self, stream_id: str) -> None:
        """End a stream: its chunks that still wait or come are answered without samples."""
        self._post(stream_id)

    def close(self) -> None:
        """Stop the thread; chunks that still wait are answered with NotReady."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post(self, item: CodecJob | str) -> bool:
        with self._wake:
            if self._closing:
                return False
            self._inbox.append(item)
            self._wake.notify()
            return True

    def _run(self) -> None:
        busy = False
        while self._take(wait=not busy):
            self._expire()
            busy = self._step()
        self._backlog.fail_all(NotReady("The codec engine is shutting down."))

    def _take(self, *, wait: bool) -> bool:
        """Sort what came into the backlog, after waiting for something to do. False: the engine is closing."""
        with self._wake:
            if wait and not self._inbox and not self._closing:
                deadline = self._backlog.deadline()
                self._wake.wait(None if deadline is None else max(0.0, deadline - self._clock()))
            items = list(self._inbox)
            self._inbox.clear()
            closing = self._closing
        now = self._clock()
        for item in items:
            if isinstance(item, str):
                self._backlog.cancel(item, now)
            else:
                self._backlog.add(item, now)
        return not closing

    def _expire(self) -> None:
        if idle := self._backlog.expire(self._clock()):
            logger.warning("Codec streams timed out: %s", ", ".join(idle))
            self.metrics.timeouts += len(idle)

    def _step(self) -> bool:
        """Decode one batch. False: nothing can be decoded now."""
        batch = self._backlog.next_batch(self._rows, self._clock())
        sound = [turn for turn in batch if self._is_sound(turn)]
        if sound:
            self._decode(sound)
        return bool(batch)

    def _is_sound(self, turn: Turn) -> bool:
        """Whether the turn's codes can be decoded; its stream ends otherwise."""
        if all(map(self._is_known, (turn.job.codes, turn.job.primer))):
            return True
        logger.error("Codec stream %s: chunk %d has codes out of range", turn.job.stream_id, turn.job.index)
        self.metrics.failures += 1
        self._backlog.fail(turn, "The speech engine made codes that have no sound.", self._clock())
        return False

    def _is_known(self, codes: Codes) -> bool:
        """Whether these are frames of codes that the decoder has; none at all are fine."""
        shaped = codes.shape[1:] == (wire.CODEBOOKS,)
        return shaped and (not len(codes) or (codes.min() >= 0 and codes.max() < self._runner.codebook_size))

    def _decode(self, batch: list[Turn]) -> None:
        if self._turns is not None:
            self._turns.take()
        begin = self._clock()
        try:
            for turn in batch:
                if turn.fresh and len(turn.job.primer):
                    self._runner.prime(turn.slot, turn.job.primer)
                elif turn.fresh:
                    self._runner.reset(turn.slot)
            decoded = self._runner.decode([turn.slot for turn in batch], [turn.job.codes for turn in batch])
        # Whatever went wrong, it's these streams' end only: the engine must go on for the others.
        except Exception:
            logger.exception("Codec batch failed, streams: %s", ", ".join(turn.job.stream_id for turn in batch))
            self.metrics.failures += len(batch)
            for turn in batch:
                self._backlog.fail(turn, "The speech engine failed on this request.", self._clock())
            return
        finally:
            if self._turns is not None:
                self._turns.give_back(sum(turn.job.index == 0 for turn in batch))
        self.metrics.batches += 1
        self.metrics.rows += len(batch)
        self.metrics.frames += sum(len(turn.job.codes) for turn in batch)
        now = self._clock()
        self.metrics.batch_rows.observe(len(batch))
        self.metrics.batch_s.observe(now - begin)
        for turn, pcm in zip(batch, decoded, strict=True):
            first = self._backlog.frames_before(turn) == 0
            self._backlog.finish(turn, turn.job.chunk(self._audible(pcm) if first else pcm), now)

    def _audible(self, pcm: Pcm) -> Pcm:
        """A stream's first samples, less a silent first frame, which nobody need wait for."""
        start = pcm[: wire.SAMPLES_PER_FRAME]
        silent = self._withhold and np.abs(start.astype(np.int32)).max() < SILENCE
        return pcm[wire.SAMPLES_PER_FRAME :] if silent else pcm

    def _answer(self, job: CodecJob, answer: PcmChunk | ServiceError) -> None:
        try:
            job.reply(answer)
        # A receiver that breaks must not take the other streams with it.
        except Exception:
            logger.exception("Codec stream %s: its receiver failed on chunk %d", job.stream_id, job.index)
