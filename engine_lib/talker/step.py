"""One step of the model as the engine sees it, whichever way it is computed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engine_lib.talker.scheduler import Batch
from engine_lib.talker.stream import Sampling, Stream


@dataclass(frozen=True)
class Step:
    """A step on its way: the streams that sample in it, and how to wait for their codes, int32 [streams, 16].

    The first code may be the end of speech; the other fifteen mean nothing then.
    """

    streams: list[Stream]
    wait: Callable[[], NDArray[np.int32]]
    kind: Hashable = None  # steps of a kind take about as long as each other
    took: Callable[[], float] | None = None  # seconds on the device, once its codes are there; None: nobody knows


class Steps(Protocol):
    """A model with everything that a slot holds on the device."""

    device: torch.device
    path: str  # how it computes, as clients are told
    overlaps: bool  # whether a step may start while the one before is still on its way

    def start(self, batch: Batch) -> Step:
        """Advance prompts and make one frame of every other stream."""

    def warm_up(self, usual: Sampling) -> None:
        """Do once what the first steps would otherwise wait for; most streams sample as `usual`."""

    def bytes(self) -> int:
        """Memory of all slots' keys and values."""
