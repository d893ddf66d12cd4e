"""Keep each stream's chunks in order, give streams slots, and choose which chunks are decoded together next.

Knows indices, slots and deadlines; knows nothing of tensors, decoding or threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_lib.codec.jobs import CodecJob, PcmChunk
from engine_lib.errors import GenerationFailed, ServiceError
from engine_lib.wire import FRAME_SECONDS, FinishReason

Answer = Callable[[CodecJob, PcmChunk | ServiceError], None]

MAX_ENDED = 4096  # streams remembered that ended before their last chunk
GATHER_PART = 1 / 32  # of its own length in time, that a chunk may wait for others to be decoded with
GATHER_LAST_S = 0.002  # as long a last chunk waits: somebody waits for the end


@dataclass(frozen=True, eq=False)
class _Arrived:
    """A chunk that is here."""

    job: CodecJob
    order: int  # of arrival
    due: float  # when it waits for no others any more


@dataclass
class _Stream:
    """One utterance's chunks that are here, and what comes next."""

    id: str
    touched: float  # when a chunk last came or was answered
    next_index: int = 0
    chunks: dict[int, _Arrived] = field(default_factory=dict)  # by index
    slot: int | None = None
    frames: int = 0  # decoded so far

    def head(self) -> _Arrived | None:
        """The chunk that may be decoded now."""
        return self.chunks.get(self.next_index)


@dataclass
class _Ended:
    """How chunks that come after a stream's early end are answered: None is without samples, as for a cancelled one."""

    reason: str | None
    next_index: int
    until: float  # when it's forgotten


@dataclass(frozen=True, eq=False)
class Turn:
    """One row of the next batch. fresh: its slot must be reset first."""

    job: CodecJob
    slot: int
    fresh: bool


