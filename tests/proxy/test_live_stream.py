"""Laws of text on its way to the engine, whose answers the test holds back. The gRPC call alone is a fake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from engine_lib import wire
from engine_lib.errors import InvalidRequest, NotFound, ServiceError
from proxy.live_stream import MOST_IN_FLIGHT, LiveStream
from proxy.stream import Chunk, Taken
from tests.proxy.conftest import LIMITS
from tests.serving import LIMIT_S

LENGTH_BYTES = 4  # before a string


class Call:
    """A bidirectional call: what was written to it, and what it is told to answer."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self._wrote = asyncio.Event()
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    async def write(self, request: Any) -> None:
        self.written.append(request)
        self._wrote.set()

    async def read(self) -> Any:
        return await self._answers.get()

    async def done_writing(self) -> None:
        self._answers.put_nowait(grpc.aio.EOF)

    def cancel(self) -> None:
        pass

    def answer(self, request_id: str, /, error: ServiceError | None = None, **tensors: tuple[str, bytes]) -> None:
        response = service_pb2.ModelStreamInferResponse(error_message=error.to_wire() if error else "")
        response.infer_response.id = request_id
        for name, (datatype, raw) in tensors.items():
            response.infer_response.outputs.add(name=name, datatype=datatype)
            response.infer_response.raw_output_contents.append(raw)
        self._answers.put_nowait(response)

    def take(self, number: int) -> None:
        """Acknowledge an input."""
        self.answer(f"input{number}", USAGE=("INT32", np.array([7, 0], "<i4").tobytes()))

    def finish(self, reason: wire.FinishReason) -> None:
        """Send the last chunk, as the only one."""
        self.chunk(0, reason)

    def chunk(self, index: int, reason: str = "") -> None:
        """Send a chunk without sound, which is the last if it has a reason."""
        self.answer(
            "speech",
            PCM=("INT16", b""),
            INDEX=("INT32", np.array([index], "<i4").tobytes()),
            LAST=("BOOL", bytes([reason != ""])),
            FINISH_REASON=("BYTES", len(reason).to_bytes(LENGTH_BYTES, "little") + reason.encode()),
            USAGE=("INT32", np.zeros(2, "<i4").tobytes()),
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds of what was written."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._wrote.clear()
                await self._wrote.wait()

    def inputs(self) -> list[str | None]:
        """The texts that were appended, and None for the end."""
        found: list[str | None] = []
        for request in self.written[1:]:
            parts = {tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)}
            action = parts[wire.ACTION][LENGTH_BYTES:].decode()
            if action != wire.Action.CANCEL:
                found.append(parts[wire.TEXT][LENGTH_BYTES:].decode() if action == wire.Action.APPEND else None)
        return found


@pytest.fixture
async def call() -> Call:
    return Call()


@pytest.fixture
async def stream(call: Call) -> AsyncIterator[LiveStream]:
    stream = LiveStream(call, {wire.TEXT: ""}, "one", LIMITS)
    yield stream
    call.answer("cancel")
    call.finish(wire.FinishReason.CANCELLED)
    await stream.leave()


async def until(stream: LiveStream, kind: type[Chunk] | type[Taken]) -> Any:
    async with asyncio.timeout(LIMIT_S):
        async for event in stream.events():
            if isinstance(event, kind):
                return event
    raise AssertionError("it has ended")


async def test_a_flood_puts_no_more_than_a_few_messages_on_the_way_and_the_rest_in_one(
    call: Call, stream: LiveStream
) -> None:
    for number in range(1000):
        stream.append(chr(ord("a") + number % 26))
    await call.until(lambda: len(call.inputs()) == MOST_IN_FLIGHT)
    for number in range(MOST_IN_FLIGHT):
        call.take(number)
    await call.until(lambda: len(call.inputs()) > MOST_IN_FLIGHT)
    stream.append("more")  # nor does it go before that one was taken
    stream.end()
    call.take(MOST_IN_FLIGHT)
    await call.until(lambda: call.inputs()[-1] is None)
    flood = "".join(chr(ord("a") + number % 26) for number in range(1000))
    assert call.inputs() == [*flood[:MOST_IN_FLIGHT], flood[MOST_IN_FLIGHT:], "more", None]
    taken = [await until(stream, Taken) for _ in range(MOST_IN_FLIGHT + 1)]
    assert [number for event in taken for number in event.sequences] == list(range(1000))


