"""What the training loops share: a step as one CUDA graph, learning rates on the device, averaged weights, a log."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

log = logging.getLogger("training")


def start_log() -> None:
    """Messages with the seconds since now."""
    logging.basicConfig(level=logging.INFO, format="%(relative)7.1f %(message)s")
    started = time.time()

    def stamp(record: logging.LogRecord) -> bool:
        record.relative = record.created - started
        return True

    logging.getLogger().handlers[0].addFilter(stamp)


def choose_device() -> torch.device:
    """The GPU where there is one, set to TF32: nobody is served from here."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]  # the default one can't be recorded, nor mixed with one that is
    return torch.device("cuda")


def half(device: torch.device) -> torch.autocast:
    """bfloat16 for matrix products on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def as_graph(step: Callable[[], None], learned: Iterable[nn.Parameter], warm_ups: int = 3) -> Callable[[], None]:
    """`step`, which works in place on tensors that stay where they are, recorded once and replayed."""
    if not torch.cuda.is_available():
        return step
    for _ in range(warm_ups):
        step()
    torch.cuda.synchronize()
    for parameter in learned:
        parameter.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        step()
    return graph.replay


def adam(
    groups: Sequence[tuple[Sequence[nn.Parameter], float]], betas: tuple[float, float], device: torch.device
) -> torch.optim.AdamW:
    """AdamW over (parameters, weight decay) groups; its rate is a tensor, to be set with `set_rate`."""
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        [{"params": list(parameters), "weight_decay": decay} for parameters, decay in groups],
        lr=torch.tensor(1e-5, device=device),
        betas=betas,
        fused=on_gpu,
        capturable=on_gpu,
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """The learning rate from now on, also of a recorded step."""
    for group in optimiser.param_groups:
        group["lr"].fill_(rate)


def cosine(progress: float, least: float) -> float:
    """From 1 at progress 0 down to `least` at 1."""
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


class Average:
    """A moving average of parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], pace: float) -> None:
        self._parameters = [parameter.detach() for parameter in parameters]
        self._averages = [parameter.clone() for parameter in self._parameters]
        self._pace = pace

    @torch.no_grad()
    def update(self) -> None:
        """Move towards the parameters."""
        torch._foreach_lerp_(self._averages, self._parameters, self._pace)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange averages and parameters; a second call undoes it."""
        for average, parameter in zip(self._averages, self._parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)


def clip(parameters: Sequence[nn.Parameter], norm: float) -> Tensor:
    """Clip the gradient's norm; returns what it was."""
    return torch.nn.utils.clip_grad_norm_(parameters, norm, foreach=True)
