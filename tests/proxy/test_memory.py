"""Memory of the path through Triton stays bounded, and nothing stays behind. Real servers, scripted models."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import httpx
import psutil

from engine_lib.wire import SAMPLES_PER_FRAME
from proxy.triton_client import TritonClient
from tests.proxy.conftest import LIMITS
from tests.proxy.live_client import heard
from tests.serving import LIMIT_S, Serving, serving, wait_for

MEBIBYTE = 2**20


async def speak(url: str, *scripts: str) -> list[bytes]:
    """The sound of all scripts at once."""
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT_S) as client:
        posts = [client.post("/v1/audio/speech", json={"input": text, "response_format": "pcm"}) for text in scripts]
        answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {200}
    return [answer.content for answer in answers]


def resident(server: Serving) -> float:
    """MiB of all processes of the service."""
    pids = [server.pid(name) for name in ("serve", "proxy", "triton")] + [stub.pid for stub in server.stubs()]
    return sum(psutil.Process(pid).memory_info().rss for pid in pids) / MEBIBYTE


def shared(server: Serving) -> float:
    """MiB that its regions take in /dev/shm."""
    return sum(Path(region).stat().st_blocks * 512 for region in server.regions()) / MEBIBYTE


async def test_case_16_a_talker_that_outruns_the_codec_by_500_chunks_takes_little_memory(
    tmp_path: Path, scripted_models: Path
) -> None:
    # A fast talker is done at once; then all of its 500 chunks wait in the ensemble, for seconds.
    with serving(tmp_path, "--model-repository", str(scripted_models), SCRIPTED_CODEC_PAUSE_S="0.01") as server:
        await speak(server.url, "frames=20", "frames=20")
        before, most = resident(server), 0.0
        speaking = asyncio.create_task(speak(server.url, *["frames=500"] * 2))
        while not speaking.done():
            most = max(most, resident(server))
            await asyncio.wait({speaking}, timeout=0.1)
        for sound in speaking.result():
            assert heard(sound) == list(range(500))
        assert most - before < 40


async def test_case_18_shared_memory_is_bounded_while_it_runs_and_gone_after_it(
    tmp_path: Path, scripted_models: Path
) -> None:
    dice = random.Random(18)
    with serving(tmp_path, "--model-repository", str(scripted_models)) as server:
        used = []
        for _ in range(4):
            for _ in range(4):
                sizes = [(dice.randint(1, 400), dice.choice([1, 3, 12, 400])) for _ in range(7)] + [(900, 900)]
                sounds = await speak(server.url, *(f"frames={frames} chunk={chunk}" for frames, chunk in sizes))
                assert [len(sound) // SAMPLES_PER_FRAME // 2 for sound in sounds] == [frames for frames, _ in sizes]
            used.append(shared(server))
        assert used[1] > 4  # the largest answers did not fit in what there was at the start
        assert used[-1] <= used[1] + 1
        assert server.stop() == 0
        wait_for(lambda: not server.regions())


def test_case_9_clients_that_read_a_little_and_go_leave_neither_streams_nor_memory(scripted: Serving) -> None:
    def read_a_little() -> None:
        body = {"input": "frames=1500 chunk=10", "response_format": "pcm"}  # 5.8 MB
        with httpx.stream("POST", f"{scripted.url}/v1/audio/speech", json=body, timeout=LIMIT_S) as response:
            assert len(next(response.iter_raw(1024))) == 1024
            wait_for(lambda: asyncio.run(speaking()) == 0)  # it is all made, and nobody takes it

    async def speaking() -> int:
        client = TritonClient(scripted.triton_grpc, LIMITS)
        try:
            return (await client.describe()).active
        finally:
            await client.close()

    def running() -> float:
        lines = httpx.get(f"{scripted.url}/metrics").text.splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith("qwen3_tts_proxy_active_streams ")]
        return float(value)

    for _ in range(5):
        read_a_little()
    wait_for(lambda: running() == 0)
    before = resident(scripted)
    for _ in range(20):
        read_a_little()
    wait_for(lambda: running() == 0)
    assert resident(scripted) - before < 30
