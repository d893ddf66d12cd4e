"""Live text over the WebSocket, on the real engine: sound before the text's end, the whole text's sound, and a soak."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import numpy as np
import pytest

from tests.e2e.test_http import idle, memory, pcm, speak
from tests.proxy.live_client import PROTOCOL, LiveClient, live
from tests.serving import Serving, wait_for

__all__ = ["idle"]  # a fixture

FORTY_WORDS = " ".join(f"{word}{number}" for number, word in enumerate(["one", "two", "three", "four"] * 10))
TEXT = "Hello there, this is a tiny test of speech."
OPTIONS = {"seed": 6, "max_new_tokens": 60, "voice": "Ryan"}


def whole(server: Serving, text: str = TEXT) -> np.ndarray:
    """What live text must sound like: the streaming layout of the whole, with its end masked alike."""
    return pcm(speak(server, text, non_streaming_mode=False, mask_eos_until_text_end=True, **OPTIONS))


def same_sound(client: LiveClient, expected: np.ndarray) -> bool:
    heard = np.frombuffer(client.pcm, "<i2").astype(int)
    return len(heard) == len(expected) and bool(np.abs(heard - expected).max() <= 1)


async def test_sound_comes_before_half_of_forty_words_were_sent(server: Serving) -> None:
    async with live(server.url, [PROTOCOL]) as client:
        await client.start(seed=1, max_new_tokens=60)
        words = FORTY_WORDS.split()
        for word in words[:18]:
            await client.append(f"{word} ")
        await client.until_sound()
        for word in words[18:]:
            await client.append(f"{word} ")
        await client.end()
        assert (await client.until("response.done"))["stop_reason"] in ("stop", "length")
        assert await client.closed() == 1000


async def test_live_text_sounds_like_the_whole_text_over_http(server: Serving) -> None:
    expected = await asyncio.to_thread(whole, server)
    for size in (1, 4, 100):
        async with live(server.url) as client:
            await client.start(**OPTIONS)
            for begin in range(0, len(TEXT), size):
                await client.append(TEXT[begin : begin + size])
            await client.end()
            await client.until("response.done")
            assert same_sound(client, expected)


@pytest.mark.parametrize("subprotocols", [[PROTOCOL], []], ids=["one utterance", "many utterances"])
async def test_a_flood_of_pieces_changes_nothing_for_anyone_else(server: Serving, subprotocols: list[str]) -> None:
    expected = await asyncio.to_thread(whole, server)
    pieces = [*FORTY_WORDS, *[""] * (16_383 - len(FORTY_WORDS))]  # and the end: as many as a text may have
    over = asyncio.Event()

    async def talk() -> None:
        async with live(server.url) as client:
            while not over.is_set():
                await client.start(**OPTIONS)
                await client.append(TEXT)
                await client.end()
                await client.until("response.done")
                assert same_sound(client, expected)

    async def write(client: LiveClient) -> None:
        for piece in pieces:
            await client.append(piece)
        await client.end()

    async with asyncio.TaskGroup() as tasks, live(server.url, subprotocols) as client:
        tasks.create_task(server.stays_ready(over))
        tasks.create_task(talk())
        await client.start(seed=1)
        tasks.create_task(write(client))
        assert (await client.until("response.done"))["stop_reason"] in ("stop", "length")
        over.set()
    acks = [event["sequence"] for event in client.events if event["type"] == "input_text.ack"]
    assert acks == list(range(len(pieces) + 1))


NAMES = [None, "auto", " ENGLISH ", "", " ", "\n", "klingon"]


@pytest.mark.parametrize("language", NAMES)
async def test_a_language_is_taken_or_refused_alike_over_http_and_the_socket(
    server: Serving, language: str | None
) -> None:
    answer = await asyncio.to_thread(speak, server, TEXT, language=language, max_new_tokens=5)
    async with live(server.url, [PROTOCOL]) as client:
        await client.start(language=language)
        event = await client.next()
    known = language in NAMES[:3]
    assert answer.status_code == (200 if known else 400)
    assert event["type"] == ("request.configured" if known else "error"), event
    assert known or event["error"] == answer.json()["error"]


async def session(server: Serving, number: int, expected: np.ndarray) -> bool:
    """One socket that behaves well (True, when it heard what it should) or in one of the usual bad ways."""
    dice = random.Random(number)
    way = ["good", "cancel", "drop", "slow", "bad"][number % 5]
    async with live(server.url) as client:
        await client.start(**OPTIONS)
        if way == "bad":
            await client.socket.send(
                dice.choice(["{", '{"type":"dance"}', '{"type":"input_text.append","sequence":7}'])
            )
            await client.closed()
            return True
        for begin in range(0, len(TEXT), 9):
            await client.append(TEXT[begin : begin + 9])
        if way == "cancel":
            await client.cancel()
            return (await client.until("response.done"))["stop_reason"] in ("cancelled", "stop", "length")
        if way == "drop":
            client.socket.transport.abort()
            return True
        await client.end()
        if way == "slow":
            await client.until_sound()
            client.socket.transport.pause_reading()
            await asyncio.sleep(dice.random())  # a listener's pause, of whatever length
            client.socket.transport.resume_reading()
        await client.until("response.done")
        return same_sound(client, expected)


async def test_case_52_two_hundred_sockets_good_and_bad_leave_nothing_and_hear_right(
    server: Serving, idle: Callable[[], bool]
) -> None:
    expected = await asyncio.to_thread(whole, server)
    used = []
    for half in range(2):
        for batch in range(2):
            numbers = range(100 * half + 50 * batch, 100 * half + 50 * batch + 50)
            results = await asyncio.gather(*(session(server, number, expected) for number in numbers))
            assert all(results)
        await asyncio.to_thread(wait_for, idle)
        used.append(memory(server))
    growth = {name: (used[1][name] - used[0][name]) / 2**20 for name in used[0]}
    assert all(mebibytes < 20 for mebibytes in growth.values()), growth
    assert "Traceback" not in server.output
