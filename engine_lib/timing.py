"""How long something takes on the GPU, for the benches of talker and codec."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

WARM_UPS = 3


def median_time(action: Callable[[], object], repeats: int) -> float:
    """Milliseconds between CUDA events around `action`: the median of `repeats`, after runs that don't count."""
    times = []
    for number in range(WARM_UPS + repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        action()
        end.record()
        end.synchronize()
        if number >= WARM_UPS:
            times.append(begin.elapsed_time(end))
    return float(statistics.median(times))
