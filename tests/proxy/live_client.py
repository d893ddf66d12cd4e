"""A client of the WebSocket for tests, and how to hear which words the scripted talker spoke."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from engine_lib.wire import SAMPLES_PER_FRAME
from tests.proxy.scripted import LOUDNESS, STEP, number_of

PROTOCOL = "nari.speech.v1"
PATH = "/v1/audio/speech/ws"


def heard(pcm: bytes) -> list[int]:
    """The numbers of the frames in the sound."""
    frames = np.frombuffer(pcm, "<i2").reshape(-1, SAMPLES_PER_FRAME)
    return [(int(frame.max()) - LOUDNESS) // STEP for frame in frames]


def spoken(text: str) -> list[int]:
    """The numbers of the frames that speak `text`."""
    return [number_of(word) for word in text.split()]


class LiveClient:
    """One socket; keeps what has come."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []
        self.sound: list[bytes] = []  # since the last `start`
        self.sent = 0

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def start(self, script: str = "", **fields: Any) -> None:
        self.sent, self.sound = 0, []
        await self.send("request.start", instructions=script or None, **fields)

    async def append(self, text: str) -> None:
        await self.send("input_text.append", sequence=self.sent, text=text)
        self.sent += 1

    async def end(self) -> None:
        await self.send("input_text.end", sequence=self.sent)
        self.sent += 1

    async def cancel(self) -> None:
        await self.send("response.cancel")

    async def say(self, text: str, script: str = "", **fields: Any) -> dict[str, Any]:
        """Speak a text in one piece; its response.done."""
        await self.start(script, **fields)
        await self.append(text)
        await self.end()
        return await self.until("response.done")

    async def next(self) -> dict[str, Any] | bytes:
        message = await self.socket.recv()
        if isinstance(message, bytes):
            self.sound.append(message)
            return message
        event: dict[str, Any] = json.loads(message)
        self.events.append(event)
        return event

    async def until(self, kind: str) -> dict[str, Any]:
        """The next event of this kind. An error is none that a test may overlook."""
        while True:
            message = await self.next()
            if isinstance(message, dict):
                assert message["type"] in (kind, "request.configured", "response.started", "input_text.ack"), message
                if message["type"] == kind:
                    return message

    async def until_sound(self) -> bytes:
        while not isinstance(message := await self.next(), bytes):
            assert message["type"] != "error", message
        return message

    async def closed(self) -> int | None:
        """Read to the end; the close code."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await self.next()
        return self.socket.close_code

    @property
    def pcm(self) -> bytes:
        return b"".join(self.sound)

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]


@contextlib.asynccontextmanager
async def live(url: str, subprotocols: Sequence[str] = (), **options: Any) -> AsyncIterator[LiveClient]:
    """A connected client that has seen session.created."""
    address = url.replace("http://", "ws://") + PATH
    options.setdefault("max_size", None)
    async with connect(address, subprotocols=list(subprotocols) or None, proxy=None, **options) as socket:
        client = LiveClient(socket)
        assert (await client.next())["type"] == "session.created"
        yield client
