"""How well a running server's voice is understood: speak a fixed list, let a recogniser listen, count the words.

    python -m engine_lib.training.evaluate --url http://127.0.0.1:8000
    python -m engine_lib.training.evaluate --teacher /usr/lib/x86_64-linux-gnu

prints the word error rate, the share of utterances that ended by themselves, and words a minute, for each layout of
the prompt. The second form judges the teacher by the same list. Every sentence has its own seed and the voices take
turns, so a second run on one machine says the same.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import torch
from numpy.typing import NDArray

from engine_lib.training import flite, listening, recipe
from engine_lib.training.listening import Recogniser
from engine_lib.training.spectra import Resampler
from engine_lib.training.texts import evaluation_texts

SHORT = 12  # sentences of the short list
LIMIT_S = 300.0


@dataclass(frozen=True)
class Spoken:
    """float32 samples at listening.RATE, and whether the voice came to an end by itself."""

    samples: NDArray[np.float32]
    ended: bool


Voice = Callable[[int, str], Spoken]  # number of the text, text


@dataclass(frozen=True)
class Heard:
    """One text and what was understood."""

    text: str
    heard: str
    errors: int
    words: int
    seconds: float
    ended: bool


@dataclass(frozen=True)
class Score:
    """All of them."""

    all: tuple[Heard, ...]

    @property
    def word_error_rate(self) -> float:
        """Errors a word."""
        return sum(heard.errors for heard in self.all) / sum(heard.words for heard in self.all)

    @property
    def ended(self) -> float:
        """Share that ended by itself."""
        return sum(heard.ended for heard in self.all) / len(self.all)

    @property
    def words_a_minute(self) -> float:
        """Speaking rate, pauses included."""
        return 60 * sum(heard.words for heard in self.all) / sum(heard.seconds for heard in self.all)

    @property
    def faultless(self) -> int:
        """How many were understood to the word."""
        return sum(heard.errors == 0 for heard in self.all)

    def __str__(self) -> str:
        return (
            f"word error rate {self.word_error_rate:.3f}, {self.faultless} of {len(self.all)} to the word, "
            f"{self.ended:.1%} ended by themselves, {self.words_a_minute:.0f} words a minute"
        )


class Server:
    """The voices of a running server."""

    def __init__(self, client: httpx.Client, *, whole_text: bool) -> None:
        """`client` has the server's address as its base. `whole_text`: the layout with the text in the prompt, else
        the one that takes it token by token.
        """
        self._client = client
        self._whole_text = whole_text
        self._resample = Resampler(2, 3)

    def __call__(self, number: int, text: str) -> Spoken:
        """Speak."""
        voices = list(recipe.SPEAKERS)
        answer = self._client.post(
            "/v1/audio/speech",
            timeout=LIMIT_S,
            json={
                "input": text,
                "voice": voices[number % len(voices)],
                "seed": number,
                "response_format": "pcm",
                "stream": False,
                "non_streaming_mode": self._whole_text,
            },
        )
        answer.raise_for_status()
        samples = np.frombuffer(answer.content, np.int16).astype(np.float32) / 32768
        samples = samples[: len(samples) // 3 * 3]
        heard = self._resample(torch.from_numpy(samples)[None])[0].numpy()
        return Spoken(heard, answer.headers["x-finish-reason"] == "stop")


class Teacher:
    """flite's voices, by turns."""

    def __init__(self, folder: Path) -> None:
        self._voices = [flite.Flite(name, folder) for name in recipe.SPEAKERS.values()]

    def __call__(self, number: int, text: str) -> Spoken:
        """Speak."""
        samples = self._voices[number % len(self._voices)].speak(text).samples
        return Spoken(samples.astype(np.float32) / 32768, ended=True)


def judge(voice: Voice, texts: Sequence[str], recogniser: Recogniser) -> Score:
    """Let `voice` speak, and listen."""
    found = []
    for number, text in enumerate(texts):
        spoken = voice(number, text)
        heard = recogniser.hear(spoken.samples)
        said = listening.words(text)
        wrong = listening.errors(said, listening.words(heard))
        found.append(Heard(text, heard, wrong, len(said), len(spoken.samples) / listening.RATE, spoken.ended))
    return Score(tuple(found))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.evaluate", description=__doc__)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--url", help="of a running server")
    who.add_argument("--teacher", type=Path, help="folder of flite's libraries")
    parser.add_argument("--short", action="store_true", help=f"the first {SHORT} sentences alone")
    parser.add_argument("--verbose", action="store_true", help="print what was misheard")
    arguments = parser.parse_args()
    texts = evaluation_texts()[: SHORT if arguments.short else None]
    recogniser = Recogniser()
    with httpx.Client(base_url=arguments.url or "") as client:
        voices: dict[str, Voice] = (
            {"teacher": Teacher(arguments.teacher)}
            if arguments.teacher
            else {
                "whole text": Server(client, whole_text=True),
                "streaming text": Server(client, whole_text=False),
            }
        )
        for name, voice in voices.items():
            score = judge(voice, texts, recogniser)
            if arguments.verbose:
                for heard in score.all:
                    if heard.errors:
                        print(f"  {heard.errors} of {heard.words}: {heard.text} | {heard.heard}")
            print(f"{name}: {score}", flush=True)


if __name__ == "__main__":
    main()
