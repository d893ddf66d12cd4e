"""Laws of what goes wrong on a WebSocket: one error, the right code, and the next client is served as ever."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from proxy.schemas import LiveRequest, SpeechRequest
from proxy.settings import Settings
from proxy.triton_client import TritonClient
from tests.proxy.live_client import PATH, PROTOCOL, LiveClient, heard, live, spoken
from tests.proxy.test_readiness import proxy
from tests.proxy.test_triton_client import until
from tests.proxy.test_websocket import MODES, TEXT
from tests.serving import LIMIT_S, Serving, wait_for

START = {"type": "request.start"}
END = {"type": "input_text.end", "sequence": 0}


@pytest.fixture(autouse=True, scope="module")
def no_traceback(scripted: Serving) -> Iterator[None]:
    yield
    assert "Traceback" not in scripted.output


def append(text: Any = "the quick ", sequence: Any = 0) -> dict[str, Any]:
    return {"type": "input_text.append", "sequence": sequence, "text": text}


async def is_served(url: str) -> None:
    """A good session."""
    async with live(url, [PROTOCOL]) as client:
        await client.say(TEXT)
        assert heard(client.pcm) == spoken(TEXT)
        assert await client.closed() == 1000


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("[" * 60_000, "nested too deeply"),
        ('{"sequence": ' + "9" * 5000 + "}", "number of too many digits"),
        ("{", "isn't valid JSON"),
    ],
)
async def test_a_message_is_called_what_it_is(scripted: Serving, message: str, said: str) -> None:
    async with live(scripted.url) as client:
        await client.socket.send(message)
        await client.closed()
    assert said in client.events[-1]["error"]["message"]


@pytest.mark.parametrize("voice", ["nobody", 5])
async def test_a_voice_that_was_called_speaker_is_refused_under_that_name(scripted: Serving, voice: Any) -> None:
    async with live(scripted.url) as client:
        await client.start(speaker=voice)
        assert (await client.next())["error"]["param"] == "speaker"


async def test_a_socket_that_ends_without_an_utterance_has_a_line_without_one(scripted: Serving) -> None:
    line = "a socket without an utterance ends: unknown_event: "
    before = scripted.output.count(line)
    async with live(scripted.url) as client:
        await client.send("dance")
        await client.closed()
    await asyncio.to_thread(wait_for, lambda: scripted.output.count(line) > before)
    assert "utterance None" not in scripted.output


WRONG: list[tuple[list[Any], str, int]] = [
    (["{"], "invalid_request", 1008),
    (["[" * 60_000], "invalid_request", 1008),
    (["[]"], "invalid_request", 1008),
    (["null"], "invalid_request", 1008),
    ([b"\x00\x01"], "unknown_event", 1008),
    ([{}], "unknown_event", 1008),
    ([{"type": "session.update"}], "unknown_event", 1008),
    ([{"type": ["request.start"]}], "unknown_event", 1008),
    ([append()], "invalid_request", 1008),
    ([END], "invalid_request", 1008),
    ([START, START], "invalid_request", 1008),
    ([START, b"\x00"], "unknown_event", 1008),
    ([START, append(), "nonsense"], "invalid_request", 1008),
    ([START, END], "empty_input", 1008),
    ([START, append(" \n\t"), {**END, "sequence": 1}], "empty_input", 1008),
    ([START, append(sequence=1)], "invalid_sequence", 1008),
    ([START, append(sequence=-1)], "invalid_sequence", 1008),
    ([START, append(sequence=False)], "invalid_sequence", 1008),
    ([START, append(sequence="0")], "invalid_sequence", 1008),
    ([START, append(sequence=None)], "invalid_sequence", 1008),
    ([START, append(), append()], "invalid_sequence", 1008),
    ([START, append(), {**END, "sequence": 2}], "invalid_sequence", 1008),
    ([START, {"type": "input_text.append", "sequence": 0}], "invalid_request", 1008),
    ([START, append(text=["the"])], "invalid_request", 1008),
    ([START, append(text="a\x00b")], "invalid_text", 1008),
    ([START, append(text="\ud800")], "invalid_text", 1008),
    ([START, append(text="a" * 65_500), append("b" * 37, 1)], "input_too_large", 1009),
    (["x" * 65_537], "input_too_large", 1009),
    (["é" * 32_769], "input_too_large", 1009),
    ([{**START, "instructions": "choke=1"}, append(), append(sequence=1)], "input_too_large", 1009),
    ([{**START, "instructions": "fail=1"}, append()], "generation_failed", 1011),
    ([{**START, "instructions": "gap=1"}, append()], "generation_failed", 1011),
    ([{**START, "instructions": "mum=1"}, append(), append(sequence=1)], "generation_failed", 1011),
    ([{**START, "instructions": "refuse=2"}], "not_ready", 1013),
]
ENDED: list[tuple[list[Any], str, int]] = [  # with a stream that speaks until it is stopped
    ([{**END, "sequence": 1}, {**END, "sequence": 2}], "invalid_request", 1008),
    ([{**END, "sequence": 1}, append(sequence=2)], "invalid_request", 1008),
    ([{**END, "sequence": 1}, START], "invalid_request", 1008),
]
STALLED = {**START, "instructions": "stall=1"}


# A field's value that a live text can't have.
HTTP_ALONE: list[dict[str, Any]] = [
    {"input": TEXT},
    {"ref_audio": "data:audio/wav;base64,UklGRg=="},
    {"ref_text": "what is said"},
    {"stream": False},
    {"stream": "yes"},
    {"stream_format": "sse"},
    {"non_streaming_mode": True},
]


@MODES
@pytest.mark.parametrize("field", HTTP_ALONE, ids=str)
async def test_what_only_http_can_do_is_refused_by_name(
    scripted: Serving, subprotocols: list[str], field: dict[str, Any]
) -> None:
    async with live(scripted.url, subprotocols) as client:
        await client.start(**field)
        event = await client.next()
    assert event["type"] == "error", event
    assert (event["error"]["code"], event["error"]["param"]) == ("invalid_value", *field)


@MODES
async def test_what_a_live_text_is_anyway_may_be_said_and_nothing_by_null(
    scripted: Serving, subprotocols: list[str]
) -> None:
    fields = {"stream": True, "stream_format": "audio", "non_streaming_mode": False, "unheard_of": 1}
    async with live(scripted.url, subprotocols) as client:
        await client.say(TEXT, **fields, input=None, ref_audio=None, ref_text=None)
        assert heard(client.pcm) == spoken(TEXT)


def test_no_field_of_http_is_overlooked_on_the_socket() -> None:
    refused = {name for field in HTTP_ALONE for name in field}
    assert SpeechRequest.model_fields.keys() - LiveRequest.model_fields.keys() <= refused


@MODES
@pytest.mark.parametrize(
    ("messages", "code", "close_code"),
    WRONG + [([STALLED, append(), *messages], code, close_code) for messages, code, close_code in ENDED],
)
async def test_case_15_a_wrong_message_is_one_error_and_a_close(
    scripted: Serving, triton: TritonClient, subprotocols: list[str], messages: list[Any], code: str, close_code: int
) -> None:
    async with live(scripted.url, subprotocols) as client:
        for message in messages:
            await client.socket.send(json.dumps(message) if isinstance(message, dict) else message)
        assert await client.closed() == close_code
    error = client.events[-1]
    assert (error["type"], error["error"]["code"]) == ("error", code)
    assert error["error"]["type"] == ("server_error" if close_code in (1011, 1013) else "invalid_request_error")
    assert error["error"]["message"]
    assert client.kinds.count("error") == 1
    assert "response.done" not in client.kinds
    known = {event["request_id"] for event in client.events if event["type"] == "response.started"}
    assert error["request_id"] in (known or {error["request_id"]})
    await until(triton, active=0)
    await is_served(scripted.url)


REFUSED = [
    ({"voice": "nobody"}, "invalid_value"),
    ({"voice": {"name": "ryan"}}, "invalid_value"),
    ({"language": "klingon"}, "invalid_value"),
    ({"temperature": 1e300}, "invalid_value"),
    ({"temperature": float("nan")}, "invalid_value"),
    ({"seed": -1}, "invalid_value"),
    ({"response_format": "mp3"}, "invalid_value"),
    ({"speed": 0}, "invalid_value"),
    ({"instructions": "\ud800"}, "invalid_value"),
    ({"model": "another"}, "model_not_found"),
    ({"instructions": "refuse=1"}, "overloaded"),
    ({"instructions": "refuse=3"}, "input_too_large"),
]


@pytest.mark.parametrize(("fields", "code"), REFUSED)
async def test_a_refused_start_leaves_only_a_socket_for_many_utterances_open(
    scripted: Serving, fields: dict[str, Any], code: str
) -> None:
    start = json.dumps(START | fields)
    async with live(scripted.url) as client:
        await client.socket.send(start)
        await client.socket.send(json.dumps(append()))  # it doesn't wait for an answer
        while client.kinds[-1] != "error":
            await client.next()
        assert client.events[-1]["error"]["code"] == code
        assert "response.started" not in client.kinds
        await client.socket.send(json.dumps(append("brown", 1)))
        await client.say(TEXT)
        assert heard(client.pcm) == spoken(TEXT)
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.socket.send(start)
        assert await client.closed() == {"overloaded": 1013, "input_too_large": 1009}.get(code, 1008)
        assert client.events[-1]["error"]["code"] == code


@pytest.mark.parametrize("name", ["ryan", " RYAN ", "r-y_a n", "Alloy", {"id": "Serena"}])
async def test_case_42_voices_have_the_names_that_they_have_over_http(scripted: Serving, name: Any) -> None:
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.send("request.start", speaker=name, language=" English ", voice=None)
        assert await client.next() == {"type": "request.configured"}


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1, 17 << 20])
async def test_case_12_a_huge_message_is_too_large(scripted: Serving, size: int) -> None:
    async with live(scripted.url, [PROTOCOL]) as client:
        sending = asyncio.create_task(client.socket.send("x" * size))
        assert await client.closed() == 1009
        await asyncio.wait({sending})
        sending.exception()
    await is_served(scripted.url)


def limited(scripted: Serving, **limits: Any) -> Settings:
    return Settings(triton_urls=(scripted.triton_grpc,), heartbeat_timeout_s=LIMIT_S, **limits)


async def fails(url: str, code: str, close_code: int, act: Callable[[LiveClient], Any]) -> None:
    """`act` on a socket ends in this error, and the next client is served."""
    await asyncio.to_thread(wait_for, lambda: httpx.get(f"{url}/ready").status_code == 200)
    async with live(url, [PROTOCOL]) as client:
        await act(client)
        assert await client.closed() == close_code
        assert client.events[-1]["error"]["code"] == code
    await is_served(url)


async def test_a_text_has_so_many_pieces_at_most(scripted: Serving) -> None:
    async def write(client: LiveClient) -> None:
        await client.start()
        for _ in range(11):
            await client.append("the ")

    with proxy(limited(scripted, max_live_events=10)) as url:
        await fails(url, "too_many_input_events", 1008, write)


@pytest.mark.parametrize("pieces", [None, 0, 1])
async def test_a_client_that_says_nothing_is_told_so(scripted: Serving, pieces: int | None) -> None:
    async def write(client: LiveClient) -> None:
        if pieces is not None:
            await client.start("stall=0")
        for _ in range(pieces or 0):
            await client.append("the ")

    with proxy(limited(scripted, input_timeout_s=0.5)) as url:
        await fails(url, "input_timeout", 1008, write)


async def test_a_client_may_take_its_time_between_utterances_and_while_it_listens(scripted: Serving) -> None:
    with proxy(limited(scripted, input_timeout_s=1)) as url:
        await asyncio.to_thread(wait_for, lambda: httpx.get(f"{url}/ready").status_code == 200)
        async with live(url) as client, asyncio.timeout(LIMIT_S):
            for _ in range(2):
                await client.say(" ".join("abcdefghij"), "pace_ms=150")  # longer than the limit
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.5):
                        await client.next()


def count(url: str, name: str) -> float:
    """A meter's value; 0 if it never counted."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(name + " "))


