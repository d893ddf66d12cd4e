"""Record a function's CUDA kernels once and replay them: one launch by the host instead of a thousand.

Only for functions of tensors whose shapes never change, that never look at a value on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

WARM_UPS = 3  # runs before the recording, in which libraries choose and allocate


class Graphs:
    """Recorded functions by key. On a CPU they are simply called."""

    def __init__(self, device: torch.device, idle_slot: int) -> None:
        """`idle_slot` is where recordings write: they run a function more often than it was asked for."""
        self._device = device
        self._idle_slot = idle_slot
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._recorded: dict[Hashable, Callable[..., Tensor]] = {}

    def run(self, key: Hashable, function: Callable[..., Tensor], slots: Tensor, *inputs: Tensor) -> Tensor:
        """`function(slots, *inputs)`, recorded when `key` comes for the first time.

        A key stands for a function and its inputs' shapes. The result is overwritten by the key's next run.
        """
        if self._pool is None:
            return function(slots, *inputs)
        if key not in self._recorded:
            self._recorded[key] = self._record(function, (slots, *inputs))
        return self._recorded[key](slots, *inputs)

    def _record(self, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        held = [tensor.clone() for tensor in inputs]
        held[0].fill_(self._idle_slot)
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                function(*held)
        torch.cuda.current_stream(self._device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = function(*held)

        def replay(*fresh: Tensor) -> Tensor:
            for place, tensor in zip(held, fresh, strict=True):
                place.copy_(tensor, non_blocking=True)
            graph.replay()
            return result

        return replay
