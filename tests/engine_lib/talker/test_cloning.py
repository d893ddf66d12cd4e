"""The talker in cloned voices, against the official implementation in float32."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engine_lib.errors import InvalidRequest
from engine_lib.profile import load_profile
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.model import Talker
from engine_lib.wire import StreamOptions, Voice
from tests.engine_lib.talker.conftest import Heard, Listener, Studio, prompts_of
from tests.golden import BASE, CHECKPOINT, Golden, clones, golden, voice_of

CPU = torch.device("cpu")
GREEDY = {"do_sample": False, "subtalker_dosample": False, "repetition_penalty": 1.05}


@pytest.fixture(scope="module")
def base():
    made = Studio(load_profile("ttfa"), BASE)
    yield made
    made.engine.close()


def options(case: Golden) -> dict[str, object]:
    request = case.info["request"]
    return {
        **GREEDY,
        "language": request["language"],
        "non_streaming_mode": request.get("non_streaming_mode", False),
        "max_new_tokens": case.info["max_new_tokens"],
    }


def speak(studio: Studio, case: Golden, **more: object) -> Heard:
    return studio.speak(case.info["request"]["text"], clone=voice_of(case), **(options(case) | more))


@pytest.mark.parametrize("name", clones())
@torch.inference_mode()
def test_prompt_and_trailing_text_equal_the_official_ones(name: str) -> None:
    case = golden(name)
    config = TalkerConfig.from_directory(BASE)
    talker = Talker.from_directory(BASE, config, torch.float32, CPU)
    builder = prompts_of(BASE)
    request, voice = case.info["request"], voice_of(case)
    voicing = builder.voicing(voice=None, language=request["language"], instructions=None, clone=voice)
    prompt = builder.build(request["text"], voicing, streaming=not request.get("non_streaming_mode", False))
    table = talker.voice_embedding(torch.from_numpy(voice.x_vector), torch.from_numpy(voice.codes.astype(np.int64)))
    side = torch.tensor(prompt.side)
    embedded = talker.prompt_embedding(
        torch.tensor(prompt.text), torch.tensor(prompt.codec), table[side.clamp(min=0)] * (side >= 0)[:, None]
    )
    np.testing.assert_allclose(embedded.numpy(), case["prompt_embeds"], rtol=0, atol=1e-5)
    trailing = talker.text_side(torch.tensor(prompt.trailing or [config.ids.tts_pad]))
    np.testing.assert_allclose(trailing.numpy(), case["trailing_text_hidden"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("schedule", [None, [1], [3, 1, 7], [400]])
@pytest.mark.parametrize("name", clones())
def test_codes_equal_the_official_ones_however_they_are_cut(name: str, schedule: list[int] | None, base) -> None:
    case = golden(name)
    heard = speak(base, case, stream_chunk_schedule=schedule)
    np.testing.assert_array_equal(heard.codes, case["codes"])


@pytest.mark.parametrize("name", clones())
def test_the_first_chunk_alone_brings_the_samples_codes_to_the_codec(name: str, base) -> None:
    case = golden(name)
    first, *others = speak(base, case, stream_chunk_schedule=[1]).chunks
    np.testing.assert_array_equal(first.primer, voice_of(case).codes)
    assert all(len(chunk.primer) == 0 for chunk in others)


def live(studio: Studio, text: str, voice: Voice, pieces: list[str], end_at_once: bool = True, **asked: object):
    """Speak a text that comes in pieces: its listener, and a function that ends it."""
    listener, stream_id = Listener(), f"live-{random.random()}"
    studio.engine.start_live("", StreamOptions.model_validate(asked), stream_id, listener.deliver, voice)
    taken: list[object] = []
    for number, piece in enumerate(pieces):
        studio.engine.append(stream_id, number, piece, taken.append)

    def end() -> None:
        studio.engine.end(stream_id, len(pieces), taken.append)

    if end_at_once:
        end()
    return listener, end


@pytest.mark.parametrize("name", [name for name in clones() if "stream" in name])
def test_live_text_makes_the_codes_of_the_streaming_layout(name: str, base) -> None:
    case = golden(name)
    text = case.info["request"]["text"]
    asked = options(case) | {"x_vector_only_mode": False, "mask_eos_until_text_end": False}
    for size in (1, 5, 1000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        listener, _ = live(base, text, voice_of(case), pieces, **asked)
        np.testing.assert_array_equal(listener.all().codes, case["codes"])


def test_live_text_uses_the_x_vector_alone_by_default_so_that_it_begins_with_the_first_words(base) -> None:
    case = golden("bc_icl_stream_long_text")
    listener, end = live(
        base, "", voice_of(case), ["Good one. ", "Okay "], end_at_once=False, ignore_eos=True, max_new_tokens=12
    )
    first = listener.next()  # comes before the text has ended
    assert len(first.codes) > 0
    assert len(first.primer) == 0
    end()


def test_a_voice_is_remembered_by_the_name_it_came_with(base) -> None:
    case = golden("bc_icl_ns")
    text, asked = case.info["request"]["text"], options(case)
    base.speak(text, clone=voice_of(case), voice="My Aunt", **asked)
    heard = base.speak(text, voice="my-aunt", **asked)
    np.testing.assert_array_equal(heard.codes, case["codes"])


def test_only_so_many_voices_are_remembered(open_studio: Callable[..., Studio]) -> None:
    small = open_studio(dataclasses.replace(load_profile("ttfa"), voice_cache=2), BASE)
    voice = voice_of(golden("bc_xvec_stream"))
    for name in ("a", "b", "c"):
        small.speak("Hi", clone=voice, voice=name, max_new_tokens=3)
    with pytest.raises(InvalidRequest) as caught:
        small.start("Hi", voice="a", max_new_tokens=3)
    assert caught.value.param == "voice"
    small.speak("Hi", voice="c", max_new_tokens=3)


def test_sixteen_voices_at_once_speak_as_each_alone(base) -> None:
    dice = np.random.default_rng(5)
    original = voice_of(golden("bc_icl_ns"))
    voices = [
        dataclasses.replace(
            original,
            x_vector=original.x_vector + dice.normal(0, 0.3, original.x_vector.shape).astype(np.float32),
            codes=dice.integers(0, 64, (int(dice.integers(13, 60)), 16), np.int32),
        )
        for _ in range(16)
    ]
    asked = {"max_new_tokens": 15, "ignore_eos": True}
    alone = [base.speak(f"Text {seed}.", clone=voice, seed=seed, **asked) for seed, voice in enumerate(voices)]
    listeners = [base.start(f"Text {seed}.", clone=voice, seed=seed, **asked) for seed, voice in enumerate(voices)]
    for before, listener in zip(alone, listeners, strict=True):
        np.testing.assert_array_equal(listener.all().codes, before.codes)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"x_vector": np.zeros(47, np.float32)}, "X_VECTOR"),
        ({"x_vector": np.full(48, np.nan, np.float32)}, "X_VECTOR"),
        ({"codes": np.full((3, 16), 64, np.int32)}, "REF_CODES"),
        ({"codes": np.full((3, 16), -1, np.int32)}, "REF_CODES"),
        ({"codes": np.zeros((3, 15), np.int32)}, "REF_CODES"),
        ({"codes": np.zeros((5000, 16), np.int32)}, "REF_CODES"),
        ({"codes": np.zeros((0, 16), np.int32)}, "REF_TEXT"),
        ({"text": ""}, "REF_TEXT"),
        ({"text": " "}, "REF_TEXT"),
        ({"text": "a\x00"}, "REF_TEXT"),
    ],
)
def test_a_voice_that_does_not_fit_is_refused_by_its_tensor(change: dict, param: str, base) -> None:
    voice = dataclasses.replace(voice_of(golden("bc_icl_ns")), **change)
    with pytest.raises(InvalidRequest) as caught:
        base.start("Hi", clone=voice)
    assert caught.value.param == param


@pytest.mark.parametrize("asked", [{}, {"voice": "nobody"}])
def test_a_base_model_speaks_in_no_voice_that_it_does_not_have(asked: dict, base) -> None:
    with pytest.raises(InvalidRequest) as caught:
        base.start("Hi", **asked)
    assert caught.value.param == "voice"


def test_other_models_refuse_a_cloned_voice(open_studio: Callable[..., Studio]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        open_studio(None, CHECKPOINT).start("Hi", clone=voice_of(golden("bc_icl_ns")))
    assert caught.value.param == "X_VECTOR"
