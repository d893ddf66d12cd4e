"""The talker's loop: the official codes, the law of reproducibility, joining, leaving, limits and failures."""

from __future__ import annotations

import dataclasses
import logging
import random
from pathlib import Path

import numpy as np
import pytest

from engine_lib.errors import InvalidRequest, Overloaded
from engine_lib.profile import load_profile
from engine_lib.talker.runner import Runner
from tests.engine_lib.talker.conftest import Studio
from tests.golden import checkpoint, golden, utterances

GREEDY = {"do_sample": False, "subtalker_dosample": False}
TEXTS = [
    "Hello there, this is a tiny test of speech.",
    "Hi",
    "其实我真的有发现，我是一个特别善于观察的人。",
    "No way, that is impossible! " * 3,
    "It's in the top drawer... wait, it's empty?",
]


def request(case) -> dict:
    asked = dict(case.info["request"])
    asked.pop("text")
    asked["voice"] = asked.pop("speaker", None)
    return asked | GREEDY | {"max_new_tokens": case.info["max_new_tokens"]}


@pytest.mark.parametrize("name", utterances())
def test_greedy_codes_equal_the_official_ones(name: str, open_studio, tmp_path: Path) -> None:
    case = golden(name)
    heard = open_studio(directory=checkpoint(name, tmp_path)).speak(case.info["request"]["text"], **request(case))
    np.testing.assert_array_equal(heard.codes, case["codes"])
    assert heard.reason == {"eos": "stop", "max_new_tokens": "length"}[case.info["stopped_by"]]
    assert heard.chunks[-1].frames == len(case["codes"])


@pytest.mark.parametrize(("layout", "whole_text"), [("ns1", True), ("ns0", False)])
def test_greedy_codes_of_two_at_once_equal_the_official_batch(layout: str, whole_text: bool, studio: Studio) -> None:
    case = golden("batch2")
    limits = {"max_new_tokens": case.info["max_new_tokens"], "non_streaming_mode": whole_text}
    listeners = [
        studio.start(row["text"], voice=row["speaker"], language=row["language"], **GREEDY, **limits)
        for row in case.info["rows"]
    ]
    for row, listener in enumerate(listeners):
        np.testing.assert_array_equal(listener.all().codes, case[f"{layout}_codes{row}"])


def mixed_requests(count: int) -> list[tuple[str, dict]]:
    """Different texts, voices, seeds, layouts and rules, always the same ones."""
    dice = random.Random(7)
    voices = ["serena", "vivian", "ryan", "eric"]
    made = []
    for number in range(count):
        options = {
            "voice": dice.choice(voices),
            "seed": number * 7919,
            "non_streaming_mode": dice.random() < 0.5,
            "max_new_tokens": dice.choice([5, 40, 80]),
            "temperature": dice.choice([0.0, 0.7, 1.3]),
            "top_p": dice.choice([1.0, 0.8]),
            "top_k": dice.choice([0, 5, 50]),
            "ignore_eos": dice.random() < 0.5,
        }
        made.append((dice.choice(TEXTS), options))
    return made


def test_codes_of_a_seed_are_the_same_alone_and_beside_any_neighbours(studio: Studio) -> None:
    requests = mixed_requests(24)
    listeners = [studio.start(text, **options) for text, options in requests]
    together = [listener.all() for listener in listeners]
    for (text, options), heard in list(zip(requests, together, strict=True))[::2]:
        np.testing.assert_array_equal(studio.speak(text, **options).codes, heard.codes)


def test_codes_are_the_same_when_neighbours_are_cancelled(studio: Studio) -> None:
    text, options = TEXTS[0], {"seed": 5, "ignore_eos": True, "max_new_tokens": 120}
    alone = studio.speak(text, **options)
    neighbours = [studio.start(TEXTS[3], f"neighbour-{n}", ignore_eos=True, seed=n) for n in range(12)]
    listener = studio.start(text, **options)
    for number, neighbour in enumerate(neighbours):
        neighbour.next()
        studio.cancel(f"neighbour-{number}")
        assert neighbour.all().reason == "cancelled"
    np.testing.assert_array_equal(listener.all().codes, alone.codes)


