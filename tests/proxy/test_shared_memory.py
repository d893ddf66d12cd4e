"""Laws of the shared-memory prefix: the living keep theirs, the dead lose theirs, and too little room is said early."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine_lib.errors import ConfigurationError
from proxy import shared_memory


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
