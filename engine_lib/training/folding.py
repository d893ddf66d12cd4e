"""Lets the serving modules learn: what their `fold` computes once from loaded weights is computed here with gradients.

Everything else of them is used as it is, so what is trained is what is served.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.codec.model import SnakeBeta
from engine_lib.codec.streaming import Rows
from engine_lib.layers import SwiGLU
from engine_lib.talker.transformer import Attention


def refold(module: nn.Module) -> None:
    """Do the work of every `fold` below `module`, differentiably. Call it before each forward pass."""
    for part in module.modules():
        if isinstance(part, Attention):
            part._qkv = torch.cat([part.q_proj.weight, part.k_proj.weight, part.v_proj.weight])
            norms = (part.q_norm.weight,) * part.heads + (part.k_norm.weight,) * part.kv_heads
            part._norms = torch.stack(norms)
        elif isinstance(part, SwiGLU):
            part._gate_up = torch.cat([part.gate_proj.weight, part.up_proj.weight])
        elif isinstance(part, SnakeBeta):
            part.rate = part.alpha.exp()[:, None]
            part.gain = 1 / (part.beta.exp()[:, None] + 1e-9)


class WholeRows(Rows):
    """Rows from a stream's start, whose state nobody needs afterwards: layers see zeros before, and keep nothing."""

    @classmethod
    def of(cls, rows: int, frames: int, device: torch.device) -> WholeRows:
        """`rows` beginnings of `frames` frames."""
        zeros = torch.zeros(rows, dtype=torch.int64, device=device)
        return cls(slots=zeros, starts=zeros, lengths=zeros + frames, frames=frames, even=True)

    def extend(self, state: Tensor, new: Tensor, dim: int = -1) -> Tensor:
        """`new` behind as many zeros as `state` would keep, along `dim` (-1 or -2)."""
        width = state.shape[dim]
        return F.pad(new, (width, 0) if dim == -1 else (0, 0, width, 0))
