"""Let the teacher speak the texts, on all the cores given, part after part.

    python -m engine_lib.training.speech TEXTS.gz OUT --workers 14 --seconds 480 --flite /usr/lib/x86_64-linux-gnu

Every part is a file OUT/NNNNN.npz of a few hundred utterances, written whole or not at all. The work is split by
position, so a part holds the same utterances however many workers there are; a second call goes on where the first
was stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engine_lib.training import recipe, texts
from engine_lib.training.flite import RATE, Flite, Utterance

PART = 100  # texts of a file
HOP = RATE * 2 // 25  # teacher's samples of a frame
HALF = HOP // 2  # phones are noted twice a frame
BEFORE_S, AFTER_S = 0.05, 0.16  # silence that stays around an utterance
PHONES = [
    "pau",
    "aa",
    "ae",
    "ah",
    "ao",
    "aw",
    "ax",
    "ay",
    "b",
    "ch",
    "d",
    "dh",
    "eh",
    "er",
    "ey",
    "f",
    "g",
    "hh",
    "ih",
    "iy",
    "jh",
    "k",
    "l",
    "m",
    "n",
    "ng",
    "ow",
    "oy",
    "p",
    "r",
    "s",
    "sh",
    "t",
    "th",
    "uh",
    "uw",
    "v",
    "w",
    "y",
    "z",
    "zh",
]
_NUMBER = {phone: number for number, phone in enumerate(PHONES)}


class Part:
    """A file of arrays, one a field of the dataclass that derives from it."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """A part."""
        with np.load(path) as part:
            return cls(**{name: part[name] for name in part.files})

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        unfinished = path.with_suffix(".tmp")
        with unfinished.open("wb") as file:
            np.savez(file, **self.__dict__)
        unfinished.rename(path)


@dataclass(frozen=True)
class Speech(Part):
    """Utterances end to end, each filled up to whole frames.

    samples: int16 [frames * HOP]; phones: uint8 [frames, 2], of each half frame's middle; frames, text, speaker: int32
    [utterances], how long each is, whose text, and who of recipe.SPEAKERS speaks.
    """

    samples: NDArray[np.int16]
    phones: NDArray[np.uint8]
    frames: NDArray[np.int32]
    text: NDArray[np.int32]
    speaker: NDArray[np.int32]


def trimmed(utterance: Utterance) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Samples and phones of whole frames, with no more silence around than is wanted."""
    ends = np.array([end for _, end in utterance.phones])
    numbers = np.array([_NUMBER[phone] for phone, _ in utterance.phones], np.uint8)
    spoken = np.flatnonzero(numbers)
    begin = max(0.0, (ends[spoken[0] - 1] if spoken[0] else 0.0) - BEFORE_S)
    first, last = round(begin * RATE), round((ends[spoken[-1]] + AFTER_S) * RATE)
    samples = utterance.samples[first:last]
    frames = -(-len(samples) // HOP)
    samples = np.pad(samples, (0, frames * HOP - len(samples)))
    middles = (np.arange(frames * 2) + 0.5) * HALF / RATE + begin
    return samples, numbers[np.searchsorted(ends, middles).clip(max=len(ends) - 1)].reshape(frames, 2)


def speak(sentences: list[str], part: int, teachers: list[Flite]) -> Speech:
    """The texts of one part, speaker by turns."""
    first = part * PART
    numbers = range(first, min(first + PART, len(sentences)))
    made = [(number, *trimmed(teachers[number % len(teachers)].speak(sentences[number]))) for number in numbers]
    return Speech(
        np.concatenate([samples for _, samples, _ in made]),
        np.concatenate([phones for _, _, phones in made]),
        np.array([len(phones) for _, _, phones in made], np.int32),
        np.array([number for number, _, _ in made], np.int32),
        np.array([number % len(teachers) for number, _, _ in made], np.int32),
    )


def work(sentences: list[str], out: Path, worker: int, workers: int, deadline: float, folder: Path | None) -> None:
    """Every `workers`-th part, until `deadline` (time.time()) or the end of the texts."""
    teachers = [Flite(voice, folder) for voice in recipe.SPEAKERS.values()]
    for part in range(worker, -(-len(sentences) // PART), workers):
        path = out / f"{part:05d}.npz"
        if time.time() > deadline:
            return
        if not path.exists():
            speak(sentences, part, teachers).write(path)


def start(
    sentences: list[str], out: Path, workers: int, deadline: float, folder: Path | None
) -> list[multiprocessing.Process]:
    """One process a worker, all at work."""
    out.mkdir(parents=True, exist_ok=True)
    started = [
        multiprocessing.Process(target=work, args=(sentences, out, worker, workers, deadline, folder))
        for worker in range(workers)
    ]
    for process in started:
        process.start()
    return started


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.speech", description=__doc__)
    parser.add_argument("texts", type=Path, help="what the stage `texts` wrote")
    parser.add_argument("out", type=Path, help="folder for the parts")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then")
    parser.add_argument("--flite", type=Path, help="folder of flite's libraries")
    arguments = parser.parse_args()
    deadline = time.time() + arguments.seconds
    for process in start(texts.read(arguments.texts), arguments.out, arguments.workers, deadline, arguments.flite):
        process.join()
    frames = sum(int(Speech.read(path).frames.sum()) for path in arguments.out.glob("*.npz"))
    print(f"{frames / 12.5 / 3600:.2f} hours of speech")


if __name__ == "__main__":
    main()
