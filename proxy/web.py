"""The proxy's process, which `serve` starts: the app on an inherited socket, until SIGTERM and its responses' end.

`python -m proxy.web DESCRIPTOR DRAIN_TIMEOUT_S`
"""

from __future__ import annotations

import socket
import sys
import time
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from engine_lib.errors import NotReady
from proxy.app import create_app
from proxy.errors import answer
from proxy.settings import Settings

STILL_OPEN = ("/health", "/metrics")  # while the rest is refused
CUT_S = 1  # for what still runs after the drain timeout to notice that it is cancelled


class Gate:
    """Lets requests through to `app` until it is closed; after that only those inside go on."""

    def __init__(self, app: ASGIApp, drain_timeout_s: float) -> None:
        self._app = app
        self._drain_timeout_s = drain_timeout_s
        self._inside = 0
        self._deadline: float | None = None  # of those inside, once closed

    def close(self) -> None:
        """Refuse what comes from now on."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._drain_timeout_s

    @property
    def drained(self) -> bool:
        """Closed, and nobody inside or their time over."""
        return self._deadline is not None and (self._inside == 0 or time.monotonic() >= self._deadline)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if self._deadline is not None and scope["type"] == "http" and scope["path"] not in STILL_OPEN:
            await answer(NotReady("The server is shutting down."))(scope, receive, send)
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1


class _Server(uvicorn.Server):
    """On SIGTERM uvicorn would stop listening at once; a client's next request is better told that we shut down."""

    def __init__(self, config: uvicorn.Config, gate: Gate) -> None:
        super().__init__(config)
        self._gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gate.close()

    async def on_tick(self, counter: int) -> bool:
        """Uvicorn asks this ten times a second whether to end."""
        return await super().on_tick(counter) or self._gate.drained


def main(descriptor: int, drain_timeout_s: float) -> None:
    """Serve on the listening socket `descriptor`. After SIGTERM running responses get `drain_timeout_s`."""
    gate = Gate(create_app(Settings.from_environment()), drain_timeout_s)
    config = uvicorn.Config(gate, log_level="warning", timeout_graceful_shutdown=CUT_S)
    _Server(config, gate).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
