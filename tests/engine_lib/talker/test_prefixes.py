"""Laws of what is kept of prompts: the same speech as without, less of it computed, and never too much of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_lib.profile import load_profile
from engine_lib.talker.prefixes import Prefixes
from engine_lib.talker.runner import PREFILL_WIDTH, Runner
from engine_lib.talker.stream import Stream
from engine_lib.wire import Voice
from tests.engine_lib.talker.conftest import Studio, prompts_of
from tests.engine_lib.talker.streams import prompted
from tests.golden import BASE, CHECKPOINT, clones, golden, voice_of

LAYERS, SLOTS, POSITIONS, WIDTH = 3, 4, 64, 2
NUMBERS = torch.arange(LAYERS * POSITIONS * WIDTH).view(LAYERS, POSITIONS, WIDTH)
WHOLE = dataclasses.replace(load_profile("ttfa"), prefix_positions=0)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("name", [None, *clones()])
def test_what_stands_before_the_text_is_the_same_for_every_text_and_what_follows_is_not(
    name: str | None, streaming: bool
) -> None:
    prompts = prompts_of(BASE if name else CHECKPOINT)
    voicing = prompts.voicing(
        voice=None, language=None, instructions=None, clone=voice_of(golden(name)) if name else None
    )
    one, other = (prompts.build(text, voicing, streaming=streaming) for text in ("abc", "Zebras are striped."))
    end = one.before_text
    assert 0 < end == other.before_text < min(len(one), len(other))
    assert (one.text[:end], one.codec[:end], one.side[:end]) == (other.text[:end], other.codec[:end], other.side[:end])
    # Unless the sample's text is longer than the sample, which leaves no place for the text in a streaming prompt.
    if not streaming or len(voicing.reference) <= len(voicing.voice.codes if voicing.voice else ()):
        assert one.text[end] != other.text[end]


class Slots:
    """Keys and values whose numbers tell whose they are, and the streams that write them."""

    def __init__(self, **how: int) -> None:
        self.keys, self.values = (torch.zeros(LAYERS, SLOTS, POSITIONS, WIDTH) for _ in range(2))
        self.prefixes = Prefixes(self.keys, self.values, **how)

    def run(self, slot: int, length: int, before_text: int, *, voice: Voice | None = None, mark: float = 1.0) -> int:
        """Run a prompt and keep of it; how many positions had been there already, with the right numbers."""
        stream = prompted(slot, length, before_text, voice)
        self.keys[:, slot], self.values[:, slot] = -1.0, -1.0
        self.prefixes.fill(stream)
        done = stream.prefilled
        for store, sign in ((self.keys, 1), (self.values, 2)):
            assert (store[:, slot, :done] == sign * mark * NUMBERS[:, :done]).all()
            assert (store[:, slot, done:] == -1.0).all()
            store[:, slot, :length] = sign * mark * NUMBERS[:, :length]
        stream.prefilled = length
        self.prefixes.keep(stream)
        return done


def test_a_prompt_begins_where_one_like_it_had_its_text() -> None:
    slots = Slots(most_positions=100)
    assert [slots.run(0, 12, 9), slots.run(1, 12, 9), slots.run(2, 40, 9)] == [0, 9, 9]


def test_where_cuts_matter_only_whole_tiles_are_kept() -> None:
    slots = Slots(most_positions=100, multiple=16)
    assert [slots.run(0, 60, 40), slots.run(1, 60, 40)] == [0, 32]
    assert [slots.run(0, 60, 15), slots.run(1, 60, 15)] == [0, 0]


def test_another_voice_has_another_beginning_though_its_text_is_the_same() -> None:
    slots = Slots(most_positions=100)
    one, two = (Voice(np.full(3, value, np.float32)) for value in (1.0, 2.0))
    longer = Voice(one.x_vector, np.ones((2, 16), np.int32), "a")
    for voice, mark in ((one, 1.0), (two, 2.0), (longer, 3.0), (None, 4.0)):
        assert [slots.run(0, 12, 9, voice=voice, mark=mark) for _ in range(2)] == [0, 9]
    assert slots.run(0, 12, 9, voice=Voice(one.x_vector.copy())) == 9


@given(st.lists(st.integers(1, POSITIONS - 1), max_size=40))
def test_never_more_positions_are_kept_than_there_is_room_for_and_the_latest_stay(lengths: list[int]) -> None:
    slots = Slots(most_positions=50)
    used: list[int] = []
    for length in lengths:
        found = slots.run(0, POSITIONS, length)
        expected: list[int] = []
        for one in dict.fromkeys(reversed(used)):  # the latest first
            if one <= 50 and sum(expected) + one > 50:
                break
            expected += [one] if one <= 50 else []
        assert found == (length if length in expected else 0)
        used.append(length)


def test_after_a_failure_nothing_is_known() -> None:
    slots = Slots(most_positions=100)
    slots.run(0, 12, 9)
    slots.prefixes.clear()
    assert len(slots.prefixes) == 0
    assert [slots.run(0, 12, 9), slots.run(0, 12, 9)] == [0, 9]


@pytest.mark.parametrize("whole_text", [True, False])
def test_speech_from_a_kept_beginning_is_what_it_is_without(
    whole_text: bool, open_studio: Callable[..., Studio]
) -> None:
    voice = voice_of(golden("bc_icl_ns"))
    without, with_it = open_studio(WHOLE, BASE), open_studio(load_profile("ttfa"), BASE)
    for number, text in enumerate(["Hello there.", "Hello there.", "Quite another text, and longer.", "Hm."]):
        asked = {"seed": number, "max_new_tokens": 20, "ignore_eos": True, "non_streaming_mode": whole_text}
        one, other = (studio.speak(text, clone=voice, **asked) for studio in (with_it, without))
        np.testing.assert_array_equal(one.codes, other.codes)


def test_only_what_is_not_kept_runs(open_studio: Callable[..., Studio], monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    prefill = Runner._prefill

    def noted(runner: Runner, streams: Sequence[Stream], context: int) -> None:
        begins.extend(stream.prefilled for stream in streams)
        prefill(runner, streams, context)

    monkeypatch.setattr(Runner, "_prefill", noted)
    studio, voice = open_studio(load_profile("ttfa"), BASE), voice_of(golden("bc_icl_ns"))
    firsts = []
    for text in ("Hello.", "Another one."):
        begins.clear()
        studio.speak(text, clone=voice, max_new_tokens=3)
        firsts.append(begins[0])
    assert firsts == [0, PREFILL_WIDTH]


def test_an_instruction_is_kept_like_a_voice(open_studio: Callable[..., Studio]) -> None:
    without, with_it = open_studio(WHOLE), open_studio(load_profile("ttfa"))
    how = "Speak slowly, like somebody who is about to fall asleep, " + "very " * 5 * PREFILL_WIDTH + "slowly."
    for text in ("Hello.", "Another one.", "Hello."):
        asked = {"seed": 3, "max_new_tokens": 12, "ignore_eos": True, "instructions": how}
        np.testing.assert_array_equal(with_it.speak(text, **asked).codes, without.speak(text, **asked).codes)
