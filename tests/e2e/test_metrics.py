"""Both pages of metrics name what docs/metrics.md names."""

from __future__ import annotations

import re

import httpx

from tests.e2e.test_triton import TEXT
from tests.e2e.triton import ask
from tests.serving import ROOT, Serving, wait_for

ROW = re.compile(r"^\| `(qwen3_tts_\w+)` \| (\w+) \|", re.MULTILINE)
TYPE = re.compile(r"^# TYPE (qwen3_tts_\w+) (\w+)$", re.MULTILINE)


def documented(section: str) -> list[tuple[str, str]]:
    """Names and kinds in a section of the page."""
    _, text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").split(f"## {section}\n")
    return ROW.findall(text.split("\n## ")[0])


def shown(url: str) -> list[tuple[str, str]]:
    return sorted(TYPE.findall(httpx.get(url).text))


def as_triton_shows(metrics: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """With a histogram as the counters that it consists of."""
    parts = [
        (f"{name}_{part}", "counter")
        for name, kind in metrics
        if kind == "histogram"
        for part in ("bucket", "sum", "count")
    ]
    return sorted(parts + [metric for metric in metrics if metric[1] != "histogram"])


def test_the_page_names_each_metric_of_the_proxy_and_no_other(server: Serving) -> None:
    assert shown(f"{server.url}/metrics") == sorted(documented("The proxy"))


def test_the_page_names_each_metric_of_the_engine_and_no_other(server: Serving, base_server: Serving) -> None:
    assert shown(server.facts["triton_metrics"]) == as_triton_shows(documented("The engine"))
    everything = documented("The engine") + documented("Cloned voices")
    assert shown(base_server.facts["triton_metrics"]) == as_triton_shows(everything)


def test_a_histogram_of_the_engine_is_one_for_prometheus(server: Serving) -> None:
    frames = 12
    borders = ("1", "2", "4", "8", "16", "32", "64", "+Inf")
    buckets = [f'qwen3_tts_step_rows_bucket{{le="{border}"}}' for border in borders]
    series = ("qwen3_tts_step_rows_sum", "qwen3_tts_step_rows_count", *buckets)
    before = server.counted(*series)
    ask(server.triton_grpc, "tts", TEXT, ignore_eos=True, max_new_tokens=frames)

    def is_whole() -> bool:
        total, count, *within = (now - before[name] for name, now in server.counted(*series).items())
        return total >= frames and within == sorted(within) and within[-1] == count > 0

    wait_for(is_whole)  # the page comes later, a series at a time
