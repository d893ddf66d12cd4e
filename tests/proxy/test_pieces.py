"""Laws of a long text that is spoken in pieces. A real server with scripted models: each sentence scripts its piece."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from engine_lib.wire import MAX_SEED, SAMPLES_PER_FRAME
from proxy.pieces import seed_of_piece
from proxy.triton_client import TritonClient
from tests.proxy.scripted import LOUDNESS, STEP
from tests.proxy.test_speech import asking, decode, events
from tests.proxy.test_triton_client import until
from tests.serving import LIMIT_S, Serving, serving, wait_for

Speak = Callable[..., httpx.Response]


def sentence(script: str) -> str:
    """A sentence that just fits into a piece."""
    return f"{script} ".ljust(590, "x") + "y. "


def text_of(*scripts: str) -> str:
    return "".join(map(sentence, scripts))


def numbers(pcm: bytes) -> list[int]:
    """The numbers of the frames in the sound."""
    frames = np.frombuffer(pcm, "<i2").reshape(-1, SAMPLES_PER_FRAME)
    return [round((int(frame.max()) - LOUDNESS) / STEP) for frame in frames]


def test_all_pieces_are_heard_in_order_in_one_response(speak: Speak) -> None:
    text = text_of("frames=3", "frames=1", "frames=4 chunk=3")
    assert numbers(speak(text, response_format="pcm").content) == [0, 1, 2, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
def test_the_pieces_go_through_one_encoder(speak: Speak, form: str) -> None:
    body = speak(text_of("frames=30", "frames=30"), response_format=form).content
    samples, rate = decode(form, body)
    assert len(samples) / rate == pytest.approx(60 * 0.08, abs=0.11)
    assert body.count(b"RIFF" if form == "wav" else b"fLaC" if form == "flac" else b"OpusHead") == (
        1 if form in ("wav", "flac", "opus") else 0
    )


def test_usage_is_the_sum_and_one_length_makes_the_whole_one(speak: Speak) -> None:
    *_, done = events(speak(text_of("frames=3", "frames=2 limit=1", "frames=4"), stream_format="sse"))
    assert done["usage"] == {"input_tokens": 21, "output_tokens": 9, "total_tokens": 30}
    assert done["finish_reason"] == "length"
    whole = speak(text_of("frames=3", "frames=2"), stream=False)
    assert whole.headers["x-finish-reason"] == "stop"
    assert float(whole.headers["x-audio-seconds"]) == pytest.approx(0.4)


def test_a_text_within_the_limit_or_with_a_budget_of_its_own_is_one_utterance(speak: Speak) -> None:
    short = sentence("frames=3")[:-1]
    for fields in ({"input": short}, {"input": text_of("frames=5", "frames=3"), "max_new_tokens": 99}):
        *_, done = events(speak(stream_format="sse", **{"script": "", **fields}))
        assert done["usage"]["input_tokens"] == 7
        assert done["usage"]["output_tokens"] == 3


async def test_one_piece_is_made_ahead_of_the_one_that_is_read(scripted: Serving, triton: TritonClient) -> None:
    text = text_of("frames=1500 chunk=100", "frames=1", "stall=0")  # the first one is more than the sockets buffer
    before = (await triton.describe()).sampling_defaults["starts"]
    with asking(scripted.url, {"input": text, "response_format": "pcm"}) as connection:
        async with asyncio.timeout(LIMIT_S):
            while (seen := await triton.describe()).sampling_defaults["starts"] < before + 2 or seen.active:
                pass
        assert seen.sampling_defaults["starts"] == before + 2  # though nothing was read; the third one waits
        connection.setblocking(False)
        async with asyncio.timeout(LIMIT_S):
            while (await triton.describe()).sampling_defaults["starts"] < before + 3:
                with contextlib.suppress(BlockingIOError):
                    connection.recv(1 << 20)
    await until(triton, active=0)


@pytest.mark.parametrize("scripts", [("stall=2", "frames=3"), ("frames=3", "stall=2", "frames=3")])
@pytest.mark.parametrize("fields", [{"response_format": "pcm"}, {"stream": False}, {"stream_format": "sse"}])
async def test_a_client_that_leaves_ends_all_pieces(
    scripted: Serving, triton: TritonClient, scripts: tuple[str, ...], fields: dict[str, Any]
) -> None:
    with asking(scripted.url, {"input": text_of(*scripts), **fields}):
        await until(triton, active=1)
    await until(triton, active=0)


def test_a_failure_in_a_later_piece_is_one_midway(speak: Speak) -> None:
    text = text_of("frames=3", "fail=1")
    *_, error = events(speak(text, response_format="pcm", stream_format="sse"))
    assert error["type"] == "speech.audio.error"
    with pytest.raises(httpx.RemoteProtocolError):
        speak(text, response_format="pcm")
    assert speak(text, stream=False).status_code == 500


def test_a_refusal_of_the_first_piece_has_its_status(speak: Speak) -> None:
    assert speak(text_of("refuse=1", "frames=3")).status_code == 429


def test_seeds_of_pieces_differ_and_follow_from_the_first() -> None:
    assert seed_of_piece(7, 0) == 7
    seeds = [seed_of_piece(seed, number) for seed in (0, 1, MAX_SEED) for number in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed <= MAX_SEED for seed in seeds)
    assert seed_of_piece(1, 1) == 1341732422470200821  # once promised, always kept


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, scripted_models: Path) -> Iterator[Serving]:
    """A server that is set up otherwise."""
    environment = {"QWEN3_TTS_SPLIT_TEXTS": "no", "QWEN3_TTS_LOG_TEXT": "yes", "QWEN3_TTS_LOG_FORMAT": "json"}
    with serving(tmp_path_factory.mktemp("other"), "--model-repository", str(scripted_models), **environment) as server:
        yield server


def test_a_setting_turns_it_off(other: Serving) -> None:
    body = {"input": text_of("frames=2", "frames=3"), "response_format": "pcm"}
    assert numbers(httpx.post(f"{other.url}/v1/audio/speech", json=body, timeout=LIMIT_S).content) == [0, 1, 2]


def test_a_setting_writes_texts_into_the_log_and_another_one_json(other: Serving) -> None:
    answer = httpx.post(
        f"{other.url}/v1/audio/speech", json={"input": "frames=2 Grüße", "voice": "ryan"}, timeout=LIMIT_S
    )
    number = answer.headers["x-request-id"]

    def lines() -> list[str]:
        return [line for line in other.output.splitlines(keepends=True) if number in line and line.endswith("\n")]

    wait_for(lines)  # it comes after the last byte of the response
    (line,) = map(json.loads, lines())
    assert line["text"] == "frames=2 Grüße"
    assert (line["voice"], line["frames"], line["status"], line["level"]) == ("ryan", 2, "200", "info")
