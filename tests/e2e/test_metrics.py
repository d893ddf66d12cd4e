"""Both pages of metrics name what docs/metrics.md names."""

from __future__ import annotations

import re

import httpx

from tests.serving import ROOT, Serving

ROW = re.compile(r"^\| `(qwen3_tts_\w+)` \| (\w+) \|", re.MULTILINE)
TYPE = re.compile(r"^# TYPE (qwen3_tts_\w+) (\w+)$", re.MULTILINE)


def documented(section: str) -> list[tuple[str, str]]:
    """Names and kinds in a section of the page."""
    _, text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").split(f"## {section}\n")
    return ROW.findall(text.split("\n## ")[0])


def shown(url: str) -> list[tuple[str, str]]:
    return sorted(TYPE.findall(httpx.get(url).text))


def test_the_page_names_each_metric_of_the_proxy_and_no_other(server: Serving) -> None:
    assert shown(f"{server.url}/metrics") == sorted(documented("The proxy"))


def test_the_page_names_each_metric_of_the_engine_and_no_other(server: Serving, base_server: Serving) -> None:
    assert shown(server.facts["triton_metrics"]) == sorted(documented("The engine"))
    everything = documented("The engine") + documented("Cloned voices")
    assert shown(base_server.facts["triton_metrics"]) == sorted(everything)