class Backlog:
    """All streams that have a chunk here or a slot. `answer` gets each chunk that is answered without decoding.

    A stream ends by its last chunk, by cancel, by failure, or `idle_timeout_s` after it had nothing to decode. Ids may
    be used again: after an early end, from the second chunk with index 0, or once the early end is forgotten, which
    takes `idle_timeout_s`.
    """

    def __init__(self, slots: int, idle_timeout_s: float, answer: Answer, *, free_padding: int = 0) -> None:
        """`free_padding`: as many frames of padding cost no more than a batch of its own."""
        self._free = list(range(slots - 1, -1, -1))
        self._idle_timeout_s = idle_timeout_s
        self._answer = answer
        self._free_padding = free_padding
        self._streams: dict[str, _Stream] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._arrivals = 0
        self.active = 0  # slots held

    def add(self, job: CodecJob, now: float) -> None:
        """Take in a chunk, or answer it at once: a heartbeat, a repeated index, a chunk of a stream that has ended."""
        if not job.stream_id and not len(job.codes):
            self._answer(job, job.silence())
            return
        if self._has_ended(job, now):
            return
        stream = self._streams.setdefault(job.stream_id, _Stream(job.stream_id, now))
        if job.index < stream.next_index or job.index in stream.chunks:
            self._answer(job, GenerationFailed(f"Chunk {job.index} of this stream came twice."))
            return
        self._arrivals += 1
        stream.chunks[job.index] = _Arrived(job, self._arrivals, now + _patience(job))
        stream.touched = now
        self._advance(stream, now)

    def cancel(self, stream_id: str, now: float) -> None:
        """End a stream: its chunks here, and those that still come, are answered without samples."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._end(stream, None, now)
        elif stream_id not in self._ended:  # its first chunk may be on its way
            self._remember(stream_id, None, 0, now)

    def expire(self, now: float) -> list[str]:
        """End the streams that had nothing to decode for too long; their ids."""
        idle = [
            stream
            for stream in self._streams.values()
            if stream.head() is None and now - stream.touched >= self._idle_timeout_s
        ]
        for stream in idle:
            self._end(stream, "This stream's next chunk didn't come in time.", now)
        return [stream.id for stream in idle]

    def deadline(self) -> float | None:
        """When the next stream would expire or a chunk stops waiting for others; None while none can."""
        ends = [stream.touched + self._idle_timeout_s for stream in self._streams.values() if stream.head() is None]
        return min([*ends, *(head.due for _, head in self._ready())], default=None)

    def next_batch(self, most: int, now: float) -> list[Turn]:
        """At most `most` chunks of different streams, first chunks of streams before others.

        Chunks of like size go together, and others as far as their padding costs less than a batch of their own.
        None of them while every chunk here can still wait for others to come. Each must be followed by `finish` or
        `fail`.
        """
        ready = self._ready()
        if len(ready) < min(most, len(self._streams)) and all(now < head.due for _, head in ready):
            return []
        ready.sort(key=lambda pair: (pair[1].job.index != 0, pair[1].order))
        turns: list[Turn] = []
        for stream, head in ready:
            if not self._fits(turns, head.job):
                continue
            fresh = stream.slot is None
            if stream.slot is None:
                if not self._free:
                    continue
                stream.slot = self._free.pop()
                self.active += 1
            turns.append(Turn(head.job, stream.slot, fresh))
            if len(turns) == most:
                break
        return turns

    def _ready(self) -> list[tuple[_Stream, _Arrived]]:
        """Streams with the chunk that may be decoded now, for which there is a slot."""
        return [
            (stream, head)
            for stream in self._streams.values()
            if (head := stream.head()) is not None and (stream.slot is not None or self._free)
        ]

    def _fits(self, batch: list[Turn], job: CodecJob) -> bool:
        if not batch or _size(job) == _size(batch[0].job):
            return True
        lengths = [*(len(turn.job.codes) for turn in batch), len(job.codes)]
        return max(lengths) * len(lengths) - sum(lengths) <= self._free_padding

    def frames_before(self, turn: Turn) -> int:
        """Frames of the turn's stream that were decoded before."""
        return self._streams[turn.job.stream_id].frames

    def finish(self, turn: Turn, chunk: PcmChunk, now: float) -> None:
        """Answer a decoded chunk and make its stream's next one ready."""
        stream = self._streams[turn.job.stream_id]
        stream.frames += len(turn.job.codes)
        self._conclude(stream, turn.job, chunk, now)
        self._advance(stream, now)

    def fail(self, turn: Turn, message: str, now: float) -> None:
        """Answer a chunk and all others of its stream with GenerationFailed."""
        self._end(self._streams[turn.job.stream_id], message, now)

    def fail_all(self, error: ServiceError) -> None:
        """Answer every chunk here with `error`."""
        for stream in list(self._streams.values()):
            self._release(stream)
            for chunk in stream.chunks.values():
                self._answer(chunk.job, error)

    def _has_ended(self, job: CodecJob, now: float) -> bool:
        """Whether the chunk belongs to a stream that ended early; it's answered then."""
        ended = self._ended.get(job.stream_id)
        if ended is None:
            return False
        if now >= ended.until or (job.index == 0 and ended.next_index > 0):
            del self._ended[job.stream_id]
            return False
        ended.next_index = max(ended.next_index, job.index + 1)
        self._answer(job, job.silence() if ended.reason is None else GenerationFailed(ended.reason))
        return True

    def _advance(self, stream: _Stream, now: float) -> None:
        """Answer the chunks at the stream's head that need no decoding."""
        while (head := stream.head()) is not None:
            job = head.job
            if job.finish_reason == FinishReason.FAILED:
                self._conclude(stream, job, GenerationFailed("The speech engine failed on this request."), now)
            elif not len(job.codes):
                self._conclude(stream, job, job.silence(), now)
            else:
                return

    def _conclude(self, stream: _Stream, job: CodecJob, answer: PcmChunk | ServiceError, now: float) -> None:
        """Answer the stream's head; after the last chunk the stream is gone."""
        del stream.chunks[stream.next_index]
        stream.next_index += 1
        stream.touched = now
        if job.last:
            self._release(stream)
        self._answer(job, answer)
        if job.last:
            for late in stream.chunks.values():
                message = f"Chunk {late.job.index} comes after its stream's last one."
                self._answer(late.job, GenerationFailed(message))
            stream.chunks.clear()

    def _end(self, stream: _Stream, reason: str | None, now: float) -> None:
        """End a stream before its last chunk."""
        self._release(stream)
        self._remember(stream.id, reason, max(stream.chunks, default=stream.next_index - 1) + 1, now)
        for index in sorted(stream.chunks):
            job = stream.chunks[index].job
            self._answer(job, job.silence() if reason is None else GenerationFailed(reason))

    def _release(self, stream: _Stream) -> None:
        del self._streams[stream.id]
        if stream.slot is not None:
            self._free.append(stream.slot)
            self.active -= 1

    def _remember(self, stream_id: str, reason: str | None, next_index: int, now: float) -> None:
        self._ended[stream_id] = _Ended(reason, next_index, now + self._idle_timeout_s)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


def _patience(job: CodecJob) -> float:
    """How long a chunk waits for others, in seconds: much less than its stream is ahead of its listener by then."""
    if job.index == 0:
        return 0.0
    return GATHER_LAST_S if job.last else GATHER_PART * FRAME_SECONDS * len(job.codes)


def _size(job: CodecJob) -> int:
    """Chunks of like size share a batch, so that padding at most doubles the work."""
    return (len(job.codes) - 1).bit_length()