GIVEN_UP = 'qwen3_tts_proxy_utterances_total{outcome="backpressure"}'
UNREAD = "w " * 5000  # makes more sound than the buffers between us hold


async def test_case_9_a_client_that_does_not_read_is_given_up(scripted: Serving, triton: TritonClient) -> None:
    with proxy(limited(scripted, send_timeout_s=0.5)) as url:
        await asyncio.to_thread(wait_for, lambda: httpx.get(f"{url}/ready").status_code == 200)
        for given_up in (1, 2, 3):
            async with live(url, [PROTOCOL], max_queue=1) as client:
                await client.start()
                await client.append(UNREAD)
                await client.end()
                await asyncio.to_thread(wait_for, lambda n=given_up: count(url, GIVEN_UP) == n)
                client.socket.transport.abort()
            await until(triton, active=0)
        await is_served(url)


async def test_a_client_that_reads_again_in_time_is_told_that_it_was_given_up(scripted: Serving) -> None:
    with proxy(limited(scripted, send_timeout_s=3)) as url:
        await asyncio.to_thread(wait_for, lambda: httpx.get(f"{url}/ready").status_code == 200)
        async with live(url, [PROTOCOL], max_queue=1) as client:
            await client.start()
            await client.append(UNREAD)
            await client.end()
            await asyncio.to_thread(wait_for, lambda: count(url, GIVEN_UP) == 1)
            assert await client.closed() == 1008
            assert client.events[-1]["error"]["code"] == "backpressure"


