"""Laws of /ready and /health, and of who may come in. Real servers; those that come to harm belong to one test."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from proxy.settings import Settings
from proxy.triton_client import TritonClient
from tests.proxy.conftest import LIMITS, proxy
from tests.serving import LIMIT_S, Serving, serving, wait_for

READY_ENDS_WITHIN_S = 2.0  # of a death: a promise to whoever balances load, and so no mere bound on a hang
ASK_EVERY_S = 0.02


def status(url: str, path: str) -> int:
    return httpx.get(f"{url}{path}").status_code


def speaks(url: str) -> int:
    return httpx.post(f"{url}/v1/audio/speech", json={"input": "hello"}, timeout=LIMIT_S).status_code


@pytest.fixture
def harmed(tmp_path: Path, scripted_models: Path) -> Iterator[Serving]:
    """A server that the test may do harm to."""
    with serving(tmp_path, "--model-repository", str(scripted_models)) as server:
        yield server


def trials(server: Serving) -> float:
    """How many trial utterances the talker has spoken."""

    async def ask() -> float:
        client = TritonClient(server.triton_grpc, LIMITS)
        try:
            return (await client.describe()).sampling_defaults["trials"]
        finally:
            await client.close()

    return asyncio.run(ask())


def readiness_ends_in_time(url: str) -> None:
    """Fail unless /ready is 503 before it was asked so often that READY_ENDS_WITHIN_S would be over.

    Counted in questions, which take longer on a busy machine, as everything there does.
    """
    for _ in range(round(READY_ENDS_WITHIN_S / ASK_EVERY_S)):
        if status(url, "/ready") == 503:
            return
        time.sleep(ASK_EVERY_S)
    pytest.fail(f"{url} is still ready")


@contextmanager
def unattended(server: Serving) -> Iterator[None]:
    """Meanwhile `serve` sleeps, and can't start anything again."""
    os.kill(server.pid("serve"), signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid("serve"), signal.SIGCONT)


@pytest.mark.parametrize("model", ["talker", "codec"])
def test_a_dead_process_of_a_model_ends_readiness_and_what_it_spoke(harmed: Serving, model: str) -> None:
    with unattended(harmed), httpx.Client(base_url=harmed.url, timeout=LIMIT_S) as client:
        speech = {"input": "stall=2", "stream_format": "sse", "response_format": "pcm"}
        with client.stream("POST", "/v1/audio/speech", json=speech) as running:
            lines = running.iter_lines()
            next(lines)
            harmed.stub(model).kill()
            readiness_ends_in_time(harmed.url)
            assert "speech.audio.error" in [line for line in lines if line][-1]
        assert model in client.get("/ready").json()["reason"]
        assert client.get("/health").status_code == 503
        assert speaks(harmed.url) == 503
        assert client.get("/v1/models").status_code == 503
    wait_for(lambda: status(harmed.url, "/ready") == 200)


