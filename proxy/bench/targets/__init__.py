"""How a request travels. Each target speaks one request after another, or many at once, over connections it keeps."""

from __future__ import annotations

import time
from typing import Protocol

from proxy.bench.listening import Listener
from proxy.bench.plan import Request


class Stopwatch:
    """Counts from time zero: the moment the first byte of a request's body (or of its text) is sent."""

    def __init__(self) -> None:
        self.zero: float | None = None  # time.perf_counter()

    def start(self) -> None:
        """Time zero is now, unless it has been."""
        if self.zero is None:
            self.zero = time.perf_counter()

    @property
    def elapsed_s(self) -> float:
        """Since time zero."""
        if self.zero is None:
            raise ValueError("not started")
        return time.perf_counter() - self.zero


class Target(Protocol):
    """A server under load. Use one in one event loop, and close it."""

    name: str  # for people: what and where

    async def speak(self, request: Request, watch: Stopwatch, listener: Listener) -> None:
        """Have `request` spoken, to its end: start the watch, feed the listener. Raises Failed, Malformed."""

    async def close(self) -> None:
        """Close its connections."""
