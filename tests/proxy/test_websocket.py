"""Laws of live text: what a client hears and reads. A real server with scripted models."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from proxy.cli import main
from proxy.triton_client import TritonClient
from tests.proxy.live_client import PROTOCOL, heard, live, spoken
from tests.proxy.test_triton_client import until
from tests.serving import LIMIT_S, Serving, wait_for

TEXT = "the quick brown fox jumps over the lazy dog"
SOUND = {"encoding": "pcm_s16le", "sample_rate": 24_000, "channels": 1}
MODES = pytest.mark.parametrize("subprotocols", [[PROTOCOL], []], ids=["one utterance", "many utterances"])


@pytest.fixture(autouse=True, scope="module")
def no_traceback(scripted: Serving) -> Iterator[None]:
    yield
    assert "Traceback" not in scripted.output


async def test_one_utterance_is_this_conversation(scripted: Serving) -> None:
    async with live(scripted.url, [PROTOCOL]) as client:
        assert client.socket.subprotocol == PROTOCOL
        await client.start(voice="Ryan", language="English", seed=1, temperature=0.5)
        await client.until("request.configured")
        await client.append("the qui")
        await client.until("input_text.ack")
        await client.append("ck brown fox")
        await client.until("input_text.ack")
        await client.end()
        assert await client.closed() == 1000
    request_id = client.events[2]["request_id"]
    assert client.events == [
        {"type": "session.created", "protocol": PROTOCOL, "audio": SOUND},
        {"type": "request.configured"},
        {"type": "response.started", "request_id": request_id, "audio": SOUND},
        {"type": "input_text.ack", "event": "input_text.append", "sequence": 0, "request_id": request_id},
        {"type": "input_text.ack", "event": "input_text.append", "sequence": 1, "request_id": request_id},
        {"type": "input_text.ack", "event": "input_text.end", "sequence": 2, "request_id": request_id},
        {"type": "response.done", "request_id": request_id, "stop_reason": "stop", "audio_chunks": len(client.sound)},
    ]
    assert heard(client.pcm) == spoken("the quick brown fox")


async def test_the_response_starts_with_the_first_stable_text(scripted: Serving) -> None:
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.start()
        for piece in ("th", "", "e ", "quick"):
            await client.append(piece)
        await client.end()
        await client.closed()
    acks = ["input_text.ack"] * 2
    assert client.kinds[:6] == ["session.created", "request.configured", *acks, "response.started", "input_text.ack"]
    assert heard(client.pcm) == spoken("the quick")


async def test_sound_comes_before_the_text_has_ended(scripted: Serving) -> None:
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.start()
        await client.append("the ")
        await client.until_sound()
        await client.append("quick")
        await client.end()
        assert await client.closed() == 1000
    assert heard(client.pcm) == spoken("the quick")


async def test_a_socket_without_subprotocol_speaks_many_utterances(scripted: Serving) -> None:
    async with live(scripted.url) as client:
        assert client.socket.subprotocol is None
        seen = []
        for text in (TEXT, "one", TEXT):
            done = await client.say(text)
            assert heard(client.pcm) == spoken(text)
            assert (done["stop_reason"], done["audio_chunks"]) == ("stop", len(client.sound))
            seen.append(done["request_id"])
        assert len(set(seen)) == 3


async def test_case_13_text_without_a_full_stop_is_spoken_whole(scripted: Serving) -> None:
    words = (TEXT + " ") * 7
    assert len(words) > 300
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.start()
        for word in words.split():
            await client.append(word + " ")
        await client.end()
        assert await client.closed() == 1000
    assert heard(client.pcm) == spoken(words)


async def test_case_47_words_of_both_directions_are_spoken_in_the_order_in_which_they_were_written(
    scripted: Serving,
) -> None:
    text = "\u202eשלום 123\u202c hello مرحبا ٤٥ 6-7 \u2067עולם\u2069 ."
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.start()
        for character in text:
            await client.append(character)
        await client.end()
        assert await client.closed() == 1000
    assert heard(client.pcm) == spoken(text)


async def test_case_46_tags_are_dropped_however_they_are_cut_and_each_piece_is_acknowledged(scripted: Serving) -> None:
    async with live(scripted.url) as client:
        text = "<speak>the quick<break time='1s'/>brown 1 < 2 fox</speak> <spea"
        for size in (1, 3, 1000):
            client.events.clear()
            await client.start()
            for begin in range(0, len(text), size):
                await client.append(text[begin : begin + size])
            await client.end()
            assert (await client.until("response.done"))["stop_reason"] == "stop"
            assert heard(client.pcm) == spoken("the quick brown 1 < 2 fox <spea")
            acks = [event for event in client.events if event["type"] == "input_text.ack"]
            assert [ack["sequence"] for ack in acks] == list(range(client.sent))
            assert [ack["event"] for ack in acks] == ["input_text.append"] * (client.sent - 1) + ["input_text.end"]


async def test_case_12_ten_thousand_pieces_of_one_character(scripted: Serving) -> None:
    text = ("abcdefghijklmnopqrstuvwxyz" * 4 + " ") * 100
    text = text[:9_999] + "."
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.start()

        async def write() -> None:
            for character in text:
                await client.append(character)
            await client.end()

        writing = asyncio.create_task(write())
        assert await client.closed() == 1000
        await writing
    acknowledged = [event["sequence"] for event in client.events if event["type"] == "input_text.ack"]
    assert acknowledged == list(range(10_001))
    assert heard(client.pcm) == spoken(text)


async def test_fifty_sockets_at_once_each_hear_their_own_text(scripted: Serving, triton: TritonClient) -> None:
    async def talk(number: int) -> None:
        text = " ".join(f"{number}-{word}" for word in range(10))
        async with live(scripted.url, [PROTOCOL] if number % 2 else []) as client:
            await client.start("pace_ms=5")
            for word in text.split():
                await client.append(word + " ")
            await client.end()
            await client.until("response.done")
            assert heard(client.pcm) == spoken(text)

    await asyncio.gather(*(talk(number) for number in range(50)))
    await until(triton, active=0)


async def test_another_rate_and_speed_are_told_and_heard(scripted: Serving) -> None:
    async with live(scripted.url) as client:
        await client.start(sample_rate=8000, speed=2.0, response_format=" PCM16 ")
        await client.append((TEXT + " ") * 5)
        await client.end()
        started = await client.until("response.started")
        await client.until("response.done")
    assert started["audio"] == {**SOUND, "sample_rate": 8000}
    seconds = len(np.frombuffer(client.pcm, "<i2")) / 8000
    assert seconds == pytest.approx(45 * 0.08 / 2, abs=0.1)


@MODES
@pytest.mark.parametrize("ended", [False, True], ids=["before the end", "after the end"])
async def test_a_cancel_ends_the_utterance_in_the_engine(
    scripted: Serving, triton: TritonClient, subprotocols: list[str], ended: bool
) -> None:
    async with live(scripted.url, subprotocols) as client:
        await client.start("stall=2")
        await client.append(TEXT)
        if ended:
            await client.end()
        await client.until_sound()
        await client.cancel()
        done = await client.until("response.done")
        assert done["stop_reason"] == "cancelled"
        assert done["request_id"] == client.events[2]["request_id"]
        assert done["audio_chunks"] == len(client.sound)
        await until(triton, active=0)
        if subprotocols:
            assert await client.closed() == 1000
        else:
            assert (await client.say(TEXT))["stop_reason"] == "stop"
            assert heard(client.pcm) == spoken(TEXT)


@MODES
async def test_a_cancel_between_utterances_is_answered_without_an_id(
    scripted: Serving, subprotocols: list[str]
) -> None:
    async with live(scripted.url, subprotocols) as client:
        await client.cancel()
        done = await client.until("response.done")
        assert done == {"type": "response.done", "request_id": None, "stop_reason": "cancelled", "audio_chunks": 0}
        if subprotocols:
            assert await client.closed() == 1000
        else:
            await client.say(TEXT)
            await client.cancel()
            assert (await client.until("response.done"))["request_id"] is None


async def test_cancels_at_any_moment_leave_nothing_running(scripted: Serving, triton: TritonClient) -> None:
    async with live(scripted.url) as client:
        for moment in range(8):
            await client.start("pace_ms=1")
            for word in TEXT.split()[:moment]:
                await client.append(word + " ")
            if moment % 2:
                await client.append("end")
                await client.end()
            await client.cancel()
            await client.until("response.done")
            if client.events[-1]["stop_reason"] == "stop":  # it was faster than the cancel
                assert (await client.until("response.done"))["request_id"] is None
        await until(triton, active=0)
        await client.say(TEXT)
        assert heard(client.pcm) == spoken(TEXT)


async def test_what_comes_late_for_an_utterance_that_ended_by_itself_is_dropped(scripted: Serving) -> None:
    async with live(scripted.url) as client:
        await client.start("frames=2")
        await client.append("the quick brown ")
        done = await client.until("response.done")
        assert (done["stop_reason"], heard(client.pcm)) == ("length", spoken("the quick"))
        await client.append("fox")  # the client may not have read that yet
        await client.end()
        await client.say(TEXT)
        assert heard(client.pcm) == spoken(TEXT)
    async with live(scripted.url, [PROTOCOL]) as client:
        await client.start("frames=2")
        await client.append("the quick brown ")
        assert await client.closed() == 1000
        assert client.events[-1]["stop_reason"] == "length"


@pytest.fixture
def speaking(scripted: Serving, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`say --live` into live.wav."""
    command = [sys.executable, "-m", "proxy", "say", "--live", "--url", scripted.url, "-o", str(tmp_path / "live.wav")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def test_say_live_speaks_standard_input_while_it_is_written(
    speaking: subprocess.Popen[str], scripted: Serving, tmp_path: Path
) -> None:
    assert speaking.stdin
    speaking.stdin.write("thé quick ")
    speaking.stdin.flush()
    file = tmp_path / "live.wav"
    wait_for(lambda: file.exists() and file.stat().st_size > 44)  # it sounds, though more is to come
    speaking.stdin.write("brown fox\n")
    out, _ = speaking.communicate(timeout=LIMIT_S)
    assert speaking.returncode == 0
    assert "0.32 s of speech" in out
    with wave.open(str(file)) as sound:
        assert heard(sound.readframes(sound.getnframes())) == spoken("thé quick brown fox")


@pytest.mark.parametrize("arguments", [["--live", "text"], [], ["--live", "-o", "x.mp3"]])
def test_say_refuses_what_does_not_go_together(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["say", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_say_live_tells_what_the_server_says(scripted: Serving) -> None:
    command = [sys.executable, "-m", "proxy", "say", "--live", "--url", scripted.url, "--voice", "nobody", "--play"]
    told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "Unknown voice" in told.stderr
    assert len(told.stderr.splitlines()) == 1
