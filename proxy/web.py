"""The proxy's process, which `serve` starts: the app on an inherited socket, until SIGTERM and its responses' end.

`python -m proxy.web DESCRIPTOR DRAIN_TIMEOUT_S`
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import sys
import time
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_lib.errors import NotReady
from proxy import logs
from proxy.app import create_app
from proxy.errors import answer
from proxy.responses import cut_on_purpose
from proxy.service import Service
from proxy.settings import Settings

log = logging.getLogger(__name__)

STILL_OPEN = ("/health", "/metrics")  # while the rest is refused
STALLED_S = 10.0  # a client that reads nothing for so long isn't waited for when we stop
NEVER = math.inf
CUT_S = 1  # for what still runs after the drain timeout to notice that it is cancelled


class Gate:
    """Lets requests through to `app` until it is closed; after that only those inside go on."""

    def __init__(self, app: ASGIApp, drain_timeout_s: float, stalled_s: float = STALLED_S) -> None:
        self._app = app
        self._drain_timeout_s = drain_timeout_s
        self._stalled_s = stalled_s
        self._inside: dict[object, float] = {}  # when each began to send what its client hasn't read yet; else never
        self._closed_at: float | None = None

    def close(self) -> None:
        """Refuse what comes from now on."""
        if self._closed_at is None:
            self._closed_at = time.monotonic()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed_at is not None

    @property
    def drained(self) -> bool:
        """Closed, and nobody inside who still reads, or their time over."""
        if self._closed_at is None:
            return False
        now = time.monotonic()
        if now >= self._closed_at + self._drain_timeout_s:
            return True
        return all(now - max(since, self._closed_at) > self._stalled_s for since in self._inside.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self.closed and scope["path"] not in STILL_OPEN:
            await answer(NotReady("The server is shutting down."))(scope, receive, send)
            return
        me = object()
        self._inside[me] = NEVER

        async def send_timed(message: Message) -> None:
            self._inside[me] = time.monotonic()
            await send(message)
            self._inside[me] = NEVER

        try:
            await self._app(scope, receive, send_timed)
        except asyncio.CancelledError:
            if not self.closed:
                raise
            # Uvicorn cancels what it has waited for long enough, and would log where that was: said once is enough.
            log.warning("a response was cut: %s", scope["path"])
            cut_on_purpose.set(True)
        finally:
            del self._inside[me]


class _Server(uvicorn.Server):
    """On SIGTERM uvicorn would stop listening at once; a client's next request is better told that we shut down."""

    def __init__(self, config: uvicorn.Config, gate: Gate, app: FastAPI) -> None:
        super().__init__(config)
        self._gate = gate
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gate.close()

    async def on_tick(self, counter: int) -> bool:
        """Uvicorn asks this ten times a second whether to end."""
        if self._gate.closed:  # told here and not in the signal handler, which may run between any two steps
            cast(Service, self._app.state.service).draining.set()
        return await super().on_tick(counter) or self._gate.drained


def _is_news(record: logging.LogRecord) -> bool:
    """Whether we haven't said ourselves what uvicorn says here."""
    if record.msg == "Invalid UTF-8 sequence received from client.":
        record.exc_info = None  # where it was when a client sent that; the line alone says all
    return not (record.msg.startswith("ASGI callable returned without ") and cut_on_purpose.get())


def configuration(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves the app, be it here or in a test."""
    return uvicorn.Config(
        app,
        log_level="warning",
        log_config=None,  # logs.py sees to it
        timeout_graceful_shutdown=CUT_S,
        # What is a little too large is refused in words, by the app; the rest before it takes memory.
        ws_max_size=16 * settings.max_message_bytes,
        ws_per_message_deflate=False,  # sound hardly shrinks, and packing it would hold up everyone's
        # Pongs wait behind the sound that a client plays as it comes: a late one doesn't mean that it's gone.
        ws_ping_timeout=None,
    )


def main(descriptor: int, drain_timeout_s: float) -> None:
    """Serve on the listening socket `descriptor`. After SIGTERM running responses get `drain_timeout_s`."""
    settings = Settings.from_environment()
    logs.configure(settings.log_format)
    app = create_app(settings)
    gate = Gate(app, drain_timeout_s)
    config = configuration(gate, settings)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    _Server(config, gate, app).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
