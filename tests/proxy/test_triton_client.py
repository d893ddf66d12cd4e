"""Laws of the Triton client, on a real server with scripted models."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from engine_lib.errors import GenerationFailed, InvalidRequest, NotReady, Overloaded
from engine_lib.wire import SAMPLES_PER_FRAME, FinishReason, StreamOptions
from proxy.stream import Chunk, Limits
from proxy.triton_client import TritonClient
from tests.proxy.conftest import LIMITS
from tests.serving import LIMIT_S, Serving

PLAIN = StreamOptions.model_validate({})


async def spoken(client: TritonClient, script: str, options: StreamOptions = PLAIN) -> list[Chunk]:
    async with client.speech(script, options, uuid.uuid4().hex) as chunks:
        return [chunk async for chunk in chunks]


async def until(client: TritonClient, *, active: int) -> None:
    """Wait until the engine has so many streams."""
    async with asyncio.timeout(LIMIT_S):
        while (await client.describe()).active != active:
            pass


async def test_every_chunk_arrives_in_order_and_only_the_last_has_a_finish_reason(triton: TritonClient) -> None:
    chunks = await spoken(triton, "frames=10 chunk=3")
    assert [chunk.index for chunk in chunks] == [0, 1, 2, 3]
    assert [chunk.last for chunk in chunks] == [False, False, False, True]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, None, FinishReason.STOP]
    assert [len(chunk.pcm) // SAMPLES_PER_FRAME for chunk in chunks] == [3, 3, 3, 1]
    assert (chunks[-1].usage.text_tokens, chunks[-1].usage.frames) == (7, 10)


async def test_case_26_a_hundred_streams_at_once_each_keep_their_order(triton: TritonClient) -> None:
    streams = await asyncio.gather(*(spoken(triton, f"frames={n % 5 + 3}") for n in range(100)))
    alone = [await spoken(triton, f"frames={n + 3}") for n in range(5)]
    for n, chunks in enumerate(streams):
        assert [chunk.index for chunk in chunks] == list(range(n % 5 + 3))
        for chunk, other in zip(chunks, alone[n % 5], strict=True):
            np.testing.assert_array_equal(chunk.pcm, other.pcm)


async def test_case_27_the_fifth_request_is_as_long_as_the_first(triton: TritonClient) -> None:
    lengths = [sum(len(chunk.pcm) for chunk in await spoken(triton, "frames=6")) for _ in range(5)]
    assert lengths == [6 * SAMPLES_PER_FRAME] * 5


@pytest.mark.parametrize("script", ["frames=4000 pace_ms=20", "stall=1", "stall=0"])
async def test_case_22_leaving_early_ends_the_stream_in_the_engine(triton: TritonClient, script: str) -> None:
    stream_id = uuid.uuid4().hex
    async with triton.speech(script, PLAIN, stream_id) as chunks:
        if script != "stall=0":
            await anext(chunks)
        await until(triton, active=1)
    await until(triton, active=0)


async def test_an_exception_inside_ends_the_stream_too(triton: TritonClient) -> None:
    async def broken() -> None:
        async with triton.speech("stall=1", PLAIN, uuid.uuid4().hex) as chunks:
            await anext(chunks)
            raise LookupError

    with pytest.raises(LookupError):
        await broken()
    await until(triton, active=0)


async def test_being_cancelled_twice_ends_the_stream_too(triton: TritonClient) -> None:
    begun = asyncio.Event()

    async def endless() -> None:
        async with triton.speech("stall=1", PLAIN, uuid.uuid4().hex) as chunks:
            async for _ in chunks:
                begun.set()

    task = asyncio.create_task(endless())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)  # it is leaving now
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await until(triton, active=0)


async def test_leaving_before_anything_was_sent_leaves_nothing_running(triton: TritonClient) -> None:
    for _ in range(20):
        async with triton.speech("stall=0", PLAIN, uuid.uuid4().hex):
            pass
    await until(triton, active=0)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("refuse=1", Overloaded),
        ("refuse=2", NotReady),
        ("fail=0", GenerationFailed),
        ("fail=3", GenerationFailed),
        ("gap=0", GenerationFailed),
        ("gap=2", GenerationFailed),
    ],
)
async def test_case_24_what_goes_wrong_is_one_error_of_its_kind(
    triton: TritonClient, script: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        await spoken(triton, script)
    await until(triton, active=0)


async def test_a_refused_option_names_its_field(triton: TritonClient) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await spoken(triton, "hello", StreamOptions.model_validate({"voice": "nobody"}))
    assert caught.value.param == "voice"


@pytest.mark.parametrize("script", ["stall=0", "stall=2", "bare=1"])
async def test_case_24_silence_of_the_engine_has_a_limit(scripted: Serving, triton: TritonClient, script: str) -> None:
    limits = Limits(first_chunk_s=0.5 if script == "stall=0" else 30, chunk_s=0.5, heartbeat_s=10)
    client = TritonClient(scripted.triton_grpc, limits)
    with pytest.raises(GenerationFailed, match="sent nothing"):
        await spoken(client, script)
    await client.close()
    await until(triton, active=0)


async def test_a_slow_reader_does_not_hold_up_the_stream(triton: TritonClient) -> None:
    async with triton.speech("frames=500", PLAIN, uuid.uuid4().hex) as chunks:
        await anext(chunks)
        await until(triton, active=0)  # the engine is through with it, though nobody read
        assert [chunk.index async for chunk in chunks] == list(range(1, 500))


async def test_a_heartbeat_comes_back_from_both_models(triton: TritonClient) -> None:
    assert (await triton.heartbeat()).model == "makers/scripted"


async def test_no_server_is_not_ready() -> None:
    client = TritonClient("127.0.0.1:9", LIMITS)
    with pytest.raises(NotReady):
        await client.heartbeat()
    with pytest.raises(NotReady):
        await spoken(client, "hello")
    await client.close()


@contextlib.asynccontextmanager
async def slow_way(address: str, delay_s: float, cuts: list[Callable[[], None]] | None = None) -> AsyncIterator[str]:
    """An address that leads to `address`; whatever goes there waits first, once a connection. `cuts` cut one each."""

    async def hand_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(sink):
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if cuts is not None:
            cuts.append(writer.transport.abort)
        await asyncio.sleep(delay_s)
        host, _, port = address.rpartition(":")
        from_there, there = await asyncio.open_connection(host, int(port))
        await asyncio.gather(hand_on(reader, there), hand_on(from_there, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_server_that_is_slow_to_connect_to_is_waited_for(scripted: Serving) -> None:
    async with slow_way(scripted.triton_grpc, 0.7) as address:
        client = TritonClient(address, LIMITS)
        assert len(await spoken(client, "frames=3")) == 3
        await client.close()


async def test_an_utterance_after_a_lost_connection_takes_a_new_one(scripted: Serving) -> None:
    cuts: list[Callable[[], None]] = []
    async with slow_way(scripted.triton_grpc, 0, cuts) as address:
        client = TritonClient(address, LIMITS)
        await spoken(client, "frames=3")  # after which a call waits for the next
        cuts.pop()()
        async with asyncio.timeout(LIMIT_S):
            while not await beats(client):
                pass
        assert len(await spoken(client, "frames=3")) == 3
        await client.close()


async def beats(client: TritonClient) -> bool:
    try:
        await client.heartbeat()
    except NotReady:
        return False
    return True