def test_the_seed_decides_and_without_one_every_utterance_differs(studio: Studio) -> None:
    text, options = TEXTS[0], {"ignore_eos": True, "max_new_tokens": 30}
    first, again, other = (studio.speak(text, seed=seed, **options).codes for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (studio.speak(text, **options).codes != studio.speak(text, **options).codes).any()


def test_chunks_follow_the_plan_and_join_to_the_whole(studio: Studio) -> None:
    options = {"seed": 3, "ignore_eos": True, "max_new_tokens": 31}
    whole = studio.speak(TEXTS[0], stream_chunk_schedule=[1000], **options)
    parts = studio.speak(TEXTS[0], stream_chunk_schedule=[1, 2, 7], **options)
    assert [len(chunk.codes) for chunk in parts.chunks] == [1, 2, 7, 7, 7, 6]
    assert [chunk.index for chunk in parts.chunks] == list(range(6))
    np.testing.assert_array_equal(parts.codes, whole.codes)


def test_case_37_speech_without_an_end_stops_at_its_budget_and_says_so(open_studio, caplog) -> None:
    profile = dataclasses.replace(load_profile("ttfa"), budget_base_frames=20, budget_frames_per_token=1)
    studio = open_studio(profile)
    with caplog.at_level(logging.WARNING):
        heard = studio.start(TEXTS[0], "endless", ignore_eos=True).all()
    assert heard.reason == "length"
    assert len(heard.codes) == 20 + heard.chunks[0].text_tokens - 1
    assert studio.description().active == 0
    assert "endless" in caplog.text


def test_a_full_slot_ends_the_stream_with_length(open_studio) -> None:
    studio = open_studio(dataclasses.replace(load_profile("ttfa"), slot_positions=48))
    heard = studio.speak("Hi", ignore_eos=True, max_new_tokens=5000, non_streaming_mode=False)
    prompt = 9 if len(heard.codes) == 39 else 10
    assert heard.reason == "length"
    assert len(heard.codes) == 48 - prompt
    with pytest.raises(InvalidRequest, match="tokens together") as caught:
        studio.start("word " * 60)
    assert caught.value.param == "input"


def test_waiting_streams_start_in_order_and_one_too_many_is_refused(open_studio) -> None:
    studio = open_studio(dataclasses.replace(load_profile("ttfa"), max_active=1, max_waiting=2))
    listeners = [studio.start(TEXTS[0], f"s{n}", seed=n, ignore_eos=True, max_new_tokens=40) for n in range(4)]
    with pytest.raises(Overloaded):
        listeners[3].next()
    studio.cancel("s1")
    assert listeners[1].all().reason == "cancelled"
    assert listeners[0].all().reason == listeners[2].all().reason == "length"
    described = studio.description()
    assert (described.active, described.waiting) == (0, 0)


def test_a_cancel_that_overtakes_its_start_still_holds(studio: Studio) -> None:
    studio.cancel("early")
    assert studio.start(TEXTS[0], "early").all().reason == "cancelled"
    assert studio.start(TEXTS[0], "early", max_new_tokens=3).all().reason != "cancelled"


def test_an_id_in_use_is_refused_and_the_first_goes_on(studio: Studio) -> None:
    first = studio.start(TEXTS[0], "twice", ignore_eos=True, max_new_tokens=60)
    with pytest.raises(InvalidRequest, match="STREAM_ID"):
        studio.start(TEXTS[0], "twice").next()
    assert first.all().reason == "length"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"voice": "nobody"}, "voice"),
        ({"speaker": "nobody"}, "speaker"),
        ({"voice": ""}, "voice"),
        ({"language": "klingon"}, "language"),
    ],
)
def test_a_wrong_choice_names_its_field(options: dict, param: str, studio: Studio) -> None:
    with pytest.raises(InvalidRequest) as caught:
        studio.start("Hi", **options)
    assert caught.value.param == param


@pytest.mark.parametrize("voice", ["Ryan", "RYAN", "ryan", " ryan ", {"id": "Ryan"}, "ash", "uncle-fu", "Uncle Fu"])
def test_case_42_voices_have_one_name_however_it_is_written(voice: object, studio: Studio) -> None:
    plain = "uncle_fu" if "ncle" in str(voice) else "ryan"
    heard = [studio.speak("Hi", voice=name, seed=1, max_new_tokens=12).codes for name in (voice, plain)]
    np.testing.assert_array_equal(*heard)


def test_a_failed_step_ends_its_streams_alone(open_studio, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    studio = open_studio(dataclasses.replace(load_profile("ttfa"), max_active=2))
    good = studio.speak(TEXTS[0], seed=9, max_new_tokens=20).codes
    start = Runner.start

    def breaks_on_bad(self: Runner, batch):
        if any(stream.id == "bad" for stream in batch.decode):
            raise RuntimeError("broken on purpose")
        return start(self, batch)

    monkeypatch.setattr(Runner, "start", breaks_on_bad)
    bad = studio.start(TEXTS[0], "bad")
    assert bad.all().reason == "failed"
    assert "bad" in caplog.text
    np.testing.assert_array_equal(studio.speak(TEXTS[0], seed=9, max_new_tokens=20).codes, good)
