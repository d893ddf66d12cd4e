"""Live text in the engine: the codes of the whole text, whatever the timing, and every refusal."""

from __future__ import annotations

import dataclasses
import itertools
import queue
import random
import re

import numpy as np
import pytest

from engine_lib.errors import InvalidRequest, NotFound, Overloaded, ServiceError
from engine_lib.profile import Profile, load_profile
from engine_lib.talker import engine, live
from engine_lib.talker.runner import Runner
from engine_lib.wire import StreamOptions
from tests.engine_lib.talker.conftest import PATIENCE_S, Heard, Listener, Studio
from tests.serving import wait_for

TEXT = "Hello there, this is a tiny test of speech. It's what we'll say: 12 words, or so; 其实我真的有发现。"
PATIENT = dataclasses.replace(load_profile("ttfa"), flush_after_ms=3_600_000, flush_characters=10_000)


class Writer:
    """Someone who writes a text to a studio while it is spoken."""

    def __init__(self, studio: Studio, stream_id: str, **options: object) -> None:
        self._engine = studio.engine
        self._id = stream_id
        self._sequence = 0
        self.listener = Listener()
        self._options = StreamOptions.model_validate(options)

    def start(self, text: str = "") -> Writer:
        self._engine.start_live(text, self._options, self._id, self.listener.deliver)
        return self

    def append(self, text: str) -> int:
        return answer(self.append_later(text))

    def append_later(self, text: str, sequence: int | None = None) -> queue.Queue:
        answers: queue.Queue = queue.Queue()
        number = self._sequence if sequence is None else sequence
        self._engine.append(self._id, number, text, answers.put)
        self._sequence += sequence is None
        return answers

    def end(self) -> int:
        answers: queue.Queue = queue.Queue()
        self._engine.end(self._id, self._sequence, answers.put)
        self._sequence += 1
        return answer(answers)


def answer(answers: queue.Queue) -> int:
    result = answers.get(timeout=PATIENCE_S)
    if isinstance(result, ServiceError):
        raise result
    return result


def parts(text: str, seed: int) -> list[str]:
    dice = random.Random(seed)
    places = sorted({0, len(text), *(dice.randrange(len(text)) for _ in range(dice.choice([0, 3, 20])))})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def whole(studio: Studio, **options: object) -> Heard:
    return studio.speak(TEXT, non_streaming_mode=False, mask_eos_until_text_end=True, **options)


@pytest.mark.parametrize("seed", range(6))
def test_live_codes_equal_those_of_the_whole_text_for_any_cut(seed: int, open_studio) -> None:
    studio = open_studio(PATIENT)
    expected = whole(studio, seed=seed, max_new_tokens=90)
    writer = Writer(studio, f"live-{seed}", seed=seed, max_new_tokens=90).start()
    for part in parts(TEXT, seed):
        writer.append(part)
    assert writer.end() == expected.chunks[-1].text_tokens
    heard = writer.listener.all()
    np.testing.assert_array_equal(heard.codes, expected.codes)
    assert heard.reason == expected.reason


