"""Models of a Triton that an operator runs are unloaded and loaded again behind the proxy. All real."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from proxy import ports, triton_server
from proxy.shared_memory import Regions
from tests.serving import LIMIT_S, Serving, starting, wait_for

BODY = {"input": "frames=3", "response_format": "pcm"}


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory, scripted_models: Path) -> Iterator[dict[str, str]]:
    """Addresses of a Triton server under explicit model control."""
    folder = tmp_path_factory.mktemp("triton")
    with Regions() as regions:
        found = triton_server.find(None, folder)
        with (
            ports.reserve("127.0.0.1", 0, "gRPC") as grpc,
            ports.reserve("127.0.0.1", 0, "metrics") as metrics,
            ports.reserve("127.0.0.1", 0, "HTTP") as http,
        ):
            numbers = {"grpc": ports.number(grpc), "metrics": ports.number(metrics), "http": ports.number(http)}
            command = found.command(scripted_models, host="127.0.0.1", region_prefix=regions.prefix, **numbers)
            with (folder / "triton.txt").open("wb") as out:
                process = subprocess.Popen(
                    [*command, "--model-control-mode=explicit", "--load-model=*"],
                    stdout=out, stderr=subprocess.STDOUT, env=found.environment(os.environ),
                )  # fmt: skip
            try:
                yield {"grpc": f"127.0.0.1:{numbers['grpc']}", "http": f"http://127.0.0.1:{numbers['http']}"}
            finally:
                process.terminate()
                process.wait(LIMIT_S)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server(triton: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` in front of it."""
    with starting(tmp_path_factory.mktemp("proxy"), "--triton-url", triton["grpc"]) as started:
        started.wait_ready()
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.output


@contextlib.contextmanager
def unloaded(triton: dict[str, str], model: str) -> Iterator[None]:
    """Meanwhile `model` is unloaded; whatever happens, it is loaded again for the next test."""
    control(triton, model, "unload")
    try:
        yield
    finally:
        control(triton, model, "load")


def control(triton: dict[str, str], model: str, action: str) -> None:
    answer = httpx.post(f"{triton['http']}/v2/repository/models/{model}/{action}", timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("model", ["talker", "codec", "tts"])
def test_case_50_while_a_model_is_unloaded_requests_get_503_with_the_reason_and_a_line_and_then_it_recovers(
    model: str, triton: dict[str, str], server: Serving
) -> None:
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:

        def refused() -> str:
            """What a refused request is told."""
            answer = client.post("/v1/audio/speech", json=BODY)
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == "not_ready"
            assert answer.headers["retry-after"]
            lines = server.lines_of(answer.headers["x-request-id"])
            assert [line for line in lines if "status=503" in line] == lines[-1:]
            message: str = answer.json()["error"]["message"]
            return message

        def reason() -> str:
            return str(client.get("/ready").json().get("reason"))

        wait_for(lambda: client.get("/ready").status_code == 200)
        assert client.post("/v1/audio/speech", json=BODY).status_code == 200
        with unloaded(triton, model):
            refused()  # also while the proxy has not seen it yet
            wait_for(lambda: client.get("/ready").status_code == 503)
            wait_for(lambda: "isn't loaded" in reason())
            assert refused() == refused() == reason()
            assert "isn't ready any more: The model '" in server.output
        wait_for(lambda: client.get("/ready").status_code == 200)
        assert client.post("/v1/audio/speech", json=BODY).status_code == 200
