"""Streams with made-up prompts, for tests of what runs them."""

from __future__ import annotations

from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import NOTHING, Prompt
from engine_lib.wire import Voice

PAD, EOS = 7, 2150
RULES = Sampling(0.5, 0, 0.8, 1.1, 0.0, 5, 1.0)


def prompted(
    slot: int, length: int, before_text: int = 0, voice: Voice | None = None, trailing: tuple[int, ...] = ()
) -> Stream:
    """A stream in `slot` whose prompt counts up from 1,000 (text) and 2,100 (codec)."""
    text, codec = (tuple(range(first, first + length)) for first in (1000, 2100))
    made = Stream(
        str(slot),
        Prompt(text, codec, trailing, 1, (NOTHING,) * length, voice, before_text),
        sampling=RULES,
        seed=2**63 + slot,
        limit=1000,
        chunk_schedule=(1,),
        hurry_lead_s=0.0,
        eos_id=EOS,
        pad_id=PAD,
        ignore_eos=False,
        mask_eos=True,
        deliver=lambda chunk: None,
    )
    made.slot = slot
    return made
