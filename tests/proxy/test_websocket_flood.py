"""Laws of a client that floods its socket: nobody else notices, and it is served or refused as any other.

A real server with scripted models.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest
from websockets.exceptions import ConnectionClosed

from proxy import websocket
from proxy.pace import Pace
from proxy.settings import Settings
from proxy.triton_client import TritonClient
from tests.proxy.conftest import proxy
from tests.proxy.live_client import LiveClient, heard, live, spoken
from tests.proxy.test_readiness import status
from tests.proxy.test_triton_client import until
from tests.proxy.test_websocket import MODES
from tests.serving import Serving, wait_for

PIECES = 6_000
FLOOD = ("abcdefghijklmnopqrstuvwxyz " * PIECES)[: PIECES - 1] + "."
FEW = 10  # lines of a log; a flood of one each would be thousands
WORDS = [f"word{number} " for number in range(40)]


@pytest.fixture(autouse=True, scope="module")
def no_traceback(scripted: Serving) -> Iterator[None]:
    yield
    assert "Traceback" not in scripted.output


@dataclass
class Meanwhile:
    """What went on beside a flood, and what the flood alone cost; known at its end.

    The other client's part is taken off, which may be a little less: its own text may be merged too.
    """

    others: int = 0  # utterances
    messages: int = 0  # to the talker about live text
    lines: int = 0  # in the log


@contextlib.asynccontextmanager
async def undisturbed(scripted: Serving, triton: TritonClient) -> AsyncIterator[Meanwhile]:
    """Meanwhile the service is ready all the time, and another client hears what it ever hears."""
    over, seen = asyncio.Event(), Meanwhile()

    async def inputs() -> int:
        return int((await triton.describe()).sampling_defaults["inputs"])

    async def talk() -> None:
        async with live(scripted.url) as client:
            while not over.is_set() or seen.others == 0:
                await client.start("pace_ms=5")
                for word in WORDS:
                    await client.append(word)
                await client.end()
                await client.until("response.done")
                assert heard(client.pcm) == spoken("".join(WORDS))
                seen.others += 1

    messages, lines = await inputs(), len(scripted.output.splitlines())
    async with asyncio.TaskGroup() as others:
        others.create_task(scripted.stays_ready(over))
        others.create_task(talk())
        yield seen
        over.set()
    await until(triton, active=0)
    seen.messages = await inputs() - messages - seen.others * (len(WORDS) + 1)
    seen.lines = len(scripted.output.splitlines()) - lines - seen.others


async def pour(client: LiveClient, pieces: str) -> None:
    """Append letter by letter, until all is out or the server has closed."""
    with contextlib.suppress(ConnectionClosed):
        for piece in pieces:
            await client.append(piece)


@MODES
async def test_a_flood_of_pieces_is_spoken_whole_in_few_messages_and_disturbs_nobody(
    scripted: Serving, triton: TritonClient, subprotocols: list[str]
) -> None:
    async with undisturbed(scripted, triton) as seen, live(scripted.url, subprotocols) as client:

        async def write() -> None:
            await pour(client, FLOOD)
            await client.end()

        await client.start()
        writing = asyncio.create_task(write())
        await client.until("response.done")
        await writing
    assert heard(client.pcm) == spoken(FLOOD)
    acks = [(ack["event"], ack["sequence"]) for ack in client.events if ack["type"] == "input_text.ack"]
    assert acks == [*(("input_text.append", number) for number in range(PIECES)), ("input_text.end", PIECES)]
    assert seen.messages < PIECES / 4
    assert seen.lines <= FEW


@MODES
async def test_a_flood_of_more_pieces_than_a_text_may_have_is_refused_and_disturbs_nobody(
    scripted: Serving, triton: TritonClient, subprotocols: list[str]
) -> None:
    most = Settings().max_live_events
    async with undisturbed(scripted, triton) as seen, live(scripted.url, subprotocols) as client:
        await client.start()
        writing = asyncio.create_task(pour(client, "a" * (most + 6)))
        assert await client.closed() == 1008
        await writing
    assert client.events[-1]["error"]["code"] == "too_many_input_events"
    acks = [ack["sequence"] for ack in client.events if ack["type"] == "input_text.ack"]
    assert acks == list(range(len(acks)))
    assert seen.messages < most / 4
    assert seen.lines <= FEW


async def test_what_is_poured_after_an_utterance_that_ended_by_itself_costs_nothing(
    scripted: Serving, triton: TritonClient
) -> None:
    async with undisturbed(scripted, triton) as seen, live(scripted.url) as client:
        await client.start("frames=2")
        writing = asyncio.create_task(pour(client, "a b c d " + FLOOD))
        assert (await client.until("response.done"))["stop_reason"] == "length"
        await writing
        await client.end()
        await client.say("the quick")
        assert heard(client.pcm) == spoken("the quick")
    assert seen.messages < PIECES / 4
    assert seen.lines <= FEW


async def test_a_flood_of_cancels_is_answered_without_the_engine(scripted: Serving, triton: TritonClient) -> None:
    async with undisturbed(scripted, triton) as seen, live(scripted.url) as client:

        async def write() -> None:
            for _ in range(PIECES):
                await client.cancel()

        writing = asyncio.create_task(write())
        for _ in range(PIECES):
            assert (await client.until("response.done"))["request_id"] is None
        await writing
    assert seen.messages <= 0
    assert seen.lines <= FEW


class Still(Pace):
    """A pace whose clock stands still, and what it asked for."""

    waits: list[float] = []  # noqa: RUF012

    def __init__(self, at_once: int, per_second: float) -> None:
        super().__init__(at_once, per_second, clock=lambda: 0.0)

    async def turn(self) -> None:
        self.waits.append(self.wait_s)
        await super().turn()


@pytest.mark.parametrize(
    "start",
    [{"voice": "nobody"}, {"instructions": "refuse=1"}, {}],
    ids=["refused", "refused by the engine", "cancelled"],
)
async def test_starts_that_come_to_nothing_are_slowed_down_and_those_that_speak_are_not(
    scripted: Serving, triton: TritonClient, start: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "Pace", Still)
    monkeypatch.setattr(websocket, "FUTILE_AT_ONCE", 3)
    monkeypatch.setattr(websocket, "FUTILE_PER_S", 100)
    monkeypatch.setattr(Still, "waits", [])
    with proxy(Settings(triton_urls=(scripted.triton_grpc,))) as url:
        await asyncio.to_thread(wait_for, lambda: status(url, "/ready") == 200)
        async with live(url) as client:
            for _ in range(5):
                await client.say("the quick")
            for _ in range(5):
                await client.socket.send(json.dumps({"type": "request.start", **start}))
                if not start:
                    await client.cancel()
                client.events.clear()
                while not {"error", "response.done"} & {*client.kinds}:
                    await client.next()
            await client.say("the quick")
        assert heard(client.pcm) == spoken("the quick")
    assert Still.waits == pytest.approx([0.0] * 5 + [0.0, 0.0, 0.0, 0.01, 0.02, 0.03])
    await until(triton, active=0)
