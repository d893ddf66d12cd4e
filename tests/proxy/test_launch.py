"""Laws of `serve`: what it starts it stops, and it says what went wrong. Real processes, models without a network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from engine_lib.wire import SAMPLES_PER_FRAME
from proxy import triton_server
from proxy.web import Gate
from tests.proxy.test_readiness import readiness_ends_in_time
from tests.proxy.test_speech import asking
from tests.serving import LIMIT_S, Serving, serving, starting, wait_for

MODELS = 3  # with a process each


@pytest.fixture
def models(scripted_models: Path) -> tuple[str, str]:
    """The option for models without a network: they start at once, and speak at the pace that the text asks for."""
    return "--model-repository", str(scripted_models)


@pytest.fixture
def server(tmp_path: Path, models: tuple[str, str]) -> Iterator[Serving]:
    """For tests that end it. Whatever they do, `serving` checks that nothing is left."""
    with serving(tmp_path, *models) as started:
        yield started


def test_it_announces_addresses_that_answer_and_prints_a_curl_line(scripted: Serving) -> None:
    assert httpx.get(f"{scripted.url}/ready").json()["ready"] is True
    assert httpx.get(f"{scripted.facts['triton_http']}/v2/health/ready").status_code == 200
    assert "nv_inference_count" in httpx.get(scripted.facts["triton_metrics"]).text
    assert f"curl {scripted.url}/v1/audio/speech" in scripted.output
    assert "# sha256: " in scripted.output
    assert len(scripted.stubs()) == MODELS
    assert len(scripted.regions()) == MODELS + 1  # and the lock


@pytest.mark.parametrize("victim", ["triton", "talker"])
def test_when_triton_or_a_model_dies_for_good_the_proxy_stops_and_the_code_is_3(
    victim: str, tmp_path: Path, models: tuple[str, str]
) -> None:
    with serving(tmp_path, *models, "--on-triton-death", "exit") as server:
        kill(server.pid("triton") if victim == "triton" else server.stub(victim).pid)
        assert server.wait() == 3
        said = "Triton was killed by SIGKILL." if victim == "triton" else "A process of one of Triton's models died."
        assert said in server.output


@pytest.mark.parametrize("victim", ["triton", "talker", "codec"])
def test_when_triton_or_a_model_dies_midway_the_client_is_told_and_service_returns_by_itself(
    victim: str, server: Serving
) -> None:
    killed = server.pid("triton")
    with contextlib.ExitStack() as stack:
        responses = [stack.enter_context(speech(server, frames=5_000)) for _ in range(3)]
        reader = stack.enter_context(ThreadPoolExecutor(3))
        endings = [reader.submit(list, response.iter_raw()) for response in responses]
        kill(killed if victim == "triton" else server.stub(victim).pid)
        readiness_ends_in_time(server.url)
        for ending in endings:
            assert isinstance(ending.exception(timeout=LIMIT_S), httpx.RemoteProtocolError)
        wait_for(lambda: not server.announced.exists())
    wait_for(lambda: server.pid("triton") != killed)  # announced once it can be used
    assert "Ready again." in server.output
    assert httpx.post(f"{server.url}/v1/audio/speech", json={"input": "frames=3"}, timeout=LIMIT_S).status_code == 200
    assert len(server.stubs()) == MODELS
    assert len(server.regions()) == MODELS + 1  # and the lock
    for response in responses:
        of_it = server.lines_of(response.headers["x-request-id"])
        assert [line for line in of_it if " INFO " not in line] == [line for line in of_it if "failed midway: " in line]
        assert len(of_it) == 2, of_it
    assert not [word for word in ("Traceback", "AioRpcError", "ASGI") if word in server.output], server.output


def test_when_the_proxy_is_killed_triton_stops_and_the_code_is_4(server: Serving) -> None:
    kill(server.pid("proxy"))
    assert server.wait() == 4
    assert "The proxy was killed by SIGKILL." in server.output


def test_a_killed_stub_leaves_no_region_after_the_stop(server: Serving) -> None:
    server.stub("codec").kill()
    assert server.stop() == 0


def test_when_serve_itself_is_killed_all_else_dies_and_the_next_one_removes_what_it_left(
    tmp_path: Path, models: tuple[str, str]
) -> None:
    with starting(tmp_path, *models) as killed:
        killed.wait_ready()
        killed.stub("codec").suspend()  # can't notice anything
        killed.stub("talker").kill()  # a killed stub's region stays
        kill(killed.process.pid)
        killed.wait()
        wait_for(lambda: not killed.left_processes())
        assert killed.regions()
    with serving(tmp_path, *models) as following:
        assert following.regions()
        assert killed.regions() == []


def test_case_53_after_sigterm_five_running_responses_finish_and_a_new_one_is_refused(server: Serving) -> None:
    frames = 40
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(speech(server, frames)).iter_raw() for _ in range(5)]
        sizes = [len(next(received)) for received in running]
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_ready(server))
        wait_for(lambda: not server.announced.exists())
        refused = httpx.post(f"{server.url}/v1/audio/speech", json={"input": "Hello."})
        totals = [size + sum(map(len, received)) for size, received in zip(sizes, running, strict=True)]
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "not_ready"
    assert totals == [frames * SAMPLES_PER_FRAME * 2] * 5
    assert server.wait() == 0


def test_a_response_that_outlives_the_drain_timeout_is_cut_and_the_code_is_still_0(
    tmp_path: Path, models: tuple[str, str]
) -> None:
    with serving(tmp_path, *models, "--drain-timeout", "1") as server, speech(server, frames=5_000) as response:
        received = response.iter_raw()
        next(received)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.RemoteProtocolError):
            list(received)
        assert server.wait() == 0
    assert "a response was cut" in server.output
    assert "ASGI" not in server.output


def test_a_client_that_never_reads_leaves_no_traceback_when_it_is_cut(tmp_path: Path, models: tuple[str, str]) -> None:
    with serving(tmp_path, *models, "--drain-timeout", "1") as server:
        more_than_buffers_hold = {"input": "frames=3000 chunk=10", "response_format": "pcm"}
        with asking(server.url, more_than_buffers_hold) as connection:
            assert connection.recv(1)
            assert server.stop() == 0
    assert "Traceback" not in server.output


async def test_a_client_that_reads_nothing_is_not_waited_for_when_the_server_stops() -> None:
    reading = asyncio.Event()

    async def send(message: Message) -> None:
        await reading.wait()

    async def speaks(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        await asyncio.Event().wait()  # for the engine, which takes its time

    async def nothing() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    gate = Gate(speaks, drain_timeout_s=1e9, stalled_s=0.1)
    running = asyncio.create_task(gate({"type": "http", "path": "/"}, nothing, send))
    await asyncio.sleep(0)
    assert not gate.drained
    gate.close()
    assert not gate.drained
    await asyncio.to_thread(wait_for, lambda: gate.drained)
    reading.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not gate.drained  # it reads again
    running.cancel()
    await running  # cut, in silence
    assert gate.drained


def test_a_file_that_cannot_be_announced_to_is_named_before_anything_starts(tmp_path: Path) -> None:
    with starting(tmp_path, "--announce", str(tmp_path / "missing" / "file.json")) as server:
        assert server.wait() == 2
    assert server.output.count("\n") == 1
    assert "missing" in server.output


def test_what_a_killed_one_announced_is_gone_before_anything_starts(tmp_path: Path, models: tuple[str, str]) -> None:
    stale = tmp_path / "stale.json"
    stale.write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with starting(tmp_path, *models, "--announce", str(stale), "--port", port) as refused:
            assert refused.wait() == 2
    assert not stale.exists()


@pytest.mark.parametrize("moment", ["importing", "starting"])
def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(
    tmp_path: Path, moment: str, models: tuple[str, str]
) -> None:
    with starting(tmp_path, *models) as server:
        if moment == "starting":
            wait_for(lambda: "Starting Triton" in server.output)
        else:  # once a library of ours is there, of which it needs many more
            maps = Path(f"/proc/{server.process.pid}/maps")
            wait_for(lambda: "pydantic_core" in maps.read_text())
        server.process.send_signal(signal.SIGINT)
        assert server.wait() in (0, 130), server.output
    assert "Traceback" not in server.output
    assert server.left_processes() == []


def test_a_second_ctrl_c_stops_at_once(server: Serving) -> None:
    with speech(server, frames=5_000) as response:
        received = response.iter_raw()
        next(received)
        server.process.send_signal(signal.SIGINT)
        wait_for(lambda: "Stopping." in server.output)
        server.process.send_signal(signal.SIGINT)
        with pytest.raises(httpx.TransportError):
            list(received)
        assert server.wait() == 0


def test_two_servers_side_by_side_do_not_touch_each_other(
    scripted: Serving, tmp_path: Path, models: tuple[str, str]
) -> None:
    with serving(tmp_path, *models) as other:
        assert set(scripted.regions()).isdisjoint(other.regions())
    assert is_ready(scripted)
    assert len(scripted.regions()) == MODELS + 1


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--port", "{}", "the proxy"),
        ("--triton-ports", "{},0,0", "Triton's gRPC"),
        ("--triton-ports", "0,{},0", "Triton's metrics"),
        ("--triton-ports", "0,0,{}", "Triton's HTTP"),
    ],
)
def test_a_taken_port_is_named_before_anything_starts(
    tmp_path: Path, option: str, value: str, named: str, models: tuple[str, str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with starting(tmp_path, *models, option, value.format(port)) as refused:
            assert refused.wait() == 2
        assert f"port {port} ({named})" in refused.output
        assert "Starting Triton" not in refused.output
        assert "Traceback" not in refused.output


def test_a_model_that_fails_to_load_fails_the_start_with_code_1_and_its_reason(tmp_path: Path) -> None:
    with starting(tmp_path, "--model", str(tmp_path / "nowhere"), "--local-files-only") as failed:
        assert failed.wait() == 1
    (reason,) = [line for line in failed.output.splitlines() if " failed: " in line]
    assert f"Model '{tmp_path / 'nowhere'}'" in reason
    assert "Traceback" not in failed.output
    assert "Triton exited with code 1 while starting." in failed.output
    assert failed.left_processes() == []


@pytest.fixture
def crashing_triton(tmp_path: Path) -> Path:
    """The server, which aborts while it starts, as often as $CRASHES says."""
    found = triton_server.find(None, tmp_path)
    script = tmp_path / "crashing_tritonserver"
    options = f"--backend-directory={found.backends}" if found.backends else ""
    script.write_text(
        f"""#!/bin/sh
