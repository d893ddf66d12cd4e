"""One utterance as one HTTP response: wait for its first sound, stream or collect the rest, notice who leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine_lib.errors import GenerationFailed, ServiceError
from engine_lib.wire import FinishReason
from proxy.audio import Audio
from proxy.errors import envelope
from proxy.metrics import Metrics
from proxy.pool import Server
from proxy.schemas import SpeechRequest
from proxy.stream import Chunk

log = logging.getLogger(__name__)


class Framing(Protocol):
    """How pieces of sound, the end and a failure midway look in the body."""

    def sound(self, data: bytes) -> bytes: ...

    def end(self, last: Chunk) -> bytes: ...

    def failure(self, error: ServiceError) -> bytes | None: ...  # None: only a broken connection can say it


class RawFraming:
    """The sound itself."""

    def sound(self, data: bytes) -> bytes:
        return data

    def end(self, last: Chunk) -> bytes:
        return b""

    def failure(self, error: ServiceError) -> bytes | None:
        return None


class EventFraming:
    """OpenAI's server-sent events."""

    def sound(self, data: bytes) -> bytes:
        return _event("delta", {"audio": base64.b64encode(data).decode()})

    def end(self, last: Chunk) -> bytes:
        text, frames = last.usage.text_tokens, last.usage.frames
        usage = {"input_tokens": text, "output_tokens": frames, "total_tokens": text + frames}
        return _event("done", {"usage": usage, "finish_reason": last.finish_reason})

    def failure(self, error: ServiceError) -> bytes | None:
        return _event("error", {"error": envelope(error)})


def _event(kind: str, fields: Mapping[str, Any]) -> bytes:
    return f"data: {json.dumps({'type': f'speech.audio.{kind}', **fields})}\n\n".encode()


class SpeechResponse(Response):
    """Speaks while it is sent. Errors before the first sound are raised and get a status of their own."""

    def __init__(
        self, server: Server, speech: SpeechRequest, request_id: str, metrics: Metrics, arrived: float
    ) -> None:
        super().__init__()
        if speech.seed is None:
            raise ValueError("x-seed needs a seed")
        self._server = server
        self._speech = speech
        self._request_id = request_id
        self._metrics = metrics
        self._arrived = arrived  # time.monotonic() of the request
        self._audio = Audio(
            speech.response_format, speed=speech.speed, sample_rate=speech.sample_rate, whole=not speech.stream
        )
        as_events = speech.stream_format == "sse"
        self._framing: Framing = EventFraming() if as_events else RawFraming()
        self._last: Chunk | None = None
        self._outcome = "left"  # how the utterance ended; this is what it stays when the client leaves
        self._own_headers = {
            "content-type": "text/event-stream" if as_events else self._audio.content_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-seed": str(speech.seed),
            "x-sample-rate": str(self._audio.sample_rate),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._metrics.active_streams.track_inprogress():
            try:
                await unless_client_leaves(receive, self._answer(send))
            except ServiceError as error:
                self._outcome = error.code
                raise
            finally:
                self._metrics.utterances.labels(self._outcome).inc()
                self._metrics.audio.inc(self._audio.seconds)

    async def _answer(self, send: Send) -> None:
        """Send the whole response."""
        options = self._speech
        async with self._server.speech(options.input, options, self._request_id) as chunks:
            pieces = self._pieces(chunks)
            await (self._stream(pieces, send) if options.stream else self._collect(pieces, send))

    async def _pieces(self, chunks: AsyncIterator[Chunk]) -> AsyncIterator[bytes]:
        """The body, in pieces that aren't empty; at least one, or GenerationFailed."""
        async for chunk in chunks:
            if data := await self._compute(self._audio.feed, chunk.pcm):
                yield self._framing.sound(data)
            self._last = chunk
        last = self._finished()
        if data := await self._compute_rest():
            yield self._framing.sound(data)
        if end := self._framing.end(last):
            yield end

    def _finished(self) -> Chunk:
        """The last chunk of a stream that ended well."""
        last = self._last
        if last is None or last.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise GenerationFailed("The stream was ended by someone else.")
        if last.finish_reason is FinishReason.LENGTH:
            log.info("request %s reached its length limit of %d frames", self._request_id, last.usage.frames)
        return last

    async def _compute_rest(self) -> bytes:
        if self._audio.empty:
            raise GenerationFailed("The speech engine made no sound of this input.")
        return await self._compute(self._audio.finish)

    async def _compute(self, work: Callable[..., bytes], *parts: Any) -> bytes:
        """Encode beside the event loop, unless it is only a copy."""
        return work(*parts) if self._audio.cheap else await asyncio.to_thread(work, *parts)

    async def _stream(self, pieces: AsyncIterator[bytes], send: Send) -> None:
        begun = False
        try:
            async for piece in pieces:
                if not begun:
                    begun = True
                    await self._begin(send, {})
                    self._metrics.first_audio.observe(time.monotonic() - self._arrived)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except ServiceError as error:
            if not begun:
                raise
            log.warning("request %s failed midway: %s", self._request_id, error.message)
            self._outcome = error.code
            told = self._framing.failure(error)
            if told is not None:
                await send({"type": "http.response.body", "body": told})
            return  # without `told` the body has no end: the server breaks the connection
        self._outcome = self._finished().finish_reason or ""
        await send({"type": "http.response.body"})

    async def _collect(self, pieces: AsyncIterator[bytes], send: Send) -> None:
        body = b"".join([piece async for piece in pieces])
        self._outcome = self._finished().finish_reason or ""
        headers = {
            "content-length": str(len(body)),
            "x-finish-reason": self._outcome,
            "x-audio-seconds": f"{self._audio.seconds:.3f}",
        }
        await self._begin(send, headers)
        self._metrics.first_audio.observe(time.monotonic() - self._arrived)
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Send, more: Mapping[str, str]) -> None:
        headers = [(name.encode(), value.encode()) for name, value in {**self._own_headers, **more}.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it as soon as the client is gone. The request's body must have been read.

    The server calls a client gone also when it has the whole response; what `work` does after that must bear a cancel.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.wait({working, watching})
    if not working.cancelled():
        working.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
