"""An engine on the small checkpoint, and a way to hear streams out."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from engine_lib.errors import ServiceError
from engine_lib.profile import Profile, load_profile
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.engine import Engine
from engine_lib.talker.stream import Chunk
from engine_lib.text.prompt import PromptBuilder, Voices
from engine_lib.text.tokenizer import TextTokenizer
from engine_lib.wire import StreamOptions, Voice
from tests.golden import CHECKPOINT

PATIENCE_S = 120.0  # only a hang takes so long


@dataclass
class Heard:
    """Everything that a stream delivered."""

    chunks: list[Chunk] = field(default_factory=list)

    @property
    def codes(self) -> np.ndarray:
        return np.concatenate([chunk.codes for chunk in self.chunks])

    @property
    def reason(self) -> str | None:
        return self.chunks[-1].finish_reason


class Listener:
    """The receiving end of one stream."""

    def __init__(self) -> None:
        self._arrived: queue.Queue[Chunk | ServiceError] = queue.Queue()
        self.deliver = self._arrived.put
        self._before = Heard()

    @property
    def heard(self) -> int:
        """Frames taken by `hear`."""
        return sum(len(chunk.codes) for chunk in self._before.chunks)

    def hear(self) -> None:
        """Take the next chunk and keep it for `rest`."""
        self._before.chunks.append(self.next())

    def rest(self) -> Heard:
        """All chunks, those that `hear` took included."""
        return Heard([*self._before.chunks, *self.all().chunks])

    def next(self) -> Chunk:
        event = self._arrived.get(timeout=PATIENCE_S)
        if isinstance(event, ServiceError):
            raise event
        return event

    def all(self) -> Heard:
        heard = Heard([self.next()])
        while not heard.chunks[-1].last:
            heard.chunks.append(self.next())
        return heard


class Studio:
    """An engine and shortcuts to use it."""

    def __init__(self, profile: Profile, directory: Path = CHECKPOINT) -> None:
        self.engine = Engine.from_checkpoint(directory, profile, torch.device("cpu"), model="test")
        self._count = 0

    def start(self, text: str, stream_id: str = "", clone: Voice | None = None, **options: object) -> Listener:
        listener = Listener()
        self.engine.start(text, StreamOptions.model_validate(options), stream_id, listener.deliver, clone)
        return listener

    def speak(self, text: str, **options: object) -> Heard:
        return self.start(text, **options).all()

    def description(self):
        answers: queue.Queue = queue.Queue()
        self.engine.describe(answers.put)
        return answers.get(timeout=PATIENCE_S)

    def cancel(self, stream_id: str) -> None:
        done: queue.Queue = queue.Queue()
        self.engine.cancel(stream_id, lambda: done.put(None))
        done.get(timeout=PATIENCE_S)


def prompts_of(checkpoint: Path) -> PromptBuilder:
    """Builds the prompts of a checkpoint."""
    config = TalkerConfig.from_directory(checkpoint)
    tokenizer = TextTokenizer(checkpoint, im_start=config.ids.im_start, im_end=config.ids.im_end)
    return PromptBuilder(config, tokenizer, Voices(config, {}))


@pytest.fixture
def open_studio() -> Iterator[Callable[..., Studio]]:
    """Make studios that close with the test."""
    opened: list[Studio] = []

    def make(profile: Profile | None = None, directory: Path = CHECKPOINT) -> Studio:
        opened.append(Studio(profile or load_profile("ttfa"), directory))
        return opened[-1]

    yield make
    for studio in opened:
        studio.engine.close()


@pytest.fixture(scope="module")
def studio() -> Iterator[Studio]:
    made = Studio(load_profile("ttfa"))
    yield made
    made.engine.close()
