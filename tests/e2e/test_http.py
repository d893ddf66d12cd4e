"""The whole service over HTTP: real sockets, real Triton, the real engine on the small checkpoint."""

from __future__ import annotations

import asyncio
import io
import random
import re
import time
import wave
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from tests.e2e.test_triton import GREEDY, TEXT, requests
from tests.e2e.triton import Session, ask
from tests.golden import golden, utterances
from tests.serving import Serving, wait_for

PATIENCE = httpx.Timeout(300)  # only a hang takes so long
TEN_SECONDS = {"ignore_eos": True, "max_new_tokens": 126}  # 125 frames


def speak(server: Serving, words: str = TEXT, **fields: object) -> httpx.Response:
    body = {"input": words, "response_format": "pcm", "stream": False, **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE)


def pcm(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<i2").astype(int)


@pytest.mark.parametrize("name", [name for name in utterances() if name.startswith("cv")])
def test_http_speaks_the_official_samples(name: str, server: Serving) -> None:
    case = golden(name)
    asked = dict(case.info["request"])
    heard = pcm(speak(server, asked.pop("text"), **asked, **GREEDY, max_new_tokens=case.info["max_new_tokens"]))
    expected = np.round(np.clip(case["wav"], -1, 1) * 32767)
    assert len(heard) == len(expected)
    assert np.abs(heard - expected).max() <= 4  # 1e-4 of full scale


@pytest.mark.parametrize("words", [TEXT, "First. " * 3, "其实我真的有发现。"])
def test_case_40_streamed_pcm_whole_pcm_wav_and_grpc_are_the_same_sound(words: str, server: Serving) -> None:
    options = {"seed": 4, "max_new_tokens": 60, "ignore_eos": True}
    whole = pcm(speak(server, words, **options))
    streamed = pcm(speak(server, words, stream=True, **options))
    with wave.open(io.BytesIO(speak(server, words, response_format="wav", **options).content)) as file:
        from_wav = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(int)
    direct = ask(server.triton_grpc, "tts", words, **options).pcm
    for other in (streamed, from_wav, direct):
        assert len(other) == len(whole)
        assert np.abs(whole - other).max() <= 1


async def speak_together(server: Serving, asked: list[tuple[str, dict]]) -> list[np.ndarray]:
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        bodies = [{"input": words, "response_format": "pcm", **options} for words, options in asked]
        return [
            pcm(answer) for answer in await asyncio.gather(*(client.post("/v1/audio/speech", json=b) for b in bodies))
        ]


async def test_32_mixed_requests_at_once_sound_as_each_does_alone(server: Serving) -> None:
    asked = requests(32)
    together = await speak_together(server, asked)
    for (words, options), heard in zip(asked, together, strict=True):
        alone = pcm(speak(server, words, **options))
        assert len(alone) == len(heard)
        assert np.abs(alone - heard).max() <= 1


async def test_32_requests_at_once_take_less_than_six_times_the_steps_of_one(server: Serving) -> None:
    steps, streams_in_them = "qwen3_tts_step_rows_count", "qwen3_tts_step_rows_sum"
    length = 60  # of each utterance in steps, whatever is sampled
    asked = [(TEXT, {"seed": seed, "ignore_eos": True, "max_new_tokens": length}) for seed in range(32)]
    before = server.counted(steps, streams_in_them)
    await speak_together(server, asked)

    def made() -> dict[str, float]:
        return {name: now - before[name] for name, now in server.counted(steps, streams_in_them).items()}

    await asyncio.to_thread(wait_for, lambda: made()[streams_in_them] >= 32 * length)  # the page comes later
    assert made()[steps] < 6 * length


def test_sound_begins_long_before_the_utterance_is_made(server: Serving) -> None:
    body = {"input": TEXT, "response_format": "pcm", "seed": 1, **TEN_SECONDS}

    def part_before_first_sound() -> float:
        begin = time.monotonic()
        with httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body, timeout=PATIENCE) as response:
            arrivals = [time.monotonic() - begin for _ in response.iter_raw()]
        return arrivals[0] / arrivals[-1]

    # The best of some: whatever else the machine does may hold one back.
    assert any(part_before_first_sound() < 0.2 for _ in range(5))


