"""Keys and values of past positions in fixed slots: a stream owns one slot for its whole life.

Layout per layer: [slots, positions, kv_heads, head_dim], so one position's write is one contiguous row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Span:
    """Where one batch writes and what it may see: `rows` rows of `width` positions each.

    slots [rows], flat [rows * width] (slot and position in one index), context: cache positions that are read,
    mask [rows, 1, width, context] True where a query may look.
    """

    slots: Tensor
    flat: Tensor
    context: int
    mask: Tensor


class KVCache:
    """`layers` pairs of key and value tensors; the last slot is scratch for rows that only pad a batch."""

    def __init__(
        self,
        layers: int,
        slots: int,
        positions: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, slots + 1, positions, kv_heads, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.positions = positions
        self.scratch = slots

    def span(self, slots: Tensor, positions: Tensor, context: int) -> Span:
        """The span of `slots` [rows] at `positions` [rows, width], seeing the slot's first `context` positions."""
        flat = (slots[:, None] * self.positions + positions).flatten()
        keys = torch.arange(context, device=slots.device)
        return Span(slots, flat, context, (keys <= positions[..., None])[:, None])

    def extend(self, layer: int, span: Span, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [rows, width, kv_heads, head_dim] and return the slots' first `context`, as [rows, context, ...]."""
        return (
            self._extend(self.keys[layer], span, keys),
            self._extend(self.values[layer], span, values),
        )

    def _extend(self, store: Tensor, span: Span, new: Tensor) -> Tensor:
        store.flatten(0, 1).index_copy_(0, span.flat, new.flatten(0, 1))
        return store[:, : span.context].index_select(0, span.slots)

    def bytes(self) -> int:
        """Memory of all slots."""
        return 2 * self.keys.numel() * self.keys.element_size()
