"""One decoder layer with grouped-query attention and QK-norm, the same in the talker and in its code predictor."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.layers import RMSNorm, SwiGLU, one_matrix, rotate, unit_rms
from engine_lib.talker.config import TransformerConfig


class Memory(Protocol):
    """Past keys and values of one layer: takes the new ones, gives back all that the queries may look at."""

    def __call__(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """[rows, width, kv_heads, head_dim] each -> [rows, context, kv_heads, head_dim] each."""


class Attention(nn.Module):
    """Causal grouped-query attention; q and k are normalised per head before the rotation (model.md 3)."""

    _qkv: Tensor | None
    _norms: Tensor | None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.register_buffer("_qkv", None, persistent=False)
        self.register_buffer("_norms", None, persistent=False)

    def fold(self) -> None:
        """Make one matrix of the three projections, and one table of the norms' weights by head."""
        self._qkv = one_matrix(self.q_proj, self.k_proj, self.v_proj)
        norms = [self.q_norm.weight.data] * self.heads + [self.k_norm.weight.data] * self.kv_heads
        self._norms = torch.stack(norms)  # [heads + kv_heads, head_dim]

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:
        """x [rows, width, hidden], cos and sin [rows, width, 1, head_dim], mask [rows, 1, width, context] or None."""
        assert self._qkv is not None, "fold comes first"
        assert self._norms is not None
        rows, width, _ = x.shape
        heads = F.linear(x, self._qkv).view(rows, width, self.heads + 2 * self.kv_heads, self.head_dim)
        qk, v = torch.split(heads, [self.heads + self.kv_heads, self.kv_heads], dim=2)
        qk = rotate(unit_rms(qk, self.q_norm.eps) * self._norms, cos, sin)
        q, k = torch.split(qk, [self.heads, self.kv_heads], dim=2)
        keys, values = memory(k, v)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask,
            enable_gqa=self.heads != self.kv_heads,
        )
        return self.o_proj(out.transpose(1, 2).reshape(rows, width, -1))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Pre-norm attention and SwiGLU, each added to the residual."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden, config.intermediate)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:
        """[rows, width, hidden] -> the same."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, memory, mask)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]
