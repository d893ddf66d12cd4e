"""Laws of the shared-memory prefix: the living keep theirs, the dead lose theirs, and too little room is said early."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from engine_lib.errors import ConfigurationError
from proxy import shared_memory
from proxy.triton_server import count_python_models
from tests.serving import LIMIT_S, starting


def test_leaving_removes_the_regions_of_that_prefix_alone(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with shared_memory.Regions(tmp_path) as regions:
        (tmp_path / f"{regions.prefix}region").touch()
    assert os.listdir(tmp_path) == ["other"]


def test_regions_of_the_dead_are_removed_and_those_of_the_living_stay(tmp_path: Path) -> None:
    (tmp_path / "qwen3-tts-dead-lock").touch()
    (tmp_path / "qwen3-tts-dead-region").touch()
    with shared_memory.Regions(tmp_path) as living:
        (tmp_path / f"{living.prefix}region").touch()
        assert shared_memory.remove_abandoned(tmp_path) == ["qwen3-tts-dead-"]
        assert sorted(os.listdir(tmp_path)) == [f"{living.prefix}lock", f"{living.prefix}region"]


def test_too_little_room_is_said_with_the_need_and_the_remedy(tmp_path: Path) -> None:
    state = os.statvfs(tmp_path)
    too_many = state.f_bavail * state.f_frsize // shared_memory.BYTES_PER_MODEL + 2
    with pytest.raises(ConfigurationError, match=rf"{too_many} models need {too_many * 16} MiB.*--shm-size="):
        shared_memory.check_room(too_many, tmp_path)
    shared_memory.check_room(1, tmp_path)


def test_missing_shared_memory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        shared_memory.check_room(1, tmp_path / "nowhere")


def with_room_for(mebibytes: int) -> tuple[str, ...]:
    """Starts a command with so much shared memory, as `docker run --shm-size` does."""
    return "unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm && exec "$@"', "sh"


def test_case_19_too_little_shared_memory_is_said_before_triton_starts(tmp_path: Path, scripted_models: Path) -> None:
    models = count_python_models(scripted_models)
    need = 16 * models
    with starting(tmp_path, "--model-repository", str(scripted_models), under=with_room_for(need - 1)) as refused:
        assert refused.wait() == 2
    assert refused.output.splitlines()[-1] == (
        f"qwen3-tts-triton: /dev/shm has {need - 1} MiB free, and {models} models need {need} MiB. "
        f"In a container start it with --shm-size={2 * need}m."
    )
    assert "Starting Triton" not in refused.output


def test_case_19_the_room_that_is_asked_for_is_enough(tmp_path: Path, scripted_models: Path) -> None:
    room = with_room_for(16 * count_python_models(scripted_models))
    with starting(tmp_path, "--model-repository", str(scripted_models), under=room) as server:
        server.wait_ready()
        for _ in range(3):
            body = {"input": "frames=500 chunk=100", "response_format": "pcm"}
            assert (
                len(httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=LIMIT_S).content) == 500 * 1920 * 2
            )
        assert server.stop() == 0
