"""Live text over a WebSocket: text in as it is written, sound out before it ends. Its table is in docs/websocket.md.

One task takes the client's messages in order and changes the state; a second one speaks the current utterance. While
that one runs, it alone sends; the first stops it before it says something itself. So neither needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from engine_lib.errors import InvalidRequest, NotFound, NotReady, Overloaded, ServiceError
from engine_lib.wire import SAMPLE_RATE, FinishReason
from proxy.errors import Backpressure, for_log
from proxy.pace import Pace
from proxy.schemas import parse_live, parse_object
from proxy.served import check_model, check_speaker
from proxy.service import Service, bearer, is_key, owner_of_key
from proxy.settings import Settings
from proxy.utterance import Socket, Utterance, describe_sound, log_utterance

log = logging.getLogger(__name__)

PROTOCOL = "nari.speech.v1"
KEY_PREFIX = "api-key."  # of a subprotocol that carries the key

# Starts that came to nothing, refused or cancelled: each costs the engine messages and the log a line.
FUTILE_AT_ONCE, FUTILE_PER_S = 20, 4

DONE, CLIENTS_FAULT, TOO_LARGE, OUR_FAULT, TRY_LATER = 1000, 1008, 1009, 1011, 1013  # close codes


class State(enum.Enum):
    """What the session waits for."""

    IDLE = "a request"
    OPEN = "text, while it speaks"
    ENDED = "the end of the speech; its text is complete"
    LATE = "a request; text that was on its way for an utterance that is over is dropped"


async def speak_live(websocket: WebSocket, service: Service) -> None:
    """Serve one client until it or we leave; 403 for one that may not come in."""
    offered: list[str] = websocket.scope["subprotocols"]
    keys = [bearer(websocket), *(name.removeprefix(KEY_PREFIX) for name in offered if name.startswith(KEY_PREFIX))]
    key = next((key for key in keys if is_key(key, service.settings)), None)
    if key is None or not _is_welcome_origin(websocket, service.settings):
        await websocket.close()
        return
    # A browser gives up unless one of the subprotocols that it offered is chosen.
    chosen = PROTOCOL if PROTOCOL in offered else next((name for name in offered if name.startswith(KEY_PREFIX)), None)
    socket = Socket(websocket, service.settings.send_timeout_s)
    with service.metrics.open_sockets.track_inprogress(), contextlib.suppress(WebSocketDisconnect):
        await websocket.accept(chosen)
        owner = owner_of_key(key, service.settings)
        await Session(socket, service, owner, one_utterance=chosen == PROTOCOL).run()


def _is_welcome_origin(websocket: WebSocket, settings: Settings) -> bool:
    """Whether a browser's page may come in: one of this host or of the list. What is no browser has no origin."""
    origin = websocket.headers.get("origin")
    if origin is None or {"*", origin} & {*settings.cors_origins}:
        return True
    return origin.partition("://")[2].lower() == websocket.headers.get("host", "").lower()


