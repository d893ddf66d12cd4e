"""Profiles: packaged ones load, files extend them, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_lib.errors import ConfigurationError
from engine_lib.profile import EngineSettings, load_profile, packaged_profiles


def test_the_three_packaged_profiles_load() -> None:
    assert packaged_profiles() == ["balanced", "throughput", "ttfa"]
    assert load_profile("ttfa").chunk_schedule == (1, 1, 2, 4, 8, 12)
    assert load_profile("balanced").scheduling == "round_robin"
    assert load_profile("throughput").chunk_schedule == (25,)
    assert load_profile("throughput").rows_per_step == load_profile("balanced").rows_per_step == 64


def test_a_file_overrides_what_it_extends_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: throughput\nmax_waiting: 3\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nmax_active: 5\ncodec_idle_timeout_s: 2\n")
    mine, packaged = load_profile(tmp_path / "mine.yaml").resolved(), load_profile("throughput").resolved()
    changed = {key: value for key, value in mine.items() if value != packaged[key]}
    assert changed == {"max_waiting": 3, "max_active": 5, "codec_idle_timeout_s": 2.0}


def test_names_are_added_to_those_of_the_table_that_a_file_extends(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "extends: balanced\nvoice_aliases: {host: ryan, nova: serena, echo: null}\nmodel_aliases: [ours, tts-1]\n"
    )
    mine, packaged = load_profile(tmp_path / "mine.yaml"), load_profile("balanced")
    expected = {**packaged.voice_aliases, "host": "ryan", "nova": "serena"}
    del expected["echo"]
    assert mine.voice_aliases == expected
    assert mine.model_aliases == (*packaged.model_aliases, "ours")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("max_activ: 3", "Did you mean 'max_active'"),
        ("max_active: many", "max_active"),
        ("max_active: 0", "max_active"),
        ("max_active: true", "max_active"),
        ("chunk_schedule: [1, 0]", "chunk_schedule"),
        ("chunk_schedule: []", "chunk_schedule"),
        ("chunk_schedule: 4", "chunk_schedule"),
        ("scheduling: fifo", "deadline or round_robin"),
        ("voice_aliases: [a]", "voice_aliases"),
        ("voice_aliases: {a: 1}", "voice_aliases"),
        ("model_aliases: a", "model_aliases"),
        ("model_aliases: [1]", "a list of names"),
        ("codec_idle_timeout_s: -1", "codec_idle_timeout_s"),
        ("extends: nothing", "nothing"),
        ("extends: mine.yaml", "extends itself"),
        ("- a list", "mapping"),
        ("a: [", "YAML"),
    ],
)
def test_every_mistake_is_named(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=named.replace("[", r"\[")):
        load_profile(tmp_path / "mine.yaml")


def test_the_digest_follows_the_values_alone(tmp_path: Path) -> None:
    (tmp_path / "same.yaml").write_text("extends: ttfa\n")
    (tmp_path / "other.yaml").write_text("extends: ttfa\nmax_active: 7\n")
    assert load_profile(tmp_path / "same.yaml").digest() == load_profile("ttfa").digest()
    assert load_profile(tmp_path / "other.yaml").digest() != load_profile("ttfa").digest()


def test_the_environment_chooses_model_profile_and_device() -> None:
    settings = EngineSettings.from_environment(
        {
            "QWEN3_TTS_MODEL": "m",
            "QWEN3_TTS_PROFILE": "balanced",
            "QWEN3_TTS_DEVICE": "cpu",
            "QWEN3_TTS_LOCAL_FILES_ONLY": "Yes",
        }
    )
    assert (settings.model, settings.device, settings.local_files_only) == ("m", "cpu", True)
    assert settings.profile == load_profile("balanced")
    with pytest.raises(ConfigurationError, match="QWEN3_TTS_LOCAL_FILES_ONLY"):
        EngineSettings.from_environment({"QWEN3_TTS_LOCAL_FILES_ONLY": "maybe"})