def test_a_request_that_meets_a_dead_process_has_one_line_that_says_why(
    harmed: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    # Between two heartbeats the proxy can't know before the request does.
    settings = Settings(triton_urls=(harmed.triton_grpc,), heartbeat_interval_s=3600)
    with proxy(settings) as url, unattended(harmed), caplog.at_level(logging.INFO, logger="proxy"):
        wait_for(lambda: status(url, "/ready") == 200)
        harmed.stub("talker").kill()
        assert speaks(url) == 500
        wait_for(lambda: "/v1/audio/speech" in caplog.messages)  # the request's own line, which is the last
    (told,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told.startswith("POST /v1/audio/speech: The speech engine failed on this request. (")
    assert "healthy" in told


def test_a_restarted_triton_is_used_again_by_itself_after_a_real_utterance(
    tmp_path: Path, scripted_models: Path
) -> None:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [server.getsockname()[1] for server in taken]
    for server in taken:
        server.close()
    options = [
        *("--model-repository", str(scripted_models), "--on-triton-death", "exit"),
        *("--triton-ports", ",".join(map(str, ports))),
    ]
    with proxy(Settings(triton_urls=(f"127.0.0.1:{ports[0]}",))) as url:
        with serving(tmp_path, *options) as first:
            wait_for(lambda: status(url, "/ready") == 200)
            os.kill(first.pid("triton"), signal.SIGKILL)
            first.wait()
        wait_for(lambda: status(url, "/ready") == 503)
        assert status(url, "/health") == 503
        with serving(tmp_path, *options) as second:
            wait_for(lambda: status(url, "/ready") == 200)
            assert trials(second) == 2  # one of its own proxy, one of ours
            assert status(url, "/health") == 200
            assert speaks(url) == 200


def test_without_triton_it_lives_isnt_ready_and_says_why() -> None:
    with proxy(Settings(triton_urls=("127.0.0.1:9",))) as url:
        wait_for(lambda: "reached" in httpx.get(f"{url}/ready").json()["reason"])
        answer = httpx.get(f"{url}/ready")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert status(url, "/health") == 200
        assert httpx.post(f"{url}/v1/audio/speech", json={"input": ""}).status_code == 400  # wrong all the same
        refused = httpx.post(f"{url}/v1/audio/speech", json={"input": "hello"}, timeout=LIMIT_S)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.json()["error"]["code"] == "not_ready"


def test_one_dead_server_of_two_takes_nothing_away(scripted: Serving) -> None:
    with proxy(Settings(triton_urls=("127.0.0.1:9", scripted.triton_grpc))) as url:
        wait_for(lambda: status(url, "/ready") == 200)
        assert [speaks(url) for _ in range(5)] == [200] * 5


def test_the_lists_come_from_the_engine(http: httpx.Client) -> None:
    entry = http.get("/v1/models").json()["data"][0]
    assert entry == {
        "id": "makers/scripted",
        "object": "model",
        "created": entry["created"],
        "owned_by": "qwen3-tts-triton",
    }
    listed = http.get("/v1/audio/models").json()
    assert (listed["data"], listed["models"]) == ([entry], [{"id": "makers/scripted"}])
    voices = [{"id": name, "name": name.title(), "language": "english"} for name in ("ryan", "serena")]
    assert http.get("/v1/audio/voices").json() == {"voices": voices}
    for name in ("makers/scripted", "makers%2Fscripted", "scripted", "tts-1"):
        assert http.get(f"/v1/models/{name}").json() == {**entry, "voices": voices}


OPEN = ["/docs", "/openapi.json", "/health", "/ready", "/metrics", "/v1/audio/voices"]
CLOSED = ["/v1/models", "/v1/models/tts-1", "/v1/audio/models"]


def test_a_key_guards_what_costs_and_nothing_else(scripted: Serving) -> None:
    with proxy(Settings(triton_urls=(scripted.triton_grpc,), api_key="secret")) as url:
        wait_for(lambda: status(url, "/ready") == 200)
        assert [status(url, path) for path in OPEN] == [200] * len(OPEN)
        for given in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Basic secret"},
        ):
            for path in CLOSED:
                refused = httpx.get(f"{url}{path}", headers=given)
                assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
            assert httpx.post(f"{url}/v1/audio/speech", json={"input": "hi"}, headers=given).status_code == 401
        right = {"Authorization": "Bearer secret"}
        assert [httpx.get(f"{url}{path}", headers=right).status_code for path in CLOSED] == [200] * len(CLOSED)
        assert (
            httpx.post(f"{url}/v1/audio/speech", json={"input": "hi"}, headers=right, timeout=LIMIT_S).status_code
            == 200
        )


def test_only_listed_browser_origins_are_let_in(scripted: Serving, http: httpx.Client) -> None:
    asking = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in http.options("/v1/audio/speech", headers=asking).headers
    settings = Settings(triton_urls=(scripted.triton_grpc,), cors_origins=("https://page.example",))
    with proxy(settings) as url:
        allowed = httpx.options(f"{url}/v1/audio/speech", headers=asking)
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        other = httpx.options(f"{url}/v1/audio/speech", headers={**asking, "Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
