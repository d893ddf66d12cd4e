"""Training sequences in the layouts that are served: prompt, then frames, each with the text-side id that goes with it.

The prompts come from text/prompt.py itself. Knows ids and lengths; knows no tensors and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine_lib.talker.config import TalkerConfig
from engine_lib.text.prompt import PromptBuilder, Voices
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.training import recipe

LENGTHS = (64, 96, 160, 288)  # a sequence is filled up to the next of these
NONE, END = -1, -2  # in the lanes of frames: no frame; the end of speech
TEXT, CODEC, FED, WANTED = range(4)  # lanes
TOGETHER = (0.55, 0.25, 0.12, 0.08)  # shares of sequences of one, two, three and more utterances
MOST_TOGETHER = 6
INSTRUCTIONS = ("Speak slowly.", "Talk in a calm voice.", "Sound happy.", "Use a friendly tone.", "Read this clearly.")
INSTRUCTED, LOWERED, OPEN_ENDED = 0.03, 0.06, 0.06  # shares: with an instruction; in small letters; without a full stop
HELD_OUT = 41  # of so many texts one is for validation


@dataclass(frozen=True)
class Corpus:
    """What is known of the utterances but their codes: text, speaker, where their frames begin, how many there are."""

    text: NDArray[np.int32]
    speaker: NDArray[np.int32]
    begin: NDArray[np.int64]
    frames: NDArray[np.int32]

    def chosen(self, held_out: bool) -> list[NDArray[np.int64]]:
        """The numbers of utterances for validation, or of all others, by speaker."""
        kept = (self.text % HELD_OUT == 0) == held_out
        return [np.flatnonzero(kept & (self.speaker == speaker)) for speaker in range(len(recipe.SPEAKERS))]


class Writer:
    """Writes sequences for one checkpoint."""

    def __init__(self, checkpoint: Path, sentences: list[str]) -> None:
        config = TalkerConfig.from_directory(checkpoint)
        tokenizer = TextTokenizer(checkpoint, im_start=config.ids.im_start, im_end=config.ids.im_end)
        self._pad = config.ids.tts_pad
        self._builder = PromptBuilder(config, tokenizer, Voices(config, {}))
        self._sentences = sentences
        self._names = list(recipe.SPEAKERS)

    def sequence(self, corpus: Corpus, utterances: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int32]:
        """The lanes [4, length] of these utterances, of one speaker, as one."""
        said = " ".join(self._text(int(corpus.text[number]), rng) for number in utterances)
        voicing = self._builder.voicing(
            voice=self._names[corpus.speaker[utterances[0]]],
            language=recipe.LANGUAGE if rng.random() < 0.5 else None,
            instructions=str(rng.choice(INSTRUCTIONS)) if rng.random() < INSTRUCTED else None,
        )
        prompt = self._builder.build(said, voicing, streaming=bool(rng.random() < 0.5))
        frames = np.concatenate([np.arange(corpus.frames[n]) + corpus.begin[n] for n in utterances])
        lanes = np.full((4, len(prompt) + len(frames)), NONE, np.int32)
        trailing = [*prompt.trailing[: len(frames)], *[self._pad] * (len(frames) - len(prompt.trailing))]
        lanes[TEXT] = [*prompt.text, *trailing]
        lanes[CODEC, : len(prompt)] = prompt.codec
        lanes[FED, len(prompt) :] = frames
        lanes[WANTED, len(prompt) - 1 : -1] = frames
        lanes[WANTED, -1] = END
        return lanes

    def many(self, corpus: Corpus, count: int, seed: int, held_out: bool = False) -> dict[int, NDArray[np.int32]]:
        """About `count` sequences by LENGTHS: [sequences, 4, length] each."""
        rng = np.random.default_rng(seed)
        by_speaker = corpus.chosen(held_out)
        found: dict[int, list[NDArray[np.int32]]] = {length: [] for length in LENGTHS}
        for _ in range(count):
            own = by_speaker[rng.integers(len(by_speaker))]
            together = int(rng.choice(4, p=TOGETHER)) + 1
            if together == 4:
                together = int(rng.integers(4, MOST_TOGETHER + 1))
            lanes = self.sequence(corpus, rng.choice(own, together), rng)
            room = next((length for length in LENGTHS if length >= lanes.shape[1]), None)
            if room is not None:
                found[room].append(np.pad(lanes, ((0, 0), (0, room - lanes.shape[1])), constant_values=NONE))
        return {length: np.stack(rows) for length, rows in found.items() if rows}

    def _text(self, number: int, rng: np.random.Generator) -> str:
        """A sentence as somebody might type it."""
        text = self._sentences[number]
        if rng.random() < LOWERED:
            text = text.lower()
        if rng.random() < OPEN_ENDED and text.endswith("."):
            text = text[:-1]
        return text