class Session:
    """One client's socket, from its acceptance to its end."""

    def __init__(self, socket: Socket, service: Service, owner: str, *, one_utterance: bool) -> None:
        """`owner` is whose voices the client may use, see service.owner_of."""
        self._socket = socket
        self._service = service
        self._owner = owner
        self._one_utterance = one_utterance
        self._state = State.IDLE
        self._utterance: Utterance | None = None
        self._speaking: asyncio.Task[FinishReason] | None = None  # of the utterance
        self._heard = time.monotonic()  # the client's last message
        self._futile = Pace(FUTILE_AT_ONCE, FUTILE_PER_S)
        self._over = False

    async def run(self) -> None:
        """Serve until either side ends it. Raises WebSocketDisconnect."""
        self._receiving = asyncio.create_task(self._socket.receive())
        self._draining = asyncio.create_task(self._service.draining.wait())
        try:
            await self._socket.tell("session.created", protocol=PROTOCOL, audio=describe_sound(SAMPLE_RATE))
            while not self._over:
                await self._step()
        except WebSocketDisconnect:
            raise
        except ServiceError as error:
            await self._end_with(error)
        except Exception:
            log.exception("a session: a bug")
            await self._end_with(ServiceError("The server failed on this request."))
        finally:
            await self._drop("left")
            self._receiving.cancel()
            self._draining.cancel()
            await asyncio.wait({self._receiving, self._draining})

    async def _step(self) -> None:
        """Wait for what comes first, and act on it. Raises what ends the session."""
        waiting: set[asyncio.Task[Any]] = {self._receiving, self._speaking or self._draining}
        await asyncio.wait(waiting, timeout=self._patience_s(), return_when=asyncio.FIRST_COMPLETED)
        if self._speaking:
            if self._speaking.done():
                await self._conclude(self._speaking)
                return
        elif self._draining.done():
            raise NotReady("The server is shutting down.")
        if self._receiving.done():
            message = self._receiving.result()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message["code"], message.get("reason"))
            self._receiving = asyncio.create_task(self._socket.receive())
            self._heard = time.monotonic()
            await self._act(self._parse(message))
        elif (left_s := self._patience_s()) is not None and left_s <= 0:
            limit_s = self._service.settings.input_timeout_s
            raise InvalidRequest(f"The client sent nothing for {limit_s:g} s.", code="input_timeout")

    def _patience_s(self) -> float | None:
        """How much longer to wait for the client; None: it owes nothing."""
        if self._state is State.OPEN or (self._one_utterance and self._state is State.IDLE):
            return max(0.0, self._heard + self._service.settings.input_timeout_s - time.monotonic())
        return None

    def _parse(self, message: Message) -> dict[str, Any]:
        """The event in a message. Raises InvalidRequest."""
        text = message.get("text")
        if text is None:
            raise InvalidRequest("A binary message means nothing here.", code="unknown_event")
        if len(text.encode()) > (most := self._service.settings.max_message_bytes):
            raise InvalidRequest(f"A message must not have more than {most} bytes.", code="input_too_large")
        return parse_object(text, "A message", "invalid_request")

    async def _act(self, event: dict[str, Any]) -> None:
        match event.pop("type", None):
            case "request.start":
                await self._start(event)
            case "input_text.append":
                if utterance := self._writable():
                    utterance.append(event)
            case "input_text.end":
                if utterance := self._writable():
                    utterance.end(event)
                self._state = State.ENDED if utterance else State.IDLE
            case "response.cancel":
                await self._cancel()
            case _:
                raise InvalidRequest("There is no such type of event.", param="type", code="unknown_event")

    async def _start(self, event: dict[str, Any]) -> None:
        if self._utterance:
            raise InvalidRequest("The utterance before isn't over yet.", code="invalid_request")
        await self._futile.turn()  # nothing is read meanwhile, but nothing runs for this client either
        try:
            request = parse_live(event)
            server = self._service.pool.pick()
            check_model(request.model, server.description)
            try:
                check_speaker(request, server.description)
                voice = await self._service.cloning.voice_for(request, self._owner)
            except ServiceError as error:
                raise request.in_its_words(error) from error.__cause__
        except ServiceError as error:
            self._futile.count()
            log_utterance({"finish": error.code})  # as one that is over before it began
            if self._one_utterance or not isinstance(error, InvalidRequest | NotFound):
                raise
            self._state = State.LATE
            await self._socket.tell_error(error, None)
            return
        self._utterance = Utterance(request, self._socket, self._service)
        await self._utterance.open(server, voice)
        await self._socket.tell("request.configured")
        self._speaking = self._utterance.speak()
        self._state = State.OPEN

    def _writable(self) -> Utterance | None:
        """Whom text is for now; None: for one that is over, of which the client may not know. Raises InvalidRequest."""
        if self._state is State.LATE:
            return None
        if self._state is not State.OPEN or self._utterance is None:
            over = self._state is State.ENDED
            raise InvalidRequest(
                "The text has ended." if over else "Text comes after request.start.", code="invalid_request"
            )
        return self._utterance

    async def _cancel(self) -> None:
        utterance = self._utterance
        await self._drop("cancelled")
        self._state = State.IDLE
        if utterance:
            self._futile.count()
            await self._socket.tell_done(utterance.id, FinishReason.CANCELLED, utterance.sound_messages)
        else:
            await self._socket.tell_done(None, FinishReason.CANCELLED, 0)
        if self._one_utterance:
            await self._finish()

    async def _conclude(self, speaking: asyncio.Task[FinishReason]) -> None:
        """Go on after an utterance. Raises what it raised, unless that was a refusal."""
        utterance = self._utterance
        if utterance is None:
            raise ValueError("nobody speaks")
        error = speaking.exception()
        if error is None:
            await self._drop(speaking.result())
        elif utterance.refused and not self._one_utterance and isinstance(error, InvalidRequest | Overloaded):
            self._futile.count()
            await self._drop(error.code)
            await self._socket.tell_error(error, utterance.id)
        else:
            raise error
        if self._one_utterance:
            await self._finish()
        self._state = State.LATE if self._state is State.OPEN else State.IDLE

    async def _drop(self, outcome: str) -> None:
        """Be without an utterance."""
        utterance, self._utterance, self._speaking = self._utterance, None, None
        if utterance:
            await utterance.close(outcome)

    async def _finish(self) -> None:
        self._over = True
        await self._socket.close(DONE)

    async def _end_with(self, error: ServiceError) -> None:
        """Tell the client why, and close."""
        request_id = self._utterance.id if self._utterance else None
        code = _close_code(error)
        level = logging.WARNING if code == OUR_FAULT else logging.INFO
        if request_id is None:
            log.log(level, "a socket without an utterance ends: %s: %s", error.code, for_log(error))
        else:
            log.log(level, "utterance %s ends with its socket: %s: %s", request_id, error.code, for_log(error))
        await self._drop(error.code)
        with contextlib.suppress(Backpressure):  # a client that doesn't read can't be told
            await self._socket.tell_error(error, request_id)
            await self._socket.close(code)


def _close_code(error: ServiceError) -> int:
    if error.code == "input_too_large":
        return TOO_LARGE
    if isinstance(error, NotReady | Overloaded):
        return TRY_LATER
    return CLIENTS_FAULT if isinstance(error, InvalidRequest | NotFound) else OUR_FAULT
