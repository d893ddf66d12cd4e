"""Laws of `bench`, run whole against a deliberately bad server: what is injected is what is reported."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.bench.plan import Request, plan
from proxy.bench.targets.http import fields_of
from proxy.cli import main
from tests.proxy.bench.bad_server import Script, bad_server

RATE, WARMUP, SEED, TIMEOUT_S = 25.0, 0.4, 3, 6.0
BAD = {
    "overloaded": "status=429",
    "not_ready": "status=503",
    "server_error": "status=500",
    "refused": "status=400",
    "broken": "break_at=2",
    "empty": "empty=1",
    "malformed": "half=1",
    "malformed ": "json=1",
    "timeout": "stuck=1",
}
GOOD = ["hello there", "stalls=1", "stalls=2", "silent=1", "silence_ms=240", "delay_ms=700"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with bad_server() as address:
        yield address


def measured(
    folder: Path, url: str, texts: list[str], *options: str, seconds: float = 0.4
) -> tuple[dict[str, Any], list[Request]]:
    """Level 0 of the results, and what was planned for it."""
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    arguments = {
        "--url": url, "--texts": str(folder / "texts.txt"), "--rate": str(RATE), "--seconds": str(seconds),
        "--warmup": str(WARMUP), "--seed": str(SEED), "--timeout": str(TIMEOUT_S), "--output": str(folder / "out"),
    }  # fmt: skip
    main(["bench", *(part for pair in arguments.items() for part in pair), *options])
    (level,) = json.loads((folder / "out.json").read_text(encoding="utf-8"))["levels"]
    planned = [request for request in plan(texts, RATE, WARMUP, seconds, SEED) if request.measured]
    return level, planned


@pytest.mark.parametrize("over", ["http", "ws"])
def test_injected_failures_underruns_silence_and_delays_are_reported_exactly(
    over: str, url: str, tmp_path: Path
) -> None:
    level, planned = measured(tmp_path, url, [*BAD.values(), *GOOD], "--over", over, "--no-plot", seconds=2.4)
    kinds = {script: kind.strip() for kind, script in BAD.items()}
    assert level["requests"] == len(planned) > 3 * len(kinds)
    assert level["failures"] == collections.Counter(kinds[one.text] for one in planned if one.text in kinds)
    good = [Script.of(one.text) for one in planned if one.text not in kinds]
    assert level["succeeded"] == len(good)
    assert level["underruns"] == sum(script.stalls for script in good)
    assert level["underrun_requests"] == sum(script.stalls > 0 for script in good)
    assert level["silent"] == sum(script.silent for script in good)
    assert level["audio_s"] == pytest.approx(sum(script.audio_s for script in good))
    for row, request in zip(level["rows"], planned, strict=True):
        seen, script = dict(zip(level["columns"], row, strict=True)), Script.of(request.text)
        assert (seen["failure"] or "").partition(":")[0] == kinds.get(request.text, "")
        if seen["failure"]:
            continue
        assert seen["underruns"] == script.stalls
        assert (seen["stalled_ms"] > 0) == (script.stalls > 0)
        assert seen["onset_ms"] == (None if script.silent else script.silence_ms)
        assert (seen["audible_ms"] is None) == bool(script.silent)
        assert seen["first_byte_ms"] >= script.delay_ms
        assert seen["total_ms"] >= script.delay_ms + script.stalls * 1100
        assert seen["due_s"] == pytest.approx(request.due_s, abs=1e-4)


def test_what_it_writes_is_read_by_bench_report_and_holds_its_options(url: str, tmp_path: Path) -> None:
    options = ("--label", "mine", "--note", "card=none", "--api-key", "secret", "--field", 'pace="brisk"')
    level, _ = measured(tmp_path, url, ["hello"], *options)
    written = (tmp_path / "out.json").read_text(encoding="utf-8")
    document = json.loads(written)
    assert (document["label"], document["notes"], document["options"]["field"]) == (
        "mine", {"card": "none"}, [["pace", "brisk"]],
    )  # fmt: skip
    assert "secret" not in written
    assert main(["bench-report", str(tmp_path / "out.json"), "-o", str(tmp_path / "again")]) == 0
    for suffix in ("md", "png"):
        first, again = (tmp_path / f"{name}.{suffix}" for name in ("out", "again"))
        assert first.read_bytes() == again.read_bytes()
    assert f"| mine | 25 | {level['succeeded']}/{level['requests']} | 0 |" in (tmp_path / "out.md").read_text()


def test_nobody_there_is_code_1_and_every_request_is_unreachable(tmp_path: Path) -> None:
    for over in ("http", "ws"):
        options = ("--over", over, "--no-plot")
        level, planned = measured(tmp_path, "http://127.0.0.1:9", ["hello"], *options)
        assert level["failures"] == {"unreachable": len(planned)}
        assert level["audible_ms"] is None
    arguments = ["bench", "--url", "http://127.0.0.1:9", "--rate", "50", "--seconds", "0.2", "--warmup", "0"]
    assert main([*arguments, "-o", str(tmp_path / "x")]) == 1


def test_a_server_of_another_kind_gets_no_field_that_it_may_not_know() -> None:
    request = Request(number=0, due_s=0, measured=True, text="Hello.", frames=5, seed=7)
    assert fields_of(request, own_lengths=True) == {}
    assert fields_of(request, own_lengths=False) == {"seed": 7, "ignore_eos": True, "max_new_tokens": 6}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["bench", "--rate", "0"], "--rate"),
        (["bench", "--seconds", "nan"], "--seconds"),
        (["bench", "--texts", "nowhere.txt"], "nowhere.txt"),
        (["bench", "--field", "voice=ryan"], "voice=ryan"),
        (["bench", "-o", "nowhere/bench"], "nowhere"),
        (["bench", "--url", "localhost:8000"], "localhost:8000"),
        (["bench", "--over", "grpc", "--field", "temperature=9"], "temperature"),
        (["bench-report", "pyproject.toml"], "pyproject.toml"),
    ],
)
def test_a_wrong_option_is_named_with_code_2(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    assert code == 2
    assert named in capsys.readouterr().err