def test_speech_begins_before_the_text_ends_and_waits_without_work_when_it_runs_dry(
    open_studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    start = Runner.start

    def counted(self: Runner, batch):
        steps.append(len(batch.prefill) + len(batch.decode))
        return start(self, batch)

    monkeypatch.setattr(Runner, "start", counted)
    studio = open_studio(PATIENT)
    options = {"seed": 3, "stream_chunk_schedule": [1]}
    expected = whole(studio, **options)
    steps.clear()
    writer = Writer(studio, "slow", **options).start()
    committed = 0
    for part in re.findall(r"\S+ ?", TEXT):
        committed = writer.append(part)
        while writer.listener.heard < committed:  # every committed token is spoken before the next word is written
            writer.listener.hear()
        assert len(steps) == committed
    writer.end()
    np.testing.assert_array_equal(writer.listener.rest().codes, expected.codes)


def test_a_waiting_text_holds_no_other_stream_up(open_studio) -> None:
    studio = open_studio(PATIENT)
    writer = Writer(studio, "waits").start("Hello there, this is ")
    assert studio.speak("Hi", max_new_tokens=20).reason in ("stop", "length")
    writer.end()
    assert writer.listener.all().reason in ("stop", "length")


@pytest.mark.parametrize("profile", [{"flush_after_ms": 1}, {"flush_after_ms": 3_600_000, "flush_characters": 4}])
def test_held_text_is_spoken_after_a_while_or_when_it_is_much(profile: dict, open_studio) -> None:
    studio = open_studio(dataclasses.replace(PATIENT, **profile))
    writer = Writer(studio, "held", ignore_eos=True).start()
    writer.append("Hello")
    assert len(writer.listener.next().codes) > 0
    assert studio.engine.flushes == 1
    studio.cancel("held")


def test_what_comes_before_its_start_is_held_for_it(open_studio) -> None:
    studio = open_studio(PATIENT)
    expected = whole(studio, seed=1)
    writer = Writer(studio, "early", seed=1)
    early = [writer.append_later(part) for part in (TEXT[:30], TEXT[30:])]
    writer.start()
    assert answer(early[0]) < answer(early[1])
    writer.end()
    np.testing.assert_array_equal(writer.listener.all().codes, expected.codes)


def test_what_is_out_of_turn_is_refused_and_changes_nothing(open_studio) -> None:
    studio = open_studio(PATIENT)
    expected = whole(studio, seed=1)
    writer = Writer(studio, "turns", seed=1).start()
    writer.append(TEXT[:30])
    for sequence in (0, 2, -1, 2**31 - 1):
        with pytest.raises(InvalidRequest) as caught:
            answer(writer.append_later("more", sequence))
        assert caught.value.code == "invalid_sequence"
    with pytest.raises(InvalidRequest) as caught:
        answer(writer.append_later("a\x00b", 1))
    assert caught.value.code == "invalid_text"
    writer.append(TEXT[30:])
    writer.end()
    np.testing.assert_array_equal(writer.listener.all().codes, expected.codes)


def test_the_layout_of_a_whole_text_is_refused_by_name(open_studio) -> None:
    writer = Writer(open_studio(PATIENT), "whole", non_streaming_mode=True)
    with pytest.raises(InvalidRequest) as caught:
        writer.start()
    assert caught.value.param == "non_streaming_mode"


def test_text_after_the_end_is_refused(open_studio) -> None:
    studio = open_studio(PATIENT)
    writer = Writer(studio, "ended", ignore_eos=True).start("Hello there")
    writer.end()
    with pytest.raises((InvalidRequest, NotFound)):
        writer.append("more")
    studio.cancel("ended")
    writer.listener.all()
    with pytest.raises(NotFound):
        writer.append("more")


def test_a_blank_text_is_refused_at_its_end(open_studio) -> None:
    studio = open_studio(dataclasses.replace(PATIENT, flush_after_ms=1))
    writer = Writer(studio, "blank").start()
    assert writer.append(" \n ") == 0
    with pytest.raises(InvalidRequest) as caught:
        writer.end()
    assert caught.value.code == "empty_input"
    studio.cancel("blank")
    assert writer.listener.all().reason == "cancelled"


@pytest.mark.parametrize(("text", "profile"), [("x" * 65_537, {}), ("a b " * 100, {"slot_positions": 64})])
def test_a_text_longer_than_can_be_spoken_is_refused(text: str, profile: dict, open_studio) -> None:
    studio = open_studio(dataclasses.replace(PATIENT, **profile))
    writer = Writer(studio, "long").start("Hello there, you ")
    with pytest.raises(InvalidRequest) as caught:
        writer.append(text)
    assert caught.value.code == "input_too_large"
    studio.cancel("long")
    assert studio.description().active == 0


def test_a_text_that_its_own_flush_makes_too_long_is_refused_as_that(open_studio) -> None:
    studio = open_studio(dataclasses.replace(PATIENT, slot_positions=64, flush_characters=8))
    writer = Writer(studio, "flood", ignore_eos=True).start("Hello there, you ")
    with pytest.raises(InvalidRequest) as caught:
        list(map(writer.append, "a" * 1000))
    assert caught.value.code == "input_too_large"
    assert writer.listener.all().reason == "cancelled"


def test_a_text_that_grew_too_long_while_nobody_wrote_is_refused_when_somebody_does(open_studio) -> None:
    studio = open_studio(dataclasses.replace(PATIENT, slot_positions=64, flush_after_ms=1))
    writer = Writer(studio, "held", ignore_eos=True).start()
    for flushes, text in enumerate(["Hello there, you", " " + "aeiou" * 200], 1):
        writer.append(text)
        wait_for(lambda: studio.engine.flushes == flushes)  # noqa: B023
    with pytest.raises(InvalidRequest) as caught:
        writer.end()
    assert caught.value.code == "input_too_large"


def test_a_flood_of_actions_lets_steps_through(open_studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ACTIONS_S", 0.0)  # one action between two steps
    studio = open_studio(PATIENT)
    expected = whole(studio, seed=1)
    writer = Writer(studio, "flood", seed=1).start()
    waiting = [writer.append_later(part) for part in TEXT]
    for result in waiting:
        answer(result)
    writer.end()
    np.testing.assert_array_equal(writer.listener.all().codes, expected.codes)


def test_cancel_ends_a_text_that_waits(open_studio) -> None:
    studio = open_studio(PATIENT)
    silent, speaking = Writer(studio, "silent").start(), Writer(studio, "speaking").start("Hello there, this ")
    for writer, name in ((silent, "silent"), (speaking, "speaking")):
        studio.cancel(name)
        assert writer.listener.all().reason == "cancelled"
    assert studio.description().active == 0


def test_an_abandoned_text_is_given_up(open_studio) -> None:
    studio = open_studio(dataclasses.replace(PATIENT, live_idle_timeout_s=0.01))
    writer = Writer(studio, "abandoned").start("Hello there, this ")
    assert writer.listener.all().reason == "cancelled"
    assert studio.description().active == 0


def test_an_append_whose_start_never_comes_is_refused(open_studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EARLY_LIMIT_S", 0.01)
    with pytest.raises(NotFound):
        Writer(open_studio(PATIENT), "nobody").append("text")


def test_live_text_is_refused_when_too_many_wait(open_studio) -> None:
    busy: Profile = dataclasses.replace(PATIENT, max_active=1, max_waiting=0)
    studio = open_studio(busy)
    speaking = studio.start(TEXT, "speaking", ignore_eos=True)
    with pytest.raises(Overloaded):
        Writer(studio, "one too many").start().listener.next()
    studio.cancel("speaking")
    assert speaking.all().reason == "cancelled"


def test_a_wrong_choice_is_refused_at_the_start(studio: Studio) -> None:
    for options in ({"voice": "nobody"}, {"language": "klingon"}):
        with pytest.raises(InvalidRequest) as caught:
            Writer(studio, "wrong", **options).start()
        assert caught.value.param in options