@pytest.fixture
def idle(server: Serving) -> Callable[[], bool]:
    """Whether neither talker, codec nor proxy has a stream."""

    def check() -> bool:
        pages = [httpx.get(server.facts["triton_metrics"]).text, httpx.get(f"{server.url}/metrics").text]
        values = re.findall(r"^qwen3_tts_\w*(?:active|waiting)_streams\S* (\S+)$", "\n".join(pages), re.MULTILINE)
        assert len(values) >= 4, pages
        return not any(float(value) for value in values)

    return check


async def leave_early(server: Serving, number: int, way: str) -> None:
    """Start an utterance and go away after a random part of it."""
    dice = random.Random(number)
    options = {"seed": number, "ignore_eos": True, "max_new_tokens": 400, "response_format": "pcm"}
    chunks = dice.randint(0, 4)
    if way == "http":
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            body = {"input": TEXT, **options, "stream": dice.random() < 0.7}
            request = client.build_request("POST", f"{server.url}/v1/audio/speech", json=body)
            sending = asyncio.create_task(client.send(request, stream=True))
            if not body["stream"] or chunks == 0:
                await asyncio.sleep(dice.random())  # a random moment, whatever the server does then
                sending.cancel()
                await asyncio.wait({sending})
                return
            response = await sending
            pieces = response.aiter_raw()
            for _ in range(chunks):
                await anext(pieces)
            await response.aclose()
    else:
        await asyncio.to_thread(leave_triton, server.triton_grpc, number, chunks, way)


def leave_triton(address: str, number: int, chunks: int, way: str) -> None:
    with Session(address) as session:
        session.send("tts", TEXT, seed=number, ignore_eos=True, max_new_tokens=400)
        for _ in range(chunks):
            session.receive()
        if way == "drop":
            session.drop()


async def test_case_52_100_streams_of_which_half_are_cut_off_leave_nothing_behind(
    server: Serving, idle: Callable[[], bool]
) -> None:
    good = [(TEXT, {"seed": seed, "max_new_tokens": 25, "ignore_eos": True}) for seed in range(50)]
    ways = ["http", "http", "cancel", "drop", "http"]
    cut = [leave_early(server, number, ways[number % len(ways)]) for number in range(50)]
    heard, *_ = await asyncio.gather(speak_together(server, good), *cut)
    await asyncio.to_thread(wait_for, idle)
    again = await speak_together(server, good[:10])
    for first, second in zip(heard[:10], again, strict=True):
        assert len(first) == len(second)
        assert np.abs(first - second).max() <= 1


def memory(server: Serving) -> dict[str, int]:
    """Resident bytes of every process of the service, and of its shared memory."""
    processes = {"talker": server.stub("talker"), "codec": server.stub("codec")}
    processes |= {name: psutil.Process(server.pid(name)) for name in ("triton", "proxy", "serve")}
    used = {name: process.memory_info().rss for name, process in processes.items()}
    used["shared memory"] = sum(Path(region).stat().st_blocks * 512 for region in server.regions())
    return used


async def test_case_17_500_short_requests_in_five_rounds_do_not_grow_memory(server: Serving) -> None:
    rounds = []
    for _ in range(5):
        asked = [(TEXT[: 5 + n % 20], {"seed": n, "max_new_tokens": 4 + n % 5}) for n in range(100)]
        for batch in range(0, 100, 20):
            await speak_together(server, asked[batch : batch + 20])
        rounds.append(memory(server))
    growth = {name: (rounds[-1][name] - rounds[1][name]) / 2**20 for name in rounds[0]}
    assert all(mebibytes < 20 for mebibytes in growth.values()), growth
