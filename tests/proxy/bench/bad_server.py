"""A deliberately bad server of /v1/audio/speech and of the WebSocket, which does what the text says.

The text holds `key=value` words; the values are numbers:
status=200           an HTTP status, or by 429, 503, 500, 400 the code of an error event
delay_ms=0           wait before anything is answered
silence_ms=0         the sound begins with so much silence         silent=0     1: it's all silence
stalls=0             so many times the sound comes a second late    pieces=4    of the sound, when it isn't late
break_at=-1          the connection ends before that piece          empty=0     1: it ends well without sound
half=0               1: the last sample is half                     json=0      1: JSON with status 200; no event on WS
stuck=0              1: nothing ever comes
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvicorn

from engine_lib.wire import SAMPLE_RATE
from tests.serving import in_this_process

LONG_MS, SHORT_MS = 2000, 100  # of a piece that isn't late, or before one that is
LATE_MS = 1000
CODES = {429: "overloaded", 503: "not_ready", 500: "generation_failed", 400: "invalid_value"}


@dataclass(frozen=True)
class Script:
    """What to do."""

    status: int = 200
    delay_ms: int = 0
    silence_ms: int = 0
    silent: int = 0
    stalls: int = 0
    pieces: int = 4
    break_at: int = -1
    empty: int = 0
    half: int = 0
    json: int = 0
    stuck: int = 0

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(**{key: int(value) for key, value in (word.split("=") for word in text.split() if "=" in word)})

    @property
    def audio_s(self) -> float:
        """Of the whole sound."""
        return (self.silence_ms + self.stalls * SHORT_MS + self.pieces * LONG_MS) / 1000


def tone(milliseconds: int, *, silent: bool) -> bytes:
    samples = np.arange(milliseconds * SAMPLE_RATE // 1000)
    return (np.sin(samples * 0.1) * (0 if silent else 8000)).astype("<i2").tobytes()


async def pieces(script: Script):
    """The sound; None where the connection ends."""
    silent = bool(script.silent)
    sound = [tone(SHORT_MS, silent=silent)] * script.stalls + [tone(LONG_MS, silent=silent)] * script.pieces
    sound[0] = tone(script.silence_ms, silent=True) + sound[0]
    if script.half:
        sound[-1] = sound[-1][:-1]
    for number, piece in enumerate(sound):
        if number == script.break_at:
            yield None
            return
        yield piece
        if number < script.stalls:
            await asyncio.sleep((SHORT_MS + LATE_MS) / 1000)


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await over_http(receive, send)
    elif scope["type"] == "websocket":
        with contextlib.suppress(ConnectionError):
            await over_websocket(receive, send)


async def over_http(receive: Any, send: Any) -> None:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message.get("more_body"):
            break
    script = Script.of(json.loads(body)["input"])
    await asyncio.sleep(script.delay_ms / 1000)
    if script.stuck:
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    kind = "application/json" if script.json else "audio/pcm"
    await send({"type": "http.response.start", "status": script.status, "headers": [(b"content-type", kind.encode())]})
    if script.status == 200 and not script.empty:
        async for piece in pieces(script):
            if piece is None:
                raise ConnectionError("as told")
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def over_websocket(receive: Any, send: Any) -> None:
    async def tell(kind: str, **fields: Any) -> None:
        await send({"type": "websocket.send", "text": json.dumps({"type": kind, **fields})})

    await receive()
    await send({"type": "websocket.accept"})
    await tell("session.created")
    text = ""
    while (message := await receive())["type"] == "websocket.receive":
        event = json.loads(message["text"])
        if event["type"] == "request.start":
            text = ""
            await tell("request.configured")
        elif event["type"] == "input_text.append":
            text += event["text"]
        else:
            await answer(Script.of(text), tell, send)


async def answer(script: Script, tell: Any, send: Any) -> None:
    await asyncio.sleep(script.delay_ms / 1000)
    if script.status != 200:
        await tell("error", error={"code": CODES[script.status], "message": "as told"})
        return
    if script.stuck:
        return
    if script.json:
        await send({"type": "websocket.send", "text": "no event"})
        return
    if not script.empty:
        async for piece in pieces(script):
            if piece is None:
                await send({"type": "websocket.close", "code": 1011})
                raise ConnectionError("as told")
            await send({"type": "websocket.send", "bytes": piece})
    await tell("response.done")


@contextlib.contextmanager
def bad_server() -> Iterator[str]:
    """Its URL."""
    configuration = uvicorn.Config(
        app, lifespan="off", log_config=None, log_level="critical", timeout_graceful_shutdown=1, ws="websockets-sansio"
    )
    with in_this_process(configuration) as url:
        yield url
