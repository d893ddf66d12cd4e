"""Laws of one proxy over two Triton servers. Real servers with scripted models."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from engine_lib.wire import Description, StreamOptions
from proxy.settings import Settings
from proxy.triton_client import TritonClient
from tests.proxy.conftest import LIMITS, proxy
from tests.proxy.live_client import live
from tests.serving import LIMIT_S, Serving, serving, wait_for

PLAIN = StreamOptions.model_validate({})
PATIENCE = httpx.Timeout(60)


@dataclass
class Two:
    """Two servers, and one proxy over both."""

    servers: tuple[Serving, Serving]
    url: str

    async def until_active(self, *streams: int) -> None:
        """Wait until the servers have so many."""
        async with asyncio.timeout(LIMIT_S):
            while [(await describe(server)).active for server in self.servers] != [*streams]:
                pass


async def describe(server: Serving) -> Description:
    client = TritonClient(server.triton_grpc, LIMITS)
    try:
        return await client.describe()
    finally:
        await client.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, scripted_models: Path) -> Iterator[tuple[Serving, Serving]]:
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(serving(tmp_path_factory.mktemp("two"), "--model-repository", str(scripted_models)))
            for _ in range(2)
        )
        yield first, second


@contextlib.asynccontextmanager
async def over(both: tuple[Serving, Serving], **settings: float) -> AsyncIterator[Two]:
    urls = tuple(server.triton_grpc for server in both)
    await Two(both, "").until_active(0, 0)  # what clients of the test before have left
    with proxy(Settings(triton_urls=urls, **settings)) as url:
        for server in both:
            await asyncio.to_thread(wait_for, lambda server=server: meter(url, "ready", server) == 1)
        yield Two(both, url)


def meter(url: str, name: str, server: Serving) -> float:
    """What the proxy shows of a server."""
    line = f'qwen3_tts_proxy_server_{name}{{server="{server.triton_grpc}"}} '
    (value,) = [one.removeprefix(line) for one in httpx.get(f"{url}/metrics").text.splitlines() if one.startswith(line)]
    return float(value)


@pytest.fixture
async def two(both: tuple[Serving, Serving]) -> AsyncIterator[Two]:
    async with over(both) as started:
        yield started


@contextlib.asynccontextmanager
async def speaking(url: str, script: str, count: int) -> AsyncIterator[list[AsyncIterator[str]]]:
    """The events of so many streams, each after its first."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client, contextlib.AsyncExitStack() as stack:
        body = {"input": script, "stream_format": "sse", "response_format": "pcm"}
        streams = []
        for _ in range(count):
            response = await stack.enter_async_context(client.stream("POST", "/v1/audio/speech", json=body))
            assert response.status_code == 200
            streams.append(response.aiter_lines())
        for stream in streams:
            await anext(stream)
        yield streams


async def outcome(lines: AsyncIterator[str]) -> str:
    """How a stream ends: done or error."""
    last = [line async for line in lines if line][-1]
    return json.loads(last.removeprefix("data: "))["type"].rpartition(".")[2]


async def test_streams_go_where_the_fewest_are(two: Two) -> None:
    async with speaking(two.url, "stall=1", 9), live(two.url) as socket:
        await socket.start()
        await two.until_active(5, 5)


async def test_streams_of_other_clients_count(two: Two) -> None:
    client = TritonClient(two.servers[0].triton_grpc, LIMITS)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            chunks = await stack.enter_async_context(client.speech("stall=1", PLAIN, uuid.uuid4().hex))
            await anext(chunks)
        await asyncio.to_thread(wait_for, lambda: meter(two.url, "streams", two.servers[0]) == 5)
        async with speaking(two.url, "stall=1", 4):
            await two.until_active(5, 4)
    await client.close()


async def test_a_full_server_is_passed_over_and_429_comes_once_all_are_full(both: tuple[Serving, Serving]) -> None:
    # The proxy doesn't hear how many streams others have, so that it has to find out by a refusal.
    async with over(both, heartbeat_interval_s=3600) as two:
        client = TritonClient(two.servers[0].triton_grpc, LIMITS)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                chunks = await stack.enter_async_context(client.speech("stall=1", PLAIN, uuid.uuid4().hex))
                await anext(chunks)
            async with speaking(two.url, "stall=1 room=3", 3):
                await two.until_active(3, 3)
                assert await asyncio.to_thread(speaks, two.url, "stall=1 room=3") == 429
        await client.close()


async def test_killing_one_of_two_under_20_streams_fails_its_own_alone_and_it_returns(
    tmp_path: Path, scripted_models: Path, both: tuple[Serving, Serving]
) -> None:
    with serving(tmp_path, "--model-repository", str(scripted_models)) as victim:
        async with over((victim, both[1])) as two:
            async with speaking(two.url, "frames=300 pace_ms=50", 20) as streams:
                await two.until_active(10, 10)
                os.kill(victim.pid("triton"), signal.SIGKILL)
                new = [asyncio.to_thread(speaks, two.url) for _ in range(20)]
                assert await asyncio.gather(*new) == [200] * 20
                async with live(two.url) as socket:
                    assert (await socket.say("new words"))["stop_reason"] == "stop"
                ends = await asyncio.gather(*map(outcome, streams))
            assert (ends.count("error"), ends.count("done")) == (10, 10)
            await asyncio.to_thread(wait_for, lambda: "Ready again." in victim.output)
            await asyncio.to_thread(wait_for, lambda: meter(two.url, "ready", victim) == 1)
            async with speaking(two.url, "stall=1", 2):
                await two.until_active(1, 1)


def speaks(url: str, script: str = "frames=2") -> int:
    return httpx.post(f"{url}/v1/audio/speech", json={"input": script}, timeout=PATIENCE).status_code
