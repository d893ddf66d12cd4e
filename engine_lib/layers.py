"""The plain building blocks that talker and codec share. Knows tensors; knows neither checkpoints nor streams."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last dimension, in float32, cast back before the weight (model.md 3)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        return unit_rms(x, self.eps) * self.weight


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, computed in float32, in x's dtype."""
    wide = x.float()
    # The mean square by way of the length: on a CPU that is half the time of square and mean for few rows.
    mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square().div_(x.shape[-1])
    return (wide * mean_square.add_(eps).rsqrt_()).to(x.dtype)  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), no biases."""

    _gate_up: Tensor | None

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)
        self.register_buffer("_gate_up", None, persistent=False)

    def fold(self) -> None:
        """Make one matrix of gate and up, once they are loaded; they keep their names as views of it."""
        self._gate_up = one_matrix(self.gate_proj, self.up_proj)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        assert self._gate_up is not None, "fold comes first"
        gate, up = F.linear(x, self._gate_up).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]


def one_matrix(*projections: nn.Linear) -> Tensor:
    """The weights of several projections of one input as one matrix, of which theirs become views."""
    whole = torch.cat([projection.weight.data for projection in projections])
    parts = torch.split(whole, [projection.weight.shape[0] for projection in projections])
    for projection, part in zip(projections, parts, strict=True):
        projection.weight.data = part
    return whole


def fold(module: nn.Module) -> None:
    """Prepare every layer that has something to compute from its loaded weights. Call it once, after loading."""
    for part in module.modules():
        if isinstance(part, Folds):
            part.fold()


@runtime_checkable
class Folds(Protocol):
    """A layer that computes something from its weights once they are loaded."""

    def fold(self) -> None:
        """Compute it."""


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of each position's angles for `rotate`, float32 [*positions.shape, head_dim] (model.md 3).

    The first half of the sines is negated: it multiplies what `rotate` brings over from the second half.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.to(torch.float32)[..., None] * theta**-exponents
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [..., head_dim] by angles that broadcast against it; dimension j pairs with j + head_dim / 2."""
    return torch.addcmul(x * cos.to(x.dtype), x.roll(x.shape[-1] // 2, dims=-1), sin.to(x.dtype))
