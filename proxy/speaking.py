"""One request to speak, from the check to its end: its sound in the format it asked for, and the account of it.

Knows the engine's chunks and the encoders; knows nothing of how the sound travels to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

from engine_lib.errors import GenerationFailed, ServiceError
from engine_lib.wire import FinishReason, Voice
from proxy.audio import Audio
from proxy.logs import Account
from proxy.pieces import speak_pieces
from proxy.playback import Playback
from proxy.schemas import SpeechRequest
from proxy.service import Service
from proxy.settings import Settings
from proxy.splitting import Comfort, split
from proxy.stream import Chunk

log = logging.getLogger(__name__)


class Speaking:
    """An utterance that is being spoken. Iterate `sound` once, inside `accounted`."""

    def __init__(
        self,
        speech: SpeechRequest,
        request_id: str,
        service: Service,
        arrived: float,
        account: Account,
        voice: Voice | None,
        *,
        whole: bool,
    ) -> None:
        if speech.seed is None:
            raise ValueError("x-seed needs a seed")
        self.seed = speech.seed
        self.request_id = request_id
        self.audio = Audio(speech.response_format, speed=speech.speed, sample_rate=speech.sample_rate, whole=whole)
        self.outcome = "left"  # how it ended; this is what it stays when the client leaves
        self._speech = speech
        self._voice = voice
        self._service = service
        self._arrived = arrived  # time.monotonic() of the request
        self._account = account
        self._last: Chunk | None = None
        self._playback = Playback()
        account.update(voice=speech.voice, format=speech.response_format, characters=len(speech.input))
        if service.settings.log_text:
            account["text"] = speech.input

    @contextlib.contextmanager
    def accounted(self) -> Iterator[None]:
        """Count it as running meanwhile, and note how it ended."""
        metrics = self._service.metrics
        with metrics.active_streams.track_inprogress():
            try:
                yield
            except ServiceError as error:
                self.outcome = error.code
                raise self._speech.in_its_words(error) from error.__cause__
            finally:
                metrics.ended(self.outcome, self.audio.seconds, self._playback, "whole")
                self._account.update(
                    frames=self._last.usage.frames if self._last else 0,
                    audio_s=round(self.audio.seconds, 3),
                    finish=self.outcome,
                )

    async def sound(self) -> AsyncGenerator[bytes]:
        """The sound's bytes, in pieces that aren't empty; at least one, or GenerationFailed."""
        settings, speech = self._service.settings, self._speech
        pieces = pieces_of(speech, settings)
        async with speak_pieces(
            self._service.pool, pieces, speech, self.request_id, settings.first_chunk_timeout_s, self._voice
        ) as chunks:
            async for chunk in chunks:
                self._playback.hear(chunk.arrived, chunk.seconds / speech.speed)
                if data := await self._compute(self.audio.feed, chunk.pcm):
                    yield data
                self._last = chunk
            if self.finished.finish_reason is FinishReason.LENGTH:
                log.info("request %s reached its length limit", self.request_id)
            if self.audio.empty:
                raise GenerationFailed("The speech engine made no sound of this input.")
            if data := await self._compute(self.audio.finish):
                yield data
            if self._playback.last is not None:
                taken_s = self._playback.last - self._arrived
                self._service.metrics.real_time.observe(taken_s / self.audio.seconds)

    @property
    def finished(self) -> Chunk:
        """The last chunk of a stream that ended well. Raises GenerationFailed if it didn't."""
        last = self._last
        if last is None or last.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise GenerationFailed("The stream was ended by someone else.")
        return last

    def first_sound_leaves(self) -> None:
        """Note the time."""
        seconds = time.monotonic() - self._arrived
        self._service.metrics.first_audio.observe(seconds)
        self._account["first_audio_s"] = round(seconds, 3)

    async def _compute(self, work: Callable[..., bytes], *parts: Any) -> bytes:
        """Encode beside the event loop, unless it is only a copy."""
        return work(*parts) if self.audio.cheap else await asyncio.to_thread(work, *parts)


def pieces_of(speech: SpeechRequest, settings: Settings) -> list[str]:
    """The pieces to speak one after another. Who sets max_new_tokens sets the length of one utterance: no pieces."""
    if not settings.split_texts or speech.max_new_tokens is not None:
        return [speech.input]
    return split(speech.input, Comfort(settings.split_chars, settings.split_wide_chars), speech.language)
