"""How often something may be done: some times at once, then so many a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Pace:
    """Counts what was done, and makes whoever did too much wait."""

    def __init__(self, at_once: int, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = 1 / per_second
        self._allowance_s = at_once * self._period_s
        self._clock = clock
        self._paid_until = clock()  # when all that was done is no longer too much

    def count(self) -> None:
        """It was done once more."""
        self._paid_until = max(self._paid_until, self._clock()) + self._period_s

    @property
    def wait_s(self) -> float:
        """How long to wait before it may be done again."""
        return max(0.0, self._paid_until - self._allowance_s - self._clock() + self._period_s)

    async def turn(self) -> None:
        """Return once it may be done."""
        await asyncio.sleep(self.wait_s)
