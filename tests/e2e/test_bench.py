"""The load generator against the real server, and what must hold of the server under load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.plan import plan
from engine_lib.wire import FRAME_SECONDS
from proxy.cli import main
from tests.serving import Serving

TEXTS = ["Good day.", "It rains.", "Two, three.", "我来了。"]
RATE, SECONDS = 6.0, 2.0


@pytest.mark.parametrize("over", ["http", "ws", "grpc"])
def test_every_request_of_an_open_loop_is_spoken_as_long_as_its_text_asks(
    over: str, server: Serving, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    output = tmp_path / "bench"
    options = ["--rate", str(RATE), "--seconds", str(SECONDS), "--warmup", "0.5", "--no-plot", "-o", str(output)]
    where = ["--url", server.url, "--triton", server.triton_grpc, "--texts", str(tmp_path / "texts.txt")]
    assert main(["bench", "--over", over, *where, *options]) == 0
    (level,) = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["levels"]
    planned = [request for request in plan(TEXTS, RATE, 0.5, SECONDS, 1) if request.measured]
    assert (level["requests"], level["succeeded"], level["failures"]) == (len(planned), len(planned), {})
    spoken = [dict(zip(level["columns"], row, strict=True))["audio_s"] for row in level["rows"]]
    assert spoken == pytest.approx([request.frames * FRAME_SECONDS for request in planned], abs=1e-3)
    assert level["silent"] == 0
    assert level["first_byte_ms"]["p50"] <= level["audible_ms"]["p50"] <= level["end_to_end_ms"]["p50"]
