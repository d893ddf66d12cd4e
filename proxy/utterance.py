"""One utterance of live text: checks what the client writes, and sends what the engine makes of it.

Knows the messages of an utterance and their order; knows nothing of what comes before or after it on the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine_lib.errors import GenerationFailed, InvalidRequest, ServiceError
from engine_lib.wire import FinishReason, Voice, is_visible, text_problem
from proxy.audio import Audio
from proxy.errors import Backpressure, envelope
from proxy.live_stream import LiveStream
from proxy.logs import Account
from proxy.markup import TagFilter
from proxy.playback import Playback
from proxy.pool import Server
from proxy.schemas import LiveRequest
from proxy.service import Service
from proxy.stream import Chunk, Taken

log = logging.getLogger(__name__)

MAX_SOUND_BYTES = 256 << 10  # in one message; some clients take 1 MiB at most
PATH = "/v1/audio/speech/ws"
APPEND, END = "input_text.append", "input_text.end"


class Socket:
    """What we say on a WebSocket. Every call raises WebSocketDisconnect once the client is gone."""

    def __init__(self, websocket: WebSocket, stall_limit_s: float) -> None:
        self._websocket = websocket
        self._stall_limit_s = stall_limit_s

    async def receive(self) -> Message:
        """What comes next, be it the client's end."""
        return await self._websocket.receive()

    async def tell(self, kind: str, **fields: Any) -> None:
        """Send an event. Raises Backpressure."""
        await self._send({"type": "websocket.send", "text": json.dumps({"type": kind, **fields})})

    async def tell_error(self, error: ServiceError, request_id: str | None) -> None:
        """Send an `error` event. Raises Backpressure."""
        await self.tell("error", request_id=request_id, error=envelope(error))

    async def tell_done(self, request_id: str | None, reason: FinishReason, sound_messages: int) -> None:
        """Send a `response.done` event. Raises Backpressure."""
        await self.tell("response.done", request_id=request_id, stop_reason=reason, audio_chunks=sound_messages)

    async def sound(self, data: bytes) -> None:
        """Send sound. Raises Backpressure."""
        await self._send({"type": "websocket.send", "bytes": data})

    async def close(self, code: int) -> None:
        """Close in order. Raises Backpressure."""
        await self._send({"type": "websocket.close", "code": code})

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stall_limit_s):
                await self._websocket.send(message)
        except TimeoutError:
            raise Backpressure(f"The client read nothing for {self._stall_limit_s:g} s.") from None
        # How uvicorn says that it has closed by itself, after a frame that isn't WebSocket's.
        except RuntimeError:
            raise WebSocketDisconnect(1006) from None


