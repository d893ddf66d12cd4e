"""Results as files: JSON, which holds all, and a Markdown table made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engine_lib.errors import ConfigurationError
from proxy.bench.load import Run
from proxy.bench.outcome import Outcome
from proxy.bench.summary import Level, Spread

LEVEL = TypeAdapter(Level)
SCHEMA = 1  # of the JSON; rises when a figure changes its meaning
COLUMNS = ("due_s", "lag_ms", "first_byte_ms", "playable_ms", "audible_ms", "onset_ms", "total_ms", "audio_s",
           "underruns", "stalled_ms", "failure")  # fmt: skip
HEADER = (
    "run", "req/s", "ok", "failed", "first byte ms", "playable ms", "audible ms", "end to end ms", "RTF",
    "audio s/s", "gap ms", "underruns", "stalled ms", "in flight", "client lag ms",
)  # fmt: skip
LEGEND = (
    "Cells with three numbers are p50 / p95 / p99. The meaning of each column: docs/benchmarks.md of qwen3-tts-triton."
)


@dataclass(frozen=True)
class Results:
    """What a file of results says."""

    label: str
    document: Mapping[str, Any]  # all of it
    levels: Sequence[Level]  # the figures in it, one for each rate

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Results:
        """Raises ConfigurationError where it isn't one."""
        if document.get("schema") != SCHEMA:
            raise ConfigurationError(f"results of schema {document.get('schema')}, not {SCHEMA}")
        try:
            return cls(document["label"], document, [LEVEL.validate_python(entry) for entry in document["levels"]])
        except (ValidationError, LookupError) as error:
            raise ConfigurationError(f"no results of bench: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises ConfigurationError."""
        try:
            return cls.of(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigurationError(f"{path}: no JSON of results ({error}).") from None
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error.message}.") from None


def entry(level: Level, run: Run) -> dict[str, Any]:
    """One rate as JSON: the figures and, a row each, the measured requests."""
    rows = [_row(outcome) for outcome in run.outcomes if outcome.measured]
    return {**level.as_json(), "columns": COLUMNS, "rows": rows}


def write(results: Results, path: Path) -> None:
    """The JSON, a line for each request."""
    levels = []
    for level in results.document["levels"]:
        head = json.dumps({key: value for key, value in level.items() if key != "rows"}, indent=2)
        rows = ",\n    ".join(json.dumps(row) for row in level["rows"])
        levels.append(f'{head[:-2]},\n  "rows": [\n    {rows}\n  ]\n}}')
    head = json.dumps({key: value for key, value in results.document.items() if key != "levels"}, indent=2)
    path.write_text(f'{head[:-2]},\n"levels": [\n{",".join(levels)}\n]\n}}\n', encoding="utf-8")


def markdown(all_results: Sequence[Results]) -> str:
    """A table over all of them."""
    lines = [_line(HEADER), _line(["---"] * len(HEADER))]
    lines += [_line(_cells(results.label, level)) for results in all_results for level in results.levels]
    return "\n".join([*lines, "", LEGEND, ""])


def _row(outcome: Outcome) -> list[float | int | str | None]:
    heard = outcome.heard
    return [
        round(outcome.due_s, 4),
        _ms(outcome.lag_s),
        _ms(heard.first_byte_s),
        _ms(heard.playable_s),
        _ms(heard.audible_s),
        _ms(heard.onset_s),
        _ms(outcome.total_s),
        round(heard.audio_s, 3),
        heard.underruns,
        _ms(heard.stalled_s),
        f"{outcome.failure}: {outcome.detail}" if outcome.failure else None,
    ]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)


def _cells(label: str, level: Level) -> list[str]:
    failed = ", ".join(f"{count} {kind}" for kind, count in level.failures.items()) or "0"
    return [
        label,
        f"{level.rate:g}",
        f"{level.succeeded}/{level.requests}" + (f", {level.silent} silent" if level.silent else ""),
        failed,
        *(_spread(spread) for spread in (level.first_byte_ms, level.playable_ms, level.audible_ms)),
        _spread(level.end_to_end_ms),
        _spread(level.real_time_factor, 3),
        f"{level.audio_per_second:.1f}",
        _spread(level.gap_ms),
        f"{level.underruns} in {level.underrun_requests}" if level.underruns else "0",
        f"{level.stalled_ms:.0f}",
        str(level.in_flight_peak),
        _spread(level.lag_ms),
    ]


def _spread(spread: Spread | None, digits: int = 1) -> str:
    return " / ".join(f"{value:.{digits}f}" for value in (spread.p50, spread.p95, spread.p99)) if spread else "-"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
