"""The picture: latency over rate, one line for each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from proxy.bench.report import Results
from proxy.bench.summary import Level, Spread


def draw(all_results: Sequence[Results], path: Path) -> None:
    """Write a PNG or SVG, by the suffix. A hollow mark: the level had underruns or failures."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, all_results, "first audible sound", lambda level: level.audible_ms or level.playable_ms)
    _panel(right, all_results, "end to end", lambda level: level.end_to_end_ms)
    right.legend(fontsize="small")
    figure.suptitle("Poisson arrivals; solid: p95, dotted: p50, hollow: underruns or failures", fontsize="medium")
    figure.savefig(path, dpi=130)


def _panel(axes: Axes, all_results: Sequence[Results], title: str, figures: Callable[[Level], Spread | None]) -> None:
    rates: set[float] = set()
    for number, results in enumerate(all_results):
        points = [(level, spread) for level in results.levels if (spread := figures(level)) is not None]
        x = [level.rate for level, _ in points]
        rates.update(x)
        color = f"C{number % 10}"
        axes.plot(x, [spread.p95 for _, spread in points], color=color, label=results.label)
        axes.plot(x, [spread.p50 for _, spread in points], color=color, linestyle=":")
        for level, spread in points:
            is_clean = level.underruns == 0 and level.succeeded == level.requests
            axes.plot(level.rate, spread.p95, "o", color=color, markerfacecolor=color if is_clean else "white")
    axes.set(title=title, xlabel="requests a second", ylabel="ms", xscale="log", yscale="log")
    axes.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
    axes.set_xticks([], minor=True)
    axes.grid(visible=True, which="both", alpha=0.3)