class Utterance:
    """What one request.start began: checks the text that is handed on, and sends what the engine makes of it."""

    def __init__(self, request: LiveRequest, socket: Socket, service: Service) -> None:
        self.id = uuid.uuid4().hex
        self.sound_messages = 0
        self._request = request
        self._socket = socket
        self._settings = service.settings
        self._metrics = service.metrics
        self._audio = Audio("pcm", speed=request.speed, sample_rate=request.sample_rate, whole=False)
        self._kinds: list[str] = []  # of the input events, by sequence number
        self._tags = TagFilter()
        self._characters = 0
        self._speakable = False
        self._frames = 0
        self._opened = time.monotonic()
        self._first_text: float | None = None  # time.monotonic()
        self._playback = Playback()
        self._account: Account = {"id": self.id, "voice": request.voice, "format": "pcm"}
        self._text: list[str] | None = [] if service.settings.log_text else None
        self._told_start = False
        self._resources = contextlib.AsyncExitStack()
        self._stream: LiveStream | None = None
        self._speaking: asyncio.Task[FinishReason] | None = None

    async def open(self, server: Server, voice: Voice | None) -> None:
        """Begin in the engine, in a cloned `voice` if there is one. From here on it must be closed."""
        self._resources.enter_context(self._metrics.active_streams.track_inprogress())
        self._stream = await self._resources.enter_async_context(server.live(self._request, self.id, voice))

    def speak(self) -> asyncio.Task[FinishReason]:
        """Send from now on. The task ends when all is sent, or raises what the client is to be told."""
        self._speaking = asyncio.create_task(self._speak(self._begun))
        return self._speaking

    async def close(self, outcome: str) -> None:
        """Send no more, and end it in the engine."""
        if self._speaking:
            self._speaking.cancel()
            await asyncio.wait({self._speaking})
        await self._resources.aclose()
        self._metrics.ended(outcome, self._audio.seconds, self._playback, "live")
        self._account.update(
            characters=self._characters,
            frames=self._frames,
            audio_s=round(self._audio.seconds, 3),
            finish=outcome,
            seconds=round(time.monotonic() - self._opened, 3),
            text=None if self._text is None else "".join(self._text),
        )
        log_utterance(self._account)

    @property
    def refused(self) -> bool:
        """Whether the engine didn't want to begin it."""
        return self._begun.refused

    @property
    def _begun(self) -> LiveStream:
        if self._stream is None:
            raise ValueError("not open")
        return self._stream

    def append(self, event: Mapping[str, Any]) -> None:
        """Hand on a piece of text. Raises InvalidRequest."""
        self._count(event, APPEND)
        text = event.get("text")
        if not isinstance(text, str):
            raise InvalidRequest("'text' must be a string.", param="text", code="invalid_request")
        self._characters += len(text)
        if len(self._kinds) > (most := self._settings.max_live_events):
            raise InvalidRequest(f"The text has more than {most} pieces.", code="too_many_input_events")
        if self._characters > (most := self._settings.max_live_chars):
            raise InvalidRequest(f"The text has more than {most} characters.", param="text", code="input_too_large")
        if problem := text_problem(text):
            raise InvalidRequest(f"'text' {problem}.", param="text", code="invalid_text")
        self._first_text = self._first_text or time.monotonic()
        self._begun.append(self._spoken(self._tags.feed(text)))

    def end(self, event: Mapping[str, Any]) -> None:
        """Hand on that the text is complete. Raises InvalidRequest."""
        self._count(event, END)
        rest = self._spoken(self._tags.finish())
        if not self._speakable:
            raise InvalidRequest("There was no text to speak.", code="empty_input")
        self._begun.end(rest)

    def _spoken(self, text: str) -> str:
        """`text`, which is about to be handed on."""
        self._speakable = self._speakable or is_visible(text)
        if self._text is not None:
            self._text.append(text)
        return text

    def _count(self, event: Mapping[str, Any], kind: str) -> None:
        due = len(self._kinds)
        if type(event.get("sequence")) is not int or event["sequence"] != due:  # True equals 1
            raise InvalidRequest(f"'sequence' must be {due} now.", param="sequence", code="invalid_sequence")
        self._kinds.append(kind)

    async def _speak(self, stream: LiveStream) -> FinishReason:
        reason: FinishReason | None = None
        async for event in stream.events():
            if isinstance(event, Chunk):
                self._frames = event.usage.frames
                self._playback.hear(event.arrived, event.seconds / self._request.speed)
                await self._send(await self._compute(self._audio.feed, event.pcm))
                reason = event.finish_reason
            else:
                await self._tell_taken(event)
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            raise GenerationFailed("The stream was ended by someone else.")
        if self._audio.empty:
            raise GenerationFailed("The speech engine made no sound of this input.")
        if reason is FinishReason.LENGTH:
            log.info("utterance %s reached its length limit", self.id)
        await self._send(await self._compute(self._audio.finish))
        await self._socket.tell_done(self.id, reason, self.sound_messages)
        return reason

    async def _tell_taken(self, taken: Taken) -> None:
        if taken.text_tokens > 0:
            await self._tell_start()
        for number in taken.sequences:
            await self._socket.tell("input_text.ack", event=self._kinds[number], sequence=number, request_id=self.id)
            await asyncio.sleep(0)  # there may be thousands, and a send that has room lets nobody else in

    async def _tell_start(self) -> None:
        if not self._told_start:
            self._told_start = True
            await self._socket.tell(
                "response.started", request_id=self.id, audio=describe_sound(self._audio.sample_rate)
            )

    async def _send(self, data: bytes) -> None:
        if not data:
            return
        await self._tell_start()  # sound and acknowledgements come two ways
        if self.sound_messages == 0 and self._first_text is not None:
            seconds = time.monotonic() - self._first_text
            self._metrics.first_audio.observe(seconds)
            self._account["first_audio_s"] = round(seconds, 3)
        for start in range(0, len(data), MAX_SOUND_BYTES):
            await self._socket.sound(data[start : start + MAX_SOUND_BYTES])
            self.sound_messages += 1

    async def _compute(self, work: Callable[..., bytes], *parts: Any) -> bytes:
        """Reshape beside the event loop, unless it is only a copy."""
        return work(*parts) if self._audio.cheap else await asyncio.to_thread(work, *parts)


def log_utterance(account: Account) -> None:
    """The line of an utterance in the log, as HTTP requests have one."""
    log.info(PATH, extra={"fields": account})


def describe_sound(sample_rate: int) -> dict[str, Any]:
    """The sound in binary messages, as events tell it."""
    return {"encoding": "pcm_s16le", "sample_rate": sample_rate, "channels": 1}
