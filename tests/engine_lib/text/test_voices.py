"""The names that a voice may be asked for by."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_lib.errors import ConfigurationError, InvalidRequest
from engine_lib.files import TINY, VOICES
from engine_lib.profile import load_profile
from engine_lib.talker.config import TalkerConfig
from engine_lib.text.prompt import Voices
from tests.golden import CHECKPOINT, checkpoint

CONFIG = TalkerConfig.from_directory(CHECKPOINT)
OPENAI = load_profile("ttfa").voice_aliases


def test_an_alias_of_ones_own_speaks_beside_those_of_the_package() -> None:
    speaker = list(CONFIG.speaker_ids)[-1]
    voices = Voices(CONFIG, {**OPENAI, "Our Host": speaker})
    assert voices.speaker("our-host") == speaker
    assert {voices.speaker(name) for name in OPENAI} <= {*CONFIG.speaker_ids}


def test_who_asks_for_nobody_hears_the_first_speaker() -> None:
    assert Voices(CONFIG, OPENAI).speaker(None) == next(iter(CONFIG.speaker_ids))


def languages(checkpoint: Path) -> dict[str, str]:
    voices = Voices(TalkerConfig.from_directory(checkpoint), OPENAI)
    return {voice["id"]: voice["language"] for voice in voices.described()}


def test_a_speaker_has_its_dialect_or_what_the_checkpoint_speaks() -> None:
    shown = languages(CHECKPOINT)
    assert {name: shown[name] for name in CONFIG.speaker_dialects} == CONFIG.speaker_dialects
    assert {shown[name] for name in shown if name not in CONFIG.speaker_dialects} == {"multilingual"}
    assert languages(VOICES / TINY) == {"nora": "english", "hugo": "english"}


@pytest.mark.parametrize("name", [*OPENAI, None])
def test_where_there_are_no_speakers_openais_names_mean_nobody_and_others_are_refused(
    name: str | None, tmp_path: Path
) -> None:
    voices = Voices(TalkerConfig.from_directory(checkpoint("vd", tmp_path)), OPENAI)
    assert voices.speaker(name) is None
    with pytest.raises(InvalidRequest):
        voices.speaker("ryan")


def test_an_alias_of_ones_own_for_nobody_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="'host' stands for 'rayn'"):
        Voices(CONFIG, {**OPENAI, "host": "rayn"})
    with pytest.raises(ConfigurationError, match="'nova' stands for 'rayn'"):
        Voices(CONFIG, {**OPENAI, "nova": "rayn"})
