"""Laws of a WebSocket whose server stops or breaks. Servers of the tests' own, which come to harm."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.proxy.live_client import PROTOCOL, LiveClient, heard, live, spoken
from tests.proxy.test_readiness import status, unattended
from tests.proxy.test_websocket import TEXT
from tests.proxy.test_websocket_errors import refused
from tests.serving import LIMIT_S, Serving, serving, wait_for


@pytest.fixture
def harmed(tmp_path: Path, scripted_models: Path) -> Iterator[Serving]:
    with serving(tmp_path, "--model-repository", str(scripted_models), "--drain-timeout", "20") as server:
        yield server
    assert "Traceback" not in server.output


async def begin(client: LiveClient, script: str = "") -> None:
    await client.start(script)
    await client.append("the quick ")
    await client.until_sound()


async def test_case_53_a_stop_lets_utterances_finish_and_nobody_else_begin(harmed: Serving) -> None:
    async with live(harmed.url) as idle, live(harmed.url) as many, live(harmed.url, [PROTOCOL]) as one:
        await idle.say(TEXT)
        await begin(many)
        await begin(one)
        harmed.process.send_signal(signal.SIGTERM)
        assert await idle.closed() == 1013
        assert idle.events[-1]["error"]["code"] == "not_ready"
        assert await refused(harmed.url) == 503
        for client, close_code in ((many, 1013), (one, 1000)):
            await client.append("brown fox")
            await client.end()
            assert (await client.until("response.done"))["stop_reason"] == "stop"
            assert await client.closed() == close_code
            assert heard(client.pcm) == spoken("the quick brown fox")
    assert await asyncio.to_thread(harmed.wait) == 0


async def test_case_53_what_does_not_finish_in_time_is_cut(tmp_path: Path, scripted_models: Path) -> None:
    with serving(tmp_path, "--model-repository", str(scripted_models), "--drain-timeout", "1") as server:
        async with live(server.url) as client:
            await begin(client, "stall=1")
            server.process.send_signal(signal.SIGTERM)
            assert await client.closed() == 1012
        assert await asyncio.to_thread(server.wait) == 0
    assert "Traceback" not in server.output


@pytest.mark.parametrize("model", ["talker", "codec"])
async def test_a_dead_process_of_a_model_fails_what_it_spoke(harmed: Serving, model: str) -> None:
    async with live(harmed.url) as client:
        await begin(client, "stall=1")
        with unattended(harmed):
            harmed.stub(model).kill()
            async with asyncio.timeout(LIMIT_S):
                assert await client.closed() == 1011
            assert client.events[-1]["error"]["code"] == "generation_failed"
            assert client.events[-1]["request_id"] == client.events[2]["request_id"]
    await asyncio.to_thread(wait_for, lambda: status(harmed.url, "/ready") == 200)
    async with live(harmed.url) as client:
        await client.say(TEXT)


async def test_a_dead_server_fails_what_it_spoke(harmed: Serving) -> None:
    async with live(harmed.url) as client:
        await begin(client, "stall=1")
        os.kill(harmed.pid("triton"), signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            assert await client.closed() == 1011
        request_id = client.events[-1]["request_id"]
    (told,) = [line for line in harmed.lines_of(request_id) if " INFO " not in line]
    assert f"utterance {request_id} ends with its socket: generation_failed: The " in told
    assert "AioRpcError" not in harmed.output
    await asyncio.to_thread(wait_for, lambda: httpx.get(f"{harmed.url}/ready").status_code == 200)
