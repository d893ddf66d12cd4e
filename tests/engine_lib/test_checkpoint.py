"""Checkpoints: one file or shards load alike; whatever doesn't fit is named before anything is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_lib import noise
from engine_lib.checkpoint import read_tensors
from engine_lib.errors import ConfigurationError
from engine_lib.files import locate
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.model import Talker
from tests.golden import CHECKPOINT

CPU = torch.device("cpu")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")


def load(directory: Path) -> Talker:
    return Talker.from_directory(directory, TalkerConfig.from_directory(directory), torch.float32, CPU)


def shard(directory: Path) -> None:
    """Cut the checkpoint's one file into two and an index."""
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[:30], "model-2.safetensors": names[30:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, directory / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "model.safetensors").unlink()


def test_shards_load_as_the_one_file_does(copy: Path) -> None:
    whole = read_tensors(copy)
    shard(copy)
    parts = read_tensors(copy)
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    load(copy)


def test_a_missing_shard_is_named(copy: Path) -> None:
    shard(copy)
    (copy / "model-2.safetensors").unlink()
    with pytest.raises(ConfigurationError, match="model-2"):
        load(copy)


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_a_missing_tensor_is_named(copy: Path) -> None:
    change_tensors(copy, lambda tensors: tensors.pop("talker.codec_head.weight"))
    with pytest.raises(ConfigurationError, match=r"lacks.*talker\.codec_head\.weight"):
        load(copy)


def test_an_unknown_tensor_is_named(copy: Path) -> None:
    change_tensors(copy, lambda tensors: tensors.update({"talker.novelty": torch.zeros(1)}))
    with pytest.raises(ConfigurationError, match=r"doesn't know: talker\.novelty"):
        load(copy)


def test_a_tensor_of_another_shape_is_named(copy: Path) -> None:
    change_tensors(copy, lambda tensors: tensors.update({"talker.model.norm.weight": torch.zeros(3)}))
    with pytest.raises(ConfigurationError, match=r"talker\.model\.norm\.weight has shape \[3\]"):
        load(copy)


def test_the_speaker_encoder_is_known_and_skipped(copy: Path) -> None:
    change_tensors(copy, lambda tensors: tensors.update({"speaker_encoder.fc.weight": torch.zeros(3)}))
    load(copy)


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"tts_model_type": "singer"}, "singer"),
        ({"talker_config": {}}, "is missing"),
        ({"talker_config": None}, "talker_config"),
        ({"tts_pad_token_id": "7"}, "tts_pad_token_id"),
    ],
)
def test_a_config_of_another_model_is_named(changes: dict, named: str, copy: Path) -> None:
    edit_config(copy, **changes)
    with pytest.raises(ConfigurationError, match=named):
        load(copy)


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/nowhere/at/all", "a/b/c"])
def test_what_is_neither_directory_nor_id_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="neither"):
        locate(name, cache_dir=None, local_files_only=True)


def test_an_id_that_is_not_cached_is_refused_when_only_local_files_may_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="local cache"):
        locate("someone/something", cache_dir=str(tmp_path), local_files_only=True)


def test_the_noise_checkpoint_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first", "second"):
        noise.write(tmp_path / name)
    for path in (tmp_path / "first").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "second" / path.relative_to(tmp_path / "first")).read_bytes()
