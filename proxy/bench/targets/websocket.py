"""Our WebSocket, docs/websocket.md: the text comes word by word, as a language model would write it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from proxy.bench.listening import Listener
from proxy.bench.outcome import Failed, Failure, by_code, by_status
from proxy.bench.plan import Request
from proxy.bench.targets import Stopwatch
from proxy.bench.targets.http import fields_of
from proxy.bench.texts import words_of

PATH = "/v1/audio/speech/ws"
WORD_S = 0.010  # from one word to the next


class WebSocketTarget:
    """Sockets without a subprotocol: they stay open from one utterance to the next. Time zero is the first word."""

    def __init__(self, url: str, fields: Mapping[str, Any], *, api_key: str | None, own_lengths: bool) -> None:
        """As HttpTarget; `url` begins with http too."""
        self.name = f"ws{url.removeprefix('http')}{PATH}"
        self._fields = fields
        self._own_lengths = own_lengths
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._idle: list[ClientConnection] = []

    async def speak(self, request: Request, watch: Stopwatch, listener: Listener) -> None:
        """As Target says."""
        socket = self._idle.pop() if self._idle else await self._connect()
        try:
            await self._speak(socket, request, watch, listener)
        except ConnectionClosed as error:
            raise Failed(Failure.BROKEN, str(error)) from None
        # One that failed may have something of it left.
        except BaseException:
            await self._drop(socket)
            raise
        self._idle.append(socket)

    async def close(self) -> None:
        """Close the sockets."""
        await asyncio.gather(*(self._drop(socket) for socket in self._idle))

    async def _connect(self) -> ClientConnection:
        try:
            socket = await connect(
                self.name,
                additional_headers=self._headers,
                compression=None,
                max_size=None,
                proxy=None,
                ping_interval=None,
                open_timeout=None,
            )
            await _event(socket, "session.created")
        except InvalidStatus as error:
            status = error.response.status_code
            raise Failed(by_status(status), f"{status}: no WebSocket") from None
        except (OSError, InvalidHandshake, InvalidURI) as error:
            raise Failed(Failure.UNREACHABLE, str(error)) from None
        return socket

    async def _drop(self, socket: ClientConnection) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await socket.close()

    async def _speak(self, socket: ClientConnection, request: Request, watch: Stopwatch, listener: Listener) -> None:
        fields = fields_of(request, own_lengths=self._own_lengths)
        await _tell(socket, "request.start", **self._fields, **fields)
        await _event(socket, "request.configured")
        writing = asyncio.create_task(_write(socket, request.text, watch))
        try:
            while True:
                message = await socket.recv()
                if isinstance(message, bytes):
                    listener.feed(message, watch.elapsed_s)
                elif _checked(message)["type"] == "response.done":
                    return
        finally:
            if not writing.done():
                writing.cancel()
            await asyncio.wait({writing})


async def _write(socket: ClientConnection, text: str, watch: Stopwatch) -> None:
    """Send the words, each when it is due, and the end."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    words = words_of(text)
    with contextlib.suppress(ConnectionClosed):  # whoever reads the socket tells it
        for sequence, word in enumerate(words):
            await asyncio.sleep(begin + sequence * WORD_S - loop.time())
            watch.start()
            await _tell(socket, "input_text.append", sequence=sequence, text=word)
        await _tell(socket, "input_text.end", sequence=len(words))


async def _tell(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))


async def _event(socket: ClientConnection, kind: str) -> None:
    """Wait for this event, which must be next. Raises Failed."""
    message = await socket.recv()
    if isinstance(message, bytes) or _checked(message)["type"] != kind:
        raise Failed(Failure.MALFORMED, f"{kind} was due")


def _checked(message: str) -> dict[str, Any]:
    """An event that is no error. Raises Failed."""
    try:
        event: dict[str, Any] = json.loads(message)
        if event["type"] == "error":
            raise Failed(by_code(str(event["error"]["code"])), str(event["error"]["message"]))
    except (ValueError, LookupError, TypeError):
        raise Failed(Failure.MALFORMED, "an event that isn't understood") from None
    return event
