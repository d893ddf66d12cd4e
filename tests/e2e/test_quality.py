"""The embedded voice through the whole server, judged by a recogniser: a bug that garbles speech fails here."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from engine_lib.training.evaluate import SHORT, Server, judge
from engine_lib.training.listening import Recogniser
from engine_lib.training.texts import evaluation_texts
from tests.serving import LIMIT_S, Serving, serving

WORD_ERRORS = 0.20  # about a third of it is usual; the rest is room for another processor's last bits


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """`serve` as it starts where there is no GPU and no model was chosen."""
    with serving(tmp_path_factory.mktemp("tiny"), QWEN3_TTS_DEVICE="cpu", QWEN3_TTS_MODEL="") as server:
        yield server


def test_without_a_choice_and_without_a_gpu_the_voice_in_the_package_is_served(spoken: Serving) -> None:
    (model,) = httpx.get(f"{spoken.url}/v1/models").json()["data"]
    assert model["id"] == "tiny"
    voices = httpx.get(f"{spoken.url}/v1/audio/voices").json()
    assert {"nora", "hugo"} <= {voice["id"] for voice in voices["voices"]}


@pytest.mark.parametrize("whole_text", [True, False])
def test_a_recogniser_understands_the_voice_and_it_ends_by_itself(spoken: Serving, whole_text: bool) -> None:
    half = evaluation_texts()[int(whole_text) : SHORT : 2]
    with httpx.Client(base_url=spoken.url, timeout=LIMIT_S) as client:
        score = judge(Server(client, whole_text=whole_text), half, Recogniser())
    assert score.ended == 1.0
    assert score.word_error_rate <= WORD_ERRORS, score.all
    assert 120 < score.words_a_minute < 260


def test_clients_of_openai_are_spoken_to_under_every_name_of_a_voice(spoken: Serving) -> None:
    for voice in ("alloy", "nova", "onyx"):
        answer = httpx.post(
            f"{spoken.url}/v1/audio/speech", json={"model": "tts-1", "input": "Hi!", "voice": voice}, timeout=LIMIT_S
        )
        assert answer.status_code == 200
