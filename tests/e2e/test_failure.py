"""What breaks, breaks alone and in the open: kills of the real server, and input that could stop it for everyone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.test_http import speak
from tests.e2e.test_triton import TEXT
from tests.e2e.triton import Session
from tests.serving import CHECKPOINT, STOP_LIMIT_S, Serving, starting, wait_for


def test_when_serve_is_killed_in_the_middle_of_speech_no_process_stays(tmp_path: Path) -> None:
    with starting(tmp_path, "--model", str(CHECKPOINT)) as server:
        server.wait_ready()
        body = {"input": TEXT, "response_format": "pcm", "ignore_eos": True, "max_new_tokens": 1000}
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=60) as response:
            pieces = response.iter_raw()
            next(pieces)
            os.kill(server.process.pid, signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                b"".join(pieces)
        wait_for(lambda: not server.left_processes(), STOP_LIMIT_S)


@pytest.mark.parametrize(
    ("words", "options", "named"),
    [
        ("x " * 40_000, {}, "characters"),
        ("x" * 2_000_000, {}, "TEXT"),
        (TEXT, {"instructions": "very " * 800}, "instructions"),
    ],
)
def test_direct_clients_cannot_send_more_than_can_be_spoken(
    words: str, options: dict, named: str, server: Serving
) -> None:
    with Session(server.triton_grpc) as session:
        session.send("tts", words, **options)
        with pytest.raises(InferenceServerException, match=named):
            session.receive()
    assert speak(server, TEXT, max_new_tokens=5).status_code == 200


@pytest.mark.parametrize("stream_id", ["x" * 1000, "a\nERROR forged", "\x1b[31mred"])
def test_stream_ids_that_would_forge_the_log_are_refused(stream_id: str, server: Serving) -> None:
    with Session(server.triton_grpc) as session:
        session.request("tts", "1", None, TEXT=TEXT, STREAM_ID=stream_id)
        with pytest.raises(InferenceServerException, match="STREAM_ID"):
            session.receive()
    assert "forged" not in server.output


@pytest.mark.parametrize(("index", "frames"), [(-1, 1), (0, 3000)])
def test_chunks_that_no_talker_sends_are_refused_by_the_codec(index: int, frames: int, server: Serving) -> None:
    with Session(server.triton_grpc) as session:
        session.send_codes("strange", index, np.zeros((frames, 16), np.int32))
        with pytest.raises(InferenceServerException, match="INDEX"):
            session.receive()
