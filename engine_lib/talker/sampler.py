"""Choose codes from logits, every row by its own rules, in the official order of steps (model.md 3, "Code 0").

Each operation works along a row, so a row's choice never depends on the others: only how much is computed does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEVER = float("-inf")
ALL = 2**31 - 1  # as a top_k


@dataclass(frozen=True)
class Shape:
    """Facts about a batch's rules that spare work no row asks for, and so decide which operations run."""

    all_greedy: bool
    widest_k: int
    any_top_p: bool


@dataclass(frozen=True)
class Rules:
    """How the rows of a batch sample. temperature and top_p float32 [rows], top_k int64 [rows], greedy bool [rows]."""

    shape: Shape
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    greedy: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The rows' settings, in the order of the fields."""
        return self.temperature, self.top_k, self.top_p, self.greedy

    @classmethod
    def of(cls, temperature: list[float], top_k: list[int], top_p: list[float], device: torch.device) -> Rules:
        """Rules from each row's settings: temperature 0 is greedy, top_k 0 is all."""
        limits = [k if k > 0 else ALL for k in top_k]
        greedy = [value == 0 for value in temperature]
        widest = max((k for k, fixed in zip(limits, greedy, strict=True) if not fixed), default=1)
        return cls(
            # Powers of two, so that there are few shapes: the k-th best value is the same among more of them.
            shape=Shape(all(greedy), 1 << (widest - 1).bit_length(), any(value < 1 for value in top_p)),
            temperature=torch.tensor([value or 1.0 for value in temperature], dtype=torch.float32, device=device),
            top_k=torch.tensor(limits, device=device),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device),
            greedy=torch.tensor(greedy, device=device),
        )


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty: logits [rows, vocabulary] of `seen` ids (bool, alike) sink by `penalty` [rows]."""
    factor = penalty[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * factor, logits / factor), logits)


def scores(logits: Tensor, rules: Rules) -> Tensor:
    """Temperature, then top-k (ties of the k-th stay), then top-p (at least one stays): float32, -inf where dropped."""
    result = logits.float() / rules.temperature[:, None]
    vocabulary = result.shape[-1]
    widest = min(rules.shape.widest_k, vocabulary)
    best = result.topk(widest, dim=-1).values
    least = best.gather(1, rules.top_k.clamp(max=widest)[:, None] - 1)
    result = result.masked_fill((result < least) & (rules.top_k < vocabulary)[:, None], NEVER)
    if rules.shape.any_top_p:
        ordered, order = result.sort(dim=-1)
        tail = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1 - rules.top_p)[:, None]
        tail[:, -1] = False
        tail &= (rules.top_p < 1)[:, None]
        result = result.masked_fill(tail.scatter(1, order, tail), NEVER)
    return result


def choose(logits: Tensor, rules: Rules, uniform: Tensor) -> Tensor:
    """One id a row: the likeliest for greedy rows, else the inverse of the distribution function at `uniform` [rows].

    logits [rows, vocabulary] -> int64 [rows].
    """
    likeliest = logits.argmax(dim=-1)
    if rules.shape.all_greedy:
        return likeliest
    # float64, so that the last partial sum is no further from 1 than a uniform number can be.
    reached = scores(logits, rules).double().softmax(dim=-1).cumsum(dim=-1)
    goal = uniform.double()[:, None] * reached[:, -1:]
    drawn = (reached <= goal).sum(dim=-1)
    return torch.where(rules.greedy, likeliest, drawn)
