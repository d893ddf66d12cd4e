"""The load generator against the real server, and what must hold of the server under load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_lib.wire import FRAME_SECONDS
from proxy.bench.plan import plan
from proxy.cli import main
from tests.e2e.triton import Session
from tests.serving import Serving, wait_for

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


ROWS, CHUNKS, FRAMES = "qwen3_tts_step_rows", "qwen3_tts_codec_batch_rows", "qwen3_tts_codec_frames_total"
SERIES = (f"{ROWS}_sum", f"{ROWS}_count", f"{CHUNKS}_sum", f"{CHUNKS}_count", FRAMES)


@pytest.mark.parametrize(("count", "least"), [(1, 1.0), (4, 1.2), (16, 3.0), (100, 4.0)])
def test_case_55_streams_at_once_share_steps_of_talker_and_codec_and_none_fails(
    count: int, least: float, server: Serving
) -> None:
    frames = 6
    before = server.counted(*SERIES)
    with Session(server.triton_grpc) as session:
        for number in range(count):
            options = {"seed": number, "ignore_eos": True, "max_new_tokens": frames + 1, "stream_chunk_schedule": [1]}
            session.send("tts", "Many at once.", str(number), **options)
        answers = session.finish()
    assert [answer.reason for answer in answers.values()] == ["length"] * count

    def are_shared() -> bool:
        found = {name: value - before[name] for name, value in server.counted(*SERIES).items()}
        return (
            found[f"{ROWS}_sum"] >= count * (frames + 1)  # a stream's last sample isn't a frame of its own
            and found[FRAMES] >= count * frames
            and found[f"{ROWS}_sum"] / found[f"{ROWS}_count"] >= least
            and found[f"{CHUNKS}_sum"] / found[f"{CHUNKS}_count"] >= least
        )

    wait_for(are_shared)  # both models write to the page a little later, a series at a time
