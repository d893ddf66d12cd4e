"""Many outcomes in figures. The meaning of each figure stands in docs/benchmarks.md."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from proxy.bench.load import Run
from proxy.bench.outcome import Failure, Outcome

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Nearest-rank percentiles."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class Level:
    """One rate. Percentiles are over the measured requests that succeeded; None where there is none."""

    rate: float  # requests a second, as planned
    requests: int  # measured ones
    succeeded: int
    failures: Mapping[str, int]  # kind -> how many; kinds that didn't happen are left out
    silent: int  # succeeded, but nothing of it was audible
    first_byte_ms: Spread | None
    playable_ms: Spread | None
    audible_ms: Spread | None
    onset_ms: Spread | None  # silence before the audible sound, in the sound
    end_to_end_ms: Spread | None
    real_time_factor: Spread | None  # end to end over the sound's length
    gap_ms: Spread | None  # from one arrival of sound to the next, all gaps together
    underruns: int  # of all measured requests, failed ones too
    underrun_requests: int  # that had any
    stalled_ms: float  # silence in all underruns together
    audio_s: float  # all sound of those that succeeded
    audio_per_second: float  # that over the time from the first measured request's due time to the last one's end
    in_flight_peak: int
    lag_ms: Spread | None  # how late the client itself was; large: the client is the bottleneck

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return asdict(self)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the least value that so many percent of all values don't exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def summarise(rate: float, run: Run) -> Level:
    """The figures of one rate."""
    measured = [outcome for outcome in run.outcomes if outcome.measured]
    good = [outcome for outcome in measured if outcome.failure is None]
    heard = [outcome.heard for outcome in good]
    audio_s = sum(one.audio_s for one in heard)
    return Level(
        rate=rate,
        requests=len(measured),
        succeeded=len(good),
        failures=_count(outcome.failure for outcome in measured),
        silent=sum(one.audible_s is None for one in heard),
        first_byte_ms=_spread_ms(one.first_byte_s for one in heard),
        playable_ms=_spread_ms(one.playable_s for one in heard),
        audible_ms=_spread_ms(one.audible_s for one in heard),
        onset_ms=_spread_ms(one.onset_s for one in heard),
        end_to_end_ms=_spread_ms(outcome.total_s for outcome in good),
        real_time_factor=_spread([outcome.total_s / outcome.heard.audio_s for outcome in good], 4),
        gap_ms=_spread_ms(gap for one in heard for gap in one.gaps_s),
        underruns=sum(outcome.heard.underruns for outcome in measured),
        underrun_requests=sum(outcome.heard.underruns > 0 for outcome in measured),
        stalled_ms=_ms(sum(outcome.heard.stalled_s for outcome in measured)),
        audio_s=round(audio_s, 3),
        audio_per_second=round(audio_s / _span_s(measured), 3) if measured else 0.0,
        in_flight_peak=run.in_flight_peak,
        lag_ms=_spread_ms(outcome.lag_s for outcome in measured),
    )


def _span_s(measured: Sequence[Outcome]) -> float:
    return max(one.due_s + one.lag_s + one.total_s for one in measured) - min(one.due_s for one in measured)


def _count(failures: Iterable[Failure | None]) -> dict[str, int]:
    counted = collections.Counter(failure for failure in failures if failure is not None)
    return {failure.value: counted[failure] for failure in Failure if counted[failure]}


def _spread(values: Sequence[float], digits: int) -> Spread | None:
    if not values:
        return None
    return Spread(*(round(percentile(values, percent), digits) for percent in PERCENTILES))


def _spread_ms(seconds: Iterable[float | None]) -> Spread | None:
    return _spread([1000 * value for value in seconds if value is not None], 3)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
