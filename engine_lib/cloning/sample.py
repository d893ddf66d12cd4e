"""What the voice engine takes: a sample of someone's voice, and where its voice goes. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_lib.errors import ServiceError
from engine_lib.wire import Voice

Reply = Callable[[Voice | ServiceError], None]


@dataclass(frozen=True, eq=False)
class Sample:
    """Someone's voice: float32 [samples] at 24 kHz, mono, and what it says, if that is known.

    `reply` is called exactly once, on the engine's thread.
    """

    audio: npt.NDArray[np.float32]
    text: str
    reply: Reply
