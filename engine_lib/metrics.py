"""Numbers that an engine counts and a Triton model shows. The engine writes, readers come at any time."""

from __future__ import annotations

from collections import deque

MAX_PENDING = 10_000  # observations that wait for a reader; without one the oldest go


class Samples:
    """Observations for a histogram, until a reader takes them."""

    def __init__(self) -> None:
        self._pending: deque[float] = deque(maxlen=MAX_PENDING)

    def observe(self, value: float) -> None:
        """Add one."""
        self._pending.append(value)

    def drain(self) -> list[float]:
        """Those since the last call."""
        return [self._pending.popleft() for _ in range(len(self._pending))]
