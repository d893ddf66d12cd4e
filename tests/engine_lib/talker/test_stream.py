"""When a stream may end, by counting alone."""

from __future__ import annotations

import numpy as np
import pytest

from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import Prompt

SPEECH_END, PAD, TEXT_END = 99, 98, 97
WORDS = (5, 6, 7)
RULES = Sampling(1.0, 0, 1.0, 1.0, 1.0, 0, 1.0)


def prompted(trailing: tuple[int, ...], *, text_open: bool) -> Stream:
    """A stream in the streaming layout whose prompt has passed and given its sample, the end of speech masked."""
    stream = Stream(
        "a",
        Prompt((1,) * 10, (1,) * 10, trailing, 1 + len(trailing)),
        sampling=RULES,
        seed=0,
        limit=100,
        chunk_schedule=(1,),
        hurry_lead_s=0.0,
        eos_id=SPEECH_END,
        pad_id=PAD,
        ignore_eos=False,
        mask_eos=True,
        deliver=lambda event: None,
        text_open=text_open,
    )
    stream.prefilled = len(stream.prompt)
    step(stream)
    return stream


def step(stream: Stream) -> None:
    stream.asked += 1
    stream.accept(np.zeros(16, np.int32))


@pytest.mark.parametrize("live", [False, True])
def test_a_masked_end_of_speech_is_free_from_the_step_that_takes_in_the_end_of_the_text(live: bool) -> None:
    stream = prompted(WORDS[:1] if live else (*WORDS, TEXT_END), text_open=live)
    if live:
        stream.feed(WORDS[1:])
        stream.close_text(TEXT_END, 100)
    taken = []
    for _ in range(6):
        taken.append((stream.next_text(), stream.may_end()))
        step(stream)
    assert taken == [(5, False), (6, False), (7, False), (TEXT_END, True), (PAD, True), (PAD, True)]


def test_an_open_text_keeps_the_end_of_speech_masked_and_gives_one_frame_a_token() -> None:
    stream = prompted(WORDS, text_open=True)
    while stream.runnable:
        assert not stream.may_end()
        step(stream)
    assert stream.frames == 1 + len(WORDS)  # the first one is the prompt's token's
