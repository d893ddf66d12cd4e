"""The law of reproducibility on the whole service: one seed, one speech, whatever else runs and however it is asked.

Each utterance is compared with the one that was spoken alone: equal codes, and PCM within one int16 step.
"""

from __future__ import annotations

import asyncio
import json

import httpx
import numpy as np
import pytest

from tests.e2e.test_http import PATIENCE, pcm, speak
from tests.e2e.triton import Session, ask
from tests.proxy.live_client import live
from tests.serving import Serving

TEXT = "One seed makes one speech, whoever else is speaking."
ASKED = {"seed": 77, "voice": "ryan", "max_new_tokens": 50, "ignore_eos": True}
# Live text has this layout, and no end of speech before the text's.
STREAMING = {**ASKED, "ignore_eos": False, "non_streaming_mode": False, "mask_eos_until_text_end": True}
LIVE = {name: ASKED[name] for name in ("seed", "voice", "max_new_tokens")}

pytestmark = pytest.mark.parametrize("layout", ["whole", "streaming"])


def options(layout: str) -> dict:
    return ASKED if layout == "whole" else STREAMING


@pytest.fixture
def codes(server: Serving, layout: str) -> np.ndarray:
    """[frames, 16], spoken alone."""
    return ask(server.triton_grpc, "talker", TEXT, **options(layout)).codes


@pytest.fixture
def alone(server: Serving, layout: str) -> np.ndarray:
    """[samples], spoken alone."""
    return pcm(speak(server, TEXT, **options(layout)))


def is_same(heard: np.ndarray, alone: np.ndarray) -> bool:
    return len(heard) == len(alone) and bool(np.abs(heard.astype(int) - alone).max() <= 1)


def test_again_and_in_chunks_of_any_size(server: Serving, layout: str, codes: np.ndarray, alone: np.ndarray) -> None:
    for schedule in ([1], [3, 7], [100]):
        again = {**options(layout), "stream_chunk_schedule": schedule}
        np.testing.assert_array_equal(ask(server.triton_grpc, "talker", TEXT, **again).codes, codes)
        assert is_same(pcm(speak(server, TEXT, **again)), alone)


def test_beside_others_of_which_some_are_cancelled(
    server: Serving, layout: str, codes: np.ndarray, alone: np.ndarray
) -> None:
    with Session(server.triton_grpc) as neighbours, Session(server.triton_grpc) as session:
        for number in range(12):
            asked = json.dumps({"seed": number, "ignore_eos": True, "max_new_tokens": 30 + 20 * number})
            neighbours.request("talker", f"n{number}", None, TEXT=TEXT, OPTIONS=asked, STREAM_ID=f"n{number}")
        session.send("talker", TEXT, "codes", **options(layout))
        session.send("tts", TEXT, "sound", **options(layout))
        for number in range(0, 12, 2):
            neighbours.receive()
            neighbours.act("cancel", f"n{number}", f"cancel{number}")
        answers = session.finish()
        neighbours.finish()
    np.testing.assert_array_equal(answers["codes"].codes, codes)
    assert is_same(answers["sound"].pcm, alone)


async def test_over_http_beside_others_whose_clients_leave(server: Serving, layout: str, alone: np.ndarray) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:

        def post(number: int | None) -> asyncio.Task[httpx.Response]:
            asked = options(layout) if number is None else {**ASKED, "seed": number, "max_new_tokens": 400}
            body = {"input": TEXT, "response_format": "pcm", **asked}
            return asyncio.create_task(client.post("/v1/audio/speech", json=body))

        neighbours = [post(number) for number in range(8)]
        mine = [post(None) for _ in range(3)]
        await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
        for neighbour in neighbours:
            neighbour.cancel()
        await asyncio.wait(neighbours)
        for task in mine:
            assert is_same(pcm(await task), alone)


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_over_a_websocket_with_the_text_cut_anywhere(
    server: Serving, layout: str, size: int, alone: np.ndarray
) -> None:
    if layout == "whole":
        alone = await asyncio.to_thread(lambda: pcm(speak(server, TEXT, **STREAMING)))
    async with live(server.url) as first, live(server.url) as second:
        for client in (first, second):  # and beside one another
            await client.start(**LIVE)
        for begin in range(0, len(TEXT), size):
            for client in (first, second):
                await client.append(TEXT[begin : begin + size])
        for client in (first, second):
            await client.end()
            await client.until("response.done")
            assert is_same(np.frombuffer(client.pcm, "<i2"), alone)