echo started >> {tmp_path}/starts
[ $(wc -l < {tmp_path}/starts) -gt "$CRASHES" ] || kill -ABRT $$
LD_LIBRARY_PATH={found.library_path}:$LD_LIBRARY_PATH exec {found.program} {options} "$@"
"""
    )
    script.chmod(0o755)
    return script


def test_a_triton_that_crashes_while_it_starts_is_started_once_more(
    tmp_path: Path, models: tuple[str, str], crashing_triton: Path
) -> None:
    with serving(tmp_path, *models, "--tritonserver", str(crashing_triton), CRASHES="1") as server:
        assert is_ready(server)
        assert server.output.count("Triton was killed by SIGABRT while starting.") == 1
        assert "Ready again." not in server.output


def test_a_triton_that_crashes_at_every_start_fails_the_start(
    tmp_path: Path, models: tuple[str, str], crashing_triton: Path
) -> None:
    with starting(tmp_path, *models, "--tritonserver", str(crashing_triton), CRASHES="9") as failed:
        assert failed.wait() == 1
    assert failed.output.count("Triton was killed by SIGABRT while starting.") == 2


def test_the_proxy_alone_serves_a_triton_elsewhere(scripted: Serving, tmp_path: Path) -> None:
    with starting(tmp_path, "--triton-url", scripted.triton_grpc) as alone:
        alone.wait_ready()
        assert is_ready(alone)
        assert "triton" not in alone.facts["pids"]
        assert alone.stop() == 0
    assert is_ready(scripted)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_ready(server: Serving) -> bool:
    try:
        return httpx.get(f"{server.url}/ready").status_code == 200
    except httpx.TransportError:
        return False


@contextlib.contextmanager
def speech(server: Serving, frames: int) -> Iterator[httpx.Response]:
    """A streamed response of so many frames, each 80 ms after the one before."""
    body = {"input": f"frames={frames} pace_ms=80", "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=LIMIT_S) as response:
        assert response.status_code == 200
        yield response
