"""Cloned voices through Triton itself, as a direct client sees them."""

from __future__ import annotations

import json

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

from tests.e2e.triton import Answer, Session, text
from tests.golden import Golden, clones, golden, voice_of
from tests.serving import Serving

KINDS = {np.dtype(np.float32): "FP32", np.dtype(np.int32): "INT32"}


def tensor(name: str, array: np.ndarray) -> grpc.InferInput:
    made = grpc.InferInput(name, list(array.shape), KINDS[array.dtype])
    made.set_data_from_numpy(array)
    return made


def speak(server: Serving, case: Golden, model: str, *, name: str | None = None, bring: bool = True) -> Answer:
    """Ask for a case's utterance in its voice, which comes along or is known by name."""
    request, voice = case.info["request"], voice_of(case)
    options = {
        "do_sample": False,
        "subtalker_dosample": False,
        "repetition_penalty": 1.05,
        "language": request["language"],
        "max_new_tokens": case.info["max_new_tokens"],
        "voice": name,
    }
    if "non_streaming_mode" in request:
        options["non_streaming_mode"] = request["non_streaming_mode"]
    parts = [text("TEXT", request["text"]), text("OPTIONS", json.dumps(options))]
    if bring:
        parts.append(tensor("X_VECTOR", voice.x_vector))
        if voice.text:
            parts += [tensor("REF_CODES", voice.codes), text("REF_TEXT", voice.text)]
    with Session(server.triton_grpc) as session:
        session.request(model, "1", None, *parts)
        return session.finish()["1"]


def make_voice(server: Serving, audio: np.ndarray, says: str) -> dict[str, np.ndarray]:
    with Session(server.triton_grpc) as session:
        session.request("voice", "1", None, tensor("AUDIO", audio), text("REF_TEXT", says))
        return session.finish()["1"].tensors[0]


def test_a_sample_becomes_the_official_voice(base_server: Serving) -> None:
    case = golden("clone_frontend")
    voice = make_voice(base_server, case["ref_audio"], "Okay.")
    np.testing.assert_allclose(voice["X_VECTOR"], case["x_vector"], rtol=0, atol=1e-4)
    np.testing.assert_array_equal(voice["REF_CODES"], case["ref_codes"])
    assert voice["REF_TEXT"].item() == b"Okay."


def test_without_its_text_a_sample_becomes_an_x_vector_alone(base_server: Serving) -> None:
    voice = make_voice(base_server, golden("clone_frontend")["ref_audio"], "")
    assert voice["REF_CODES"].shape == (0, 16)


@pytest.mark.parametrize("name", clones())
def test_codes_and_sound_equal_the_official_ones(name: str, base_server: Serving) -> None:
    case = golden(name)
    np.testing.assert_array_equal(speak(base_server, case, "talker").codes, case["codes"])
    sound = speak(base_server, case, "tts").pcm
    np.testing.assert_allclose(sound / 32767, case["wav"], rtol=0, atol=1e-4)


def test_a_voice_that_came_once_speaks_by_its_name(base_server: Serving) -> None:
    case = golden("bc_icl_ns")
    first = speak(base_server, case, "tts", name="Once")
    again = speak(base_server, case, "tts", name="once", bring=False)
    np.testing.assert_allclose(again.pcm, first.pcm, rtol=0, atol=1)  # a step: chunks leave by the clock


@pytest.mark.parametrize("audio", [np.zeros(24_000), np.full(24_000, np.nan), np.ones(23_000), np.ones(721_000)])
def test_what_is_no_sample_is_refused_and_the_next_one_is_not(audio: np.ndarray, base_server: Serving) -> None:
    with pytest.raises(InferenceServerException, match="AUDIO"):
        make_voice(base_server, audio.astype(np.float32), "")
    assert make_voice(base_server, golden("clone_frontend")["ref_audio"], "")["X_VECTOR"].shape == (48,)


def test_another_model_makes_no_voices(server: Serving) -> None:
    with pytest.raises(InferenceServerException, match="clone"):
        make_voice(server, np.ones(24_000, np.float32), "")


def memory(server: Serving) -> int:
    """Resident bytes of Triton and its models."""
    processes = [*server.stubs(), psutil.Process(server.pid("triton"))]
    return sum(process.memory_info().rss for process in processes)


def test_case_51_300_different_voices_in_a_row_do_not_grow_memory(base_server: Serving) -> None:
    """Each is taken from its sample and speaks by a name; the caches are full long before the half."""
    sample, used = golden("clone_frontend")["ref_audio"], []
    options = {"max_new_tokens": 2, "ignore_eos": True, "seed": 1}
    with Session(base_server.triton_grpc) as session:
        for number in range(300):
            audio = np.roll(sample, number * 50)[:24_000] * np.float32(1 - number / 1000)
            session.request("voice", "v", None, tensor("AUDIO", audio), text("REF_TEXT", "Yes."))
            voice = session.finish()["v"].tensors[0]
            parts = [tensor(name, voice[name]) for name in ("X_VECTOR", "REF_CODES")]
            asked = text("OPTIONS", json.dumps({**options, "voice": f"voice {number}"}))
            session.request("tts", "s", None, *parts, text("REF_TEXT", "Yes."), text("TEXT", "Hi."), asked)
            assert len(session.finish()["s"].pcm) == 1920
            if number in (150, 299):
                used.append(memory(base_server))
    assert used[1] - used[0] < 20 << 20