async def test_whoever_writes_no_faster_than_the_engine_takes_is_never_merged(call: Call, stream: LiveStream) -> None:
    for number in range(3 * MOST_IN_FLIGHT):
        stream.append(f"{number} ")
        await call.until(lambda: len(call.inputs()) == number + 1)  # noqa: B023
        call.take(number)
        assert (await until(stream, Taken)).sequences == range(number, number + 1)


async def test_what_waits_is_dropped_when_the_stream_ends(call: Call, stream: LiveStream) -> None:
    for _ in range(1000):
        stream.append("a")
    await call.until(lambda: len(call.inputs()) == MOST_IN_FLIGHT)
    call.finish(wire.FinishReason.LENGTH)
    for number in range(MOST_IN_FLIGHT):
        call.answer(f"input{number}", NotFound("This stream has ended."))
    assert (await until(stream, Chunk)).finish_reason is wire.FinishReason.LENGTH
    for _ in range(1000):
        stream.append("b")
    await stream.leave()
    assert call.inputs() == ["a"] * MOST_IN_FLIGHT


async def test_what_waits_is_dropped_when_the_stream_is_left(call: Call, stream: LiveStream) -> None:
    for _ in range(1000):
        stream.append("a")
    await call.until(lambda: len(call.inputs()) == MOST_IN_FLIGHT)
    leaving = asyncio.create_task(stream.leave())
    await call.until(lambda: len(call.written) > 1 + MOST_IN_FLIGHT)
    for number in range(MOST_IN_FLIGHT):
        call.take(number)
    call.finish(wire.FinishReason.CANCELLED)
    call.answer("cancel")
    await leaving
    assert call.inputs() == ["a"] * MOST_IN_FLIGHT


async def test_that_a_stream_had_ended_is_logged_once(
    call: Call, stream: LiveStream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for _ in range(MOST_IN_FLIGHT):
        stream.append("a")
    for number in range(MOST_IN_FLIGHT):
        call.answer(f"input{number}", NotFound("This stream has ended."))
    call.finish(wire.FinishReason.LENGTH)
    await until(stream, Chunk)
    assert [record.getMessage() for record in caplog.records].count(
        "stream one had ended when a piece of text came"
    ) == 1


async def test_the_last_chunk_waits_until_it_is_known_what_was_taken(call: Call, stream: LiveStream) -> None:
    stream.append("a")
    stream.append("b")
    call.finish(wire.FinishReason.STOP)
    call.take(1)
    call.take(0)
    async with asyncio.timeout(LIMIT_S):
        events = [event async for event in stream.events()]
    assert [type(event) for event in events] == [Taken, Taken, Chunk]
    assert [list(event.sequences) for event in events if isinstance(event, Taken)] == [[0], [1]]


async def test_a_refusal_that_its_streams_end_overtakes_is_told_all_the_same(call: Call, stream: LiveStream) -> None:
    stream.append("a")
    call.finish(wire.FinishReason.CANCELLED)
    call.answer("input0", InvalidRequest("The text is too long.", code="input_too_large"))
    with pytest.raises(InvalidRequest, match="too long"):
        await until(stream, Chunk)


async def test_what_a_refused_stream_still_says_is_no_trouble(
    call: Call, stream: LiveStream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.append("a")
    call.answer("input0", InvalidRequest("The text is too long.", code="input_too_large"))
    call.chunk(0)
    call.chunk(1)
    call.chunk(2, wire.FinishReason.CANCELLED)
    await stream.leave()
    with pytest.raises(InvalidRequest, match="too long"):
        await until(stream, Chunk)
    assert not caplog.records
