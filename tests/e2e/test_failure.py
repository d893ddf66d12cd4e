"""What breaks, breaks alone and in the open: more than can be spoken at once, odd input, and the server's death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.test_http import speak
from tests.e2e.test_triton import TEXT
from tests.e2e.triton import Session
from tests.proxy.live_client import PROTOCOL, LiveClient, live
from tests.serving import CHECKPOINT, LIMIT_S, Serving, starting, wait_for

SHORT = {"max_new_tokens": 5}


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server of this module's own that speaks to two at once while two more wait. The last test kills it."""
    folder = tmp_path_factory.mktemp("narrow")
    profile = folder / "narrow.yaml"
    profile.write_text("extends: ttfa\nmax_active: 2\nmax_waiting: 2\nlive_idle_timeout_s: 600\n")
    options = ["--model", str(CHECKPOINT), "--engine-config", str(profile)]
    with starting(folder, *options, QWEN3_TTS_INPUT_TIMEOUT_S="600") as server:
        server.wait_ready()
        yield server
        if server.process.poll() is None:
            assert server.stop() == 0


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


async def until_streams(server: Serving, active: int, waiting: int) -> None:
    """Wait until the engine has so many."""
    expected = {"qwen3_tts_active_streams": active, "qwen3_tts_waiting_streams": waiting}
    await asyncio.to_thread(wait_for, lambda: server.counted(*expected) == expected)


def posting(client: httpx.AsyncClient, **fields: Any) -> asyncio.Task[httpx.Response]:
    """A request that is being made."""
    return asyncio.create_task(
        client.post("/v1/audio/speech", json={"input": TEXT, "response_format": "pcm", **fields})
    )


async def refused(client: LiveClient) -> None:
    """A live text that finds no place, neither for itself nor in the queue."""
    await client.start(**SHORT)
    events = [await client.next(), await client.next()]
    assert [event["type"] for event in events] == ["request.configured", "error"]
    assert events[1]["error"]["code"] == "overloaded"


@pytest.mark.parametrize("subprotocols", [[PROTOCOL], []], ids=["one utterance", "many utterances"])
async def test_a_full_queue_refuses_the_next_and_whoever_leaves_it_makes_room(
    narrow: Serving, subprotocols: list[str]
) -> None:
    async with (
        httpx.AsyncClient(base_url=narrow.url, timeout=LIMIT_S) as client,
        live(narrow.url) as socket,
        live(narrow.url) as first,
        live(narrow.url) as second,
    ):
        for speaking in (first, second):  # each holds a slot for as long as its text is open
            await speaking.start()
            await speaking.append(TEXT)
            await speaking.until_sound()
        await until_streams(narrow, active=2, waiting=0)
        for _ in range(2):  # the second time, those that left the queue would be in the way
            waiting = posting(client, **SHORT)
            async with live(narrow.url, subprotocols) as live_waiting:
                await live_waiting.start(**SHORT)
                await live_waiting.append(TEXT)
                await live_waiting.end()
                await until_streams(narrow, active=2, waiting=2)

                for fields in ({}, {"stream": False}, {"stream_format": "sse"}):
                    answer = await posting(client, **SHORT, **fields)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
                    assert int(answer.headers["retry-after"]) > 0
                await refused(socket)  # which stays open
                async with live(narrow.url, [PROTOCOL]) as closing:
                    await refused(closing)
                    assert await closing.closed() == 1013

                waiting.cancel()
                await live_waiting.cancel()
                assert (await live_waiting.until("response.done"))["stop_reason"] == "cancelled"
            await until_streams(narrow, active=2, waiting=0)

        queued = [posting(client, **SHORT) for _ in range(2)]
        await until_streams(narrow, active=2, waiting=2)
        await first.cancel()
        await second.cancel()
        assert [(await request).status_code for request in queued] == [200, 200]
        await until_streams(narrow, active=0, waiting=0)
        await socket.say(TEXT, **SHORT)
        assert socket.pcm
        async with live(narrow.url, [PROTOCOL]) as another:
            await another.say(TEXT, **SHORT)
            assert another.pcm


def test_when_serve_is_killed_in_the_middle_of_speech_no_process_stays(narrow: Serving) -> None:
    body = {"input": TEXT, "response_format": "pcm", "ignore_eos": True, "max_new_tokens": 1000}
    with httpx.stream("POST", f"{narrow.url}/v1/audio/speech", json=body, timeout=LIMIT_S) as response:
        pieces = response.iter_raw()
        next(pieces)
        os.kill(narrow.process.pid, signal.SIGKILL)
        with pytest.raises(httpx.HTTPError):
            b"".join(pieces)
    wait_for(lambda: not narrow.left_processes())
