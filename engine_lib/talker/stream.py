"""One utterance from its prompt to its last chunk. Knows ids, counts and the clock; knows no tensors and no Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine_lib.errors import ServiceError
from engine_lib.text.prompt import Prompt
from engine_lib.wire import CODEBOOKS, FRAME_SECONDS, FinishReason

MIN_NEW_TOKENS = 2  # hard-coded in the official package: no end of speech among the first two samples


@dataclass(frozen=True)
class Sampling:
    """One stream's rules for the first code and for the other fifteen. A temperature of 0 is greedy, top_k 0 is all."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    sub_temperature: float
    sub_top_k: int
    sub_top_p: float


@dataclass(frozen=True)
class Chunk:
    """Frames that travel together: codes int32 [frames, 16]. The last chunk says why the stream ended."""

    stream_id: str
    codes: NDArray[np.int32]
    index: int
    finish_reason: FinishReason | None
    text_tokens: int
    frames: int  # of the stream so far, these included
    primer: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, CODEBOOKS), np.int32))  # see wire.PRIMER

    @property
    def last(self) -> bool:
        return self.finish_reason is not None

    @classmethod
    def ending(cls, stream_id: str, reason: FinishReason) -> Chunk:
        """The only chunk of a stream that ended before its first."""
        return cls(stream_id, np.empty((0, CODEBOOKS), np.int32), 0, reason, 0, 0)


Deliver = Callable[[Chunk | ServiceError], None]


class Stream:
    """What the engine remembers of an utterance. The engine's thread alone touches it once it was submitted."""

    def __init__(
        self,
        stream_id: str,
        prompt: Prompt,
        *,
        sampling: Sampling,
        seed: int,
        limit: int,
        chunk_schedule: Sequence[int],
        hurry_lead_s: float,
        eos_id: int,
        pad_id: int,
        ignore_eos: bool,
        mask_eos: bool,
        deliver: Deliver,
        limit_is_asked: bool = False,
        text_open: bool = False,
    ) -> None:
        """`limit` counts sampled frames; the last one sampled within it has no codes of its own (model.md 4).

        `hurry_lead_s`: with less sound than this ahead of the listener, chunks leave before they are full.
        `text_open`: more of the text may come by `feed`, until `close_text`.
        """
        self.id = stream_id
        self.prompt = prompt
        self.sampling = sampling
        self.seed = seed
        self.limit = limit
        self.limit_is_asked = limit_is_asked  # by the client, who won't wonder that it's reached
        self.deliver = deliver
        self.slot: int | None = None
        self.prefilled = 0  # prompt positions in the cache
        self.asked = 0  # samples that steps were started for; ahead of `sampled` while one is on its way
        self.sampled = 0  # first codes drawn, the end of speech included
        self.frames = 0
        self.finish_reason: FinishReason | None = None
        self.arrived = 0.0  # seconds, when the scheduler took it in
        self.last_step = 0  # number of the scheduler's step that last ran it, or took it in
        self._schedule = chunk_schedule
        self._hurry_lead_s = hurry_lead_s
        self._eos_id, self._pad_id = eos_id, pad_id
        self._ignore_eos, self._mask_eos = ignore_eos, mask_eos
        self.text_tokens = prompt.text_tokens
        self._trailing = list(prompt.trailing)
        self._text_open = text_open
        self._pending: list[NDArray[np.int32]] = []
        self._chunks = 0
        self._delivered_frames = 0
        self._first_delivery: float | None = None

    @property
    def in_prefill(self) -> bool:
        """Whether part of the prompt is still to be run."""
        return self.prefilled < len(self.prompt)

    @property
    def has_spoken(self) -> bool:
        """Whether a chunk with sound has left."""
        return self._first_delivery is not None

    @property
    def is_about_to_speak(self) -> bool:
        """Whether one more frame makes the first chunk."""
        return not self._chunks and len(self._pending) + 1 >= self._schedule[0]

    @property
    def position(self) -> int:
        """The cache position of the frame that the next step feeds back."""
        return len(self.prompt) + self.asked - 1

    @property
    def runnable(self) -> bool:
        """Whether the next step can run: False while the text to feed with it is still to be written.

        Nor is a sample beyond the limit asked for. But the limit may come down when the text ends, even below what was
        sampled; then one more sample finds out.
        """
        if self.in_prefill:
            return True
        has_text = not self._text_open or self.asked <= len(self._trailing)
        return has_text and self.asked < max(self.limit, self.sampled + 1)

    @property
    def text_open(self) -> bool:
        """Whether more text may come."""
        return self._text_open

    def feed(self, tokens: Sequence[int]) -> None:
        """Add tokens of a text that is still being written."""
        self._trailing += tokens
        self.text_tokens += len(tokens)

    def close_text(self, end_id: int, limit: int) -> None:
        """End the text with `end_id`; now that its length is known, at most `limit` frames are sampled in all."""
        self._trailing.append(end_id)
        self._text_open = False
        self.limit = min(self.limit, limit)

    def next_text(self) -> int:
        """The text-side id that the step feeding back the latest frame adds (model.md 5.4)."""
        place = self.asked - 1
        return self._trailing[place] if place < len(self._trailing) else self._pad_id

    def may_end(self) -> bool:
        """Whether the next sample may be the end of speech."""
        text_is_out = not self._text_open and self.asked >= len(self._trailing)
        return self.asked >= MIN_NEW_TOKENS and not self._ignore_eos and (text_is_out or not self._mask_eos)

    def accept(self, codes: NDArray[np.int32]) -> bool:
        """Take the codes [16] that a step sampled. True: they are one more frame. False: the end."""
        self.sampled += 1
        if codes[0] == self._eos_id:
            self.finish_reason = FinishReason.STOP
        elif self.sampled >= self.limit:
            self.finish_reason = FinishReason.LENGTH
        else:
            self.frames += 1
            self._pending.append(codes)
        return self.finish_reason is None

    def end(self, reason: FinishReason) -> None:
        """End early; what wasn't delivered yet is dropped."""
        self.finish_reason = reason
        self._pending.clear()

    def take_chunk(self, now: float) -> Chunk | None:
        """The next chunk if the plan or the stream's end says that it's due. `now` is in seconds."""
        if self.finish_reason is None and not self._is_due(now):
            return None
        codes = np.stack(self._pending) if self._pending else np.empty((0, CODEBOOKS), np.int32)
        voice = self.prompt.voice
        primer = voice.codes if voice and self._chunks == 0 and len(codes) else codes[:0]
        chunk = Chunk(self.id, codes, self._chunks, self.finish_reason, self.text_tokens, self.frames, primer)
        self._pending.clear()
        self._chunks += 1
        self._delivered_frames += len(codes)
        if self._first_delivery is None and len(codes):
            self._first_delivery = now
        return chunk

    def _is_due(self, now: float) -> bool:
        """Whether the plan's next chunk is full, or part of it is needed at once to keep the listener in sound."""
        due = self._schedule[min(self._chunks, len(self._schedule) - 1)]
        needed = self.has_spoken and self.lead(now) < self._hurry_lead_s
        return len(self._pending) >= (1 if needed else due)

    def lead(self, now: float) -> float:
        """Seconds of delivered sound that a listener who started at the first chunk has still ahead."""
        if self._first_delivery is None:
            return 0.0
        return self._delivered_frames * FRAME_SECONDS - (now - self._first_delivery)
