from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine_lib.codec.model import Decoder
from engine_lib.codec.runner import Runner
from tests.golden import CHECKPOINT

TOKENIZER = CHECKPOINT / "speech_tokenizer"


@pytest.fixture(scope="session")
def decoder() -> Decoder:
    """Shared weights: only the last Runner made on it may be used, because layers hold the state."""
    return Decoder.from_directory(TOKENIZER, torch.float32, torch.device("cpu"))


@pytest.fixture
def make_runner(decoder: Decoder) -> Callable[..., Runner]:
    def make(slots: int = 8, piece_frames: int = 25) -> Runner:
        return Runner(decoder, slots, piece_frames=piece_frames)

    return make


@pytest.fixture
def runner(make_runner: Callable[..., Runner]) -> Runner:
    return make_runner()
