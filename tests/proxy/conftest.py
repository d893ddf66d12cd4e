"""A real Triton server with scripted models, and the proxy before it, for tests of the HTTP surface."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.app import create_app
from proxy.settings import Settings
from proxy.stream import Limits
from proxy.triton_client import TritonClient
from proxy.web import configuration
from tests.serving import LIMIT_S, Serving, in_this_process, serving, stand_in_models

SCRIPTED = Path(__file__).parent / "scripted"
LIMITS = Limits(first_chunk_s=LIMIT_S, chunk_s=LIMIT_S, heartbeat_s=LIMIT_S)


@pytest.fixture(scope="session")
def scripted_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository of the scripted talker and codec."""
    repository = stand_in_models(tmp_path_factory.mktemp("scripted"))
    for name in ("talker", "codec", "voice"):
        shutil.copy(SCRIPTED / f"{name}.py", repository / name / "1" / "model.py")
    return repository


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory, scripted_models: Path) -> Iterator[Serving]:
    """A whole `serve` over it. The engine may be silent for 4 s midway.

    Its heartbeats are patient: a script makes minutes of sound at once, which they wait behind.
    """
    folder = tmp_path_factory.mktemp("serve")
    patience = {"QWEN3_TTS_CHUNK_TIMEOUT_S": "4", "QWEN3_TTS_HEARTBEAT_TIMEOUT_S": str(LIMIT_S)}
    with serving(folder, "--model-repository", str(scripted_models), **patience) as server:
        yield server


@pytest.fixture
def http(scripted: Serving) -> Iterator[httpx.Client]:
    """A client of its proxy."""
    with httpx.Client(base_url=scripted.url, timeout=LIMIT_S) as client:
        yield client


@pytest.fixture
def speak(http: httpx.Client) -> Callable[..., httpx.Response]:
    """POST /v1/audio/speech with a script and other fields."""

    def post(script: str = "frames=10", **fields: Any) -> httpx.Response:
        return http.post("/v1/audio/speech", json={"input": script, **fields})

    return post


@pytest.fixture
async def triton(scripted: Serving) -> AsyncIterator[TritonClient]:
    """A direct client of its Triton."""
    client = TritonClient(scripted.triton_grpc, LIMITS)
    yield client
    await client.close()


@contextmanager
def proxy(settings: Settings) -> Iterator[str]:
    """The URL of a proxy of its own in this process."""
    with in_this_process(configuration(create_app(settings), settings)) as url:
        yield url