async def test_a_slow_client_hears_everything_and_holds_nobody_up(scripted: Serving) -> None:
    async with live(scripted.url, [PROTOCOL], max_queue=1) as slow:
        await slow.start()
        await slow.append(UNREAD)
        await slow.end()
        await slow.until_sound()
        for _ in range(5):
            await is_served(scripted.url)
        assert await slow.closed() == 1000
    assert heard(slow.pcm) == spoken(UNREAD)


def raw(url: str) -> socket.socket:
    """A plain connection, after the handshake."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=LIMIT_S)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ["Host: x", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}"]
    request = [f"GET {PATH} HTTP/1.1", *lines, "Sec-WebSocket-Version: 13", "", ""]
    connection.sendall("\r\n".join(request).encode())
    file = connection.makefile("rb")
    assert b"101" in file.readline()
    while file.readline().strip():
        pass
    return connection


def frame(payload: bytes, opcode: int = 1) -> bytes:
    """A client's frame, masked with zeros; shorter than 64 KiB."""
    return bytes([0x80 | opcode, 0xFE]) + len(payload).to_bytes(2, "big") + bytes(4) + payload


GARBAGE = {
    "not UTF-8": frame(b"\xff\xfe\xfd"),
    "an unknown opcode": frame(b"x", 5),
    "no mask": b"\x81\x01x",
    "a huge length": b"\x81\xff" + b"\x7f" + b"\xff" * 7,
    "a close with a bad code": frame(b"\x00\x01", 8),
    "nothing": b"",
    "half a frame": b"\x81\xfe",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("script", ["pace_ms=5", "stall=1", "stall=0"])
async def test_case_11_a_lost_connection_ends_its_stream(
    scripted: Serving, triton: TritonClient, garbage: bytes, script: str
) -> None:
    with raw(scripted.url) as connection:
        for event in (START | {"instructions": script}, append("word " * 1000)):
            connection.sendall(frame(json.dumps(event).encode()))
        await until(triton, active=1)
        connection.sendall(garbage)
    await until(triton, active=0)
    for gauge in ("qwen3_tts_proxy_open_sockets", "qwen3_tts_proxy_active_streams"):
        await asyncio.to_thread(wait_for, lambda g=gauge: count(scripted.url, g) == 0)


async def test_case_11_a_client_that_vanishes_while_it_does_not_read_ends_its_stream(
    scripted: Serving, triton: TritonClient
) -> None:
    with raw(scripted.url) as connection:
        connection.sendall(frame(json.dumps(START).encode()) + frame(json.dumps(append(UNREAD)).encode()))
        connection.sendall(frame(json.dumps({"type": "input_text.end", "sequence": 1}).encode()))
        await asyncio.to_thread(connection.recv, 1000)
        await until(triton, active=0)  # it is all made, and waits for the client
    await asyncio.to_thread(wait_for, lambda: count(scripted.url, "qwen3_tts_proxy_open_sockets") == 0)


async def test_without_an_engine_it_says_not_ready() -> None:
    with proxy(Settings(triton_urls=("127.0.0.1:9",))) as url:
        for subprotocols in ([PROTOCOL], []):
            async with live(url, subprotocols) as client:
                await client.start()
                assert await client.closed() == 1013
                assert client.events[-1]["error"]["code"] == "not_ready"


async def refused(url: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with live(url, **options):
            pass
    return caught.value.response.status_code


async def test_a_key_comes_by_header_or_subprotocol(scripted: Serving) -> None:
    with proxy(limited(scripted, api_key="secret")) as url:
        await asyncio.to_thread(wait_for, lambda: httpx.get(f"{url}/ready").status_code == 200)
        assert await refused(url) == 403
        assert await refused(url, subprotocols=[PROTOCOL]) == 403
        assert await refused(url, subprotocols=[PROTOCOL, "api-key.wrong"]) == 403
        assert await refused(url, additional_headers={"Authorization": "Bearer wrong"}) == 403
        for subprotocols, chosen in (
            ([PROTOCOL, "api-key.secret"], PROTOCOL),
            (["api-key.secret", PROTOCOL], PROTOCOL),
            (["api-key.secret"], "api-key.secret"),
        ):
            async with live(url, subprotocols) as client:
                assert client.socket.subprotocol == chosen
                assert (await client.say(TEXT))["stop_reason"] == "stop"
        async with live(url, additional_headers={"Authorization": "Bearer secret"}) as client:
            assert (await client.say(TEXT))["stop_reason"] == "stop"


async def test_pages_of_other_hosts_stay_outside(scripted: Serving) -> None:
    assert await refused(scripted.url, origin="https://page.example") == 403
    assert await refused(scripted.url, origin="null") == 403
    async with live(scripted.url, origin=scripted.url):
        pass
    with proxy(limited(scripted, cors_origins=("https://page.example",))) as url:
        async with live(url, origin="https://page.example"):
            pass
        assert await refused(url, origin="https://other.example") == 403
