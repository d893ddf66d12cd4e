"""Which request is due when. The same seed and rate make the same plan, whatever server it is for."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine_lib.wire import MAX_SEED
from proxy.bench.texts import frames_of


@dataclass(frozen=True)
class Request:
    """One utterance to ask for."""

    number: int  # 0, 1, 2, ... within its level
    due_s: float  # since the level's begin
    measured: bool  # False: it only warms up
    text: str
    frames: int  # that the text takes to say; asked for where lengths come from the texts
    seed: int  # for the server's sampling


def plan(texts: Sequence[str], rate: float, warmup_s: float, seconds: float, seed: int) -> list[Request]:
    """Poisson arrivals of `rate` a second for `warmup_s` and then `seconds`, each with one of `texts`.

    The gaps between arrivals are drawn from an exponential distribution of mean 1 / rate. Every text comes once
    before one comes again.
    """
    dice = random.Random(f"{seed}/{rate:g}")
    order = _shuffled_for_ever(texts, dice)
    requests: list[Request] = []
    due_s = dice.expovariate(rate)
    while due_s < warmup_s + seconds:
        text = next(order)
        requests.append(
            Request(
                number=len(requests),
                due_s=due_s,
                measured=due_s >= warmup_s,
                text=text,
                frames=frames_of(text),
                seed=dice.randint(0, MAX_SEED),
            )
        )
        due_s += dice.expovariate(rate)
    return requests


def _shuffled_for_ever(texts: Sequence[str], dice: random.Random) -> Iterator[str]:
    while True:
        yield from dice.sample(texts, len(texts))
