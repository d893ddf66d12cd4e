"""One utterance as one HTTP response: wait for its first sound, stream or collect the rest, notice who leaves."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import json
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine_lib.errors import ServiceError
from proxy.errors import envelope, for_log
from proxy.speaking import Speaking
from proxy.stream import Chunk

log = logging.getLogger(__name__)

# Whether the response that this task sent has no end because we want it so.
cut_on_purpose = contextvars.ContextVar("cut_on_purpose", default=False)


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

    def __init__(self, speaking: Speaking, *, stream: bool, as_events: bool) -> None:
        super().__init__()
        self._speaking = speaking
        self._as_stream = stream
        self._cut = False
        self._framing: Framing = EventFraming() if as_events else RawFraming()
        self._own_headers = {
            "content-type": "text/event-stream" if as_events else speaking.audio.content_type,
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "x-seed": str(speaking.seed),
            "x-sample-rate": str(speaking.audio.sample_rate),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._speaking.accounted():
            pieces = self._pieces()
            await unless_client_leaves(
                receive, self._stream(pieces, send) if self._as_stream else self._collect(pieces, send)
            )
        if self._cut:
            cut_on_purpose.set(True)

    async def _pieces(self) -> AsyncGenerator[bytes]:
        """The body, in pieces that aren't empty; at least one, or GenerationFailed."""
        async with contextlib.aclosing(self._speaking.sound()) as sound:
            async for data in sound:
                yield self._framing.sound(data)
        if end := self._framing.end(self._speaking.finished):
            yield end

    async def _stream(self, pieces: AsyncGenerator[bytes], send: Send) -> None:
        begun = False
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if not begun:
                        begun = True
                        await self._begin(send, {})
                        self._speaking.first_sound_leaves()
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except ServiceError as error:
            if not begun:
                raise
            log.warning("request %s failed midway: %s", self._speaking.request_id, for_log(error))
            self._speaking.outcome = error.code
            told = self._framing.failure(error)
            if told is None:
                self._cut = True  # the body has no end: the server breaks the connection
            else:
                await send({"type": "http.response.body", "body": told})
            return
        self._speaking.outcome = self._speaking.finished.finish_reason or ""
        await send({"type": "http.response.body"})

    async def _collect(self, pieces: AsyncGenerator[bytes], send: Send) -> None:
        async with contextlib.aclosing(pieces):
            body = b"".join([piece async for piece in pieces])
        self._speaking.outcome = self._speaking.finished.finish_reason or ""
        headers = {
            "content-length": str(len(body)),
            "x-finish-reason": self._speaking.outcome,
            "x-audio-seconds": f"{self._speaking.audio.seconds:.3f}",
        }
        await self._begin(send, headers)
        self._speaking.first_sound_leaves()
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
