"""What a model shows on Triton's /metrics. Knows no engine; Triton's Python module is passed in.

Each change is a message to Triton that holds the interpreter's lock, and with it the whole model, until it's answered.
Hence no message says what is shown already, and a histogram, for which Triton's own kind takes one message an
observation, is shown as the counters that Prometheus reads a histogram from.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from typing import Any

# Upper borders of histogram buckets.
SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192)
ROWS = (1, 2, 4, 8, 16, 32, 64)

Message = Callable[[], None]


@dataclass(frozen=True)
class Metric:
    """A gauge, a counter, or with `buckets` a histogram.

    `read` gives a gauge's value, a counter's total, or a histogram's new observations; it's called often.
    """

    name: str
    description: str
    read: Callable[[], float | list[float]]
    counter: bool = False
    buckets: tuple[float, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


class MetricsPage:
    """All metrics of a model."""

    def __init__(self, pb_utils: Any, metrics: Sequence[Metric]) -> None:
        families = _Families(pb_utils)
        self._shown = [
            _Histogram(families, metric) if metric.buckets else _Single(families, metric) for metric in metrics
        ]

    def news(self) -> Iterator[Message]:
        """Messages to Triton, to be sent in order, after which the page shows what is counted now."""
        return chain.from_iterable(shown.news() for shown in self._shown)


class _Families:
    """Triton's objects for metrics of one name each."""

    def __init__(self, pb_utils: Any) -> None:
        self._kinds = pb_utils.MetricFamily
        self._made: dict[str, Any] = {}

    def series(self, name: str, description: str, labels: Mapping[str, str], *, counts: bool) -> _Series:
        """A new one of the family `name`."""
        if name not in self._made:
            kind = self._kinds.COUNTER if counts else self._kinds.GAUGE
            self._made[name] = self._kinds(name=name, description=description, kind=kind)
        return _Series(self._made[name], labels, counts=counts)


class _Series:
    """One number on the page. Triton's object dies with its family, so both are kept."""

    def __init__(self, family: Any, labels: Mapping[str, str], *, counts: bool) -> None:
        self._family = family
        self._metric = family.Metric(labels=dict(labels))
        self._counts = counts
        self._told = 0.0

    def news(self, value: float) -> Iterator[Message]:
        """The message that makes it show `value`, unless it does."""
        if value != self._told:
            told, self._told = self._told, value
            yield partial(self._metric.increment, value - told) if self._counts else partial(self._metric.set, value)


class _Single:
    """A gauge or counter."""

    def __init__(self, families: _Families, metric: Metric) -> None:
        self._read = metric.read
        self._series = families.series(metric.name, metric.description, metric.labels, counts=metric.counter)

    def news(self) -> Iterator[Message]:
        value = self._read()
        assert not isinstance(value, list)
        return self._series.news(value)


class _Histogram:
    """Counters of a histogram's names: https://prometheus.io/docs/concepts/metric_types/#histogram."""

    def __init__(self, families: _Families, metric: Metric) -> None:
        def series(suffix: str, **labels: str) -> _Series:
            name = f"{metric.name}_{suffix}"
            return families.series(name, metric.description, {**metric.labels, **labels}, counts=True)

        self._read = metric.read
        self._borders = [*metric.buckets, math.inf]
        self._in_bucket = [0] * len(self._borders)
        self._sum = 0.0
        self._buckets = [series("bucket", le=_border(border)) for border in self._borders]
        self._total, self._count = series("sum"), series("count")

    def news(self) -> Iterator[Message]:
        observed = self._read()
        assert isinstance(observed, list)
        for observation in observed:
            self._in_bucket[bisect.bisect_left(self._borders, observation)] += 1
            self._sum += observation
        within = list(accumulate(self._in_bucket))
        # From the widest on, so that at no moment a bucket has more than one that holds it.
        for series, count in zip(reversed(self._buckets), reversed(within), strict=True):
            yield from series.news(count)
        yield from self._total.news(self._sum)
        yield from self._count.news(within[-1])


def _border(border: float) -> str:
    return "+Inf" if math.isinf(border) else f"{border:g}"
