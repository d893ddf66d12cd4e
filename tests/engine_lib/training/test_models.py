"""What is trained is what is served: the training's forward passes against the serving ones, on the voice itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine_lib.checkpoint import load_strict, read_tensors
from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import IGNORED, Decoder
from engine_lib.codec.streaming import Rows, StateStore
from engine_lib.files import TINY, VOICES
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.kv_cache import KVCache
from engine_lib.talker.model import Talker
from engine_lib.training import recipe, sequences
from engine_lib.training.folding import WholeRows, refold
from engine_lib.training.sequences import END, FED, NONE, WANTED, Corpus, Writer
from engine_lib.training.talker import predictor_logits, talker_states

DIRECTORY = VOICES / TINY
CODEC = DIRECTORY / "speech_tokenizer"
CPU = torch.device("cpu")
FRAMES = 9


@pytest.fixture(scope="module")
def config() -> TalkerConfig:
    return TalkerConfig.from_directory(DIRECTORY)


@pytest.fixture(scope="module")
def served(config: TalkerConfig) -> Talker:
    return Talker.from_directory(DIRECTORY, config, torch.float32, CPU)


@pytest.fixture
def trained(config: TalkerConfig) -> Talker:
    talker = Talker(config)
    load_strict(talker, read_tensors(DIRECTORY), prefix="talker.")
    refold(talker)
    return talker


def codes(rows: int) -> Tensor:
    return torch.randint(0, recipe.CODES, (rows, 16), generator=torch.Generator().manual_seed(5))


def test_the_talker_is_trained_on_the_states_that_are_served(
    config: TalkerConfig, served: Talker, trained: Talker
) -> None:
    sizes = config.talker
    frames = codes(FRAMES)
    whole = talker_states(trained, trained.frame_embedding(frames)[None])
    cache = KVCache(sizes.layers, 1, 64, sizes.kv_heads, sizes.head_dim, torch.float32, CPU)
    slots = torch.zeros(1, dtype=torch.int64)
    one_by_one = [
        served(served.frame_embedding(frames[n : n + 1])[:, None], cache, slots, torch.tensor([[n]]), 64)
        for n in range(FRAMES)
    ]
    torch.testing.assert_close(torch.cat(one_by_one, dim=1), whole, rtol=1e-4, atol=1e-4)


def test_the_predictor_is_trained_on_the_logits_that_are_served(served: Talker, trained: Talker) -> None:
    frames = codes(FRAMES)
    hidden = torch.randn(FRAMES, served.config.talker.hidden, generator=torch.Generator().manual_seed(6))
    seen: list[Tensor] = []

    def choose(group: int, logits: Tensor) -> Tensor:
        seen.append(logits)
        return frames[:, group]

    served.code_predictor(hidden, served.model.codec_embedding(frames[:, 0]), choose)
    first = trained.model.codec_embedding(frames[:, 0])
    logits = predictor_logits(trained.code_predictor, hidden, first, frames)
    torch.testing.assert_close(torch.stack(seen, dim=1), logits, rtol=1e-4, atol=1e-4)


def test_gradients_reach_every_weight_that_is_served(trained: Talker) -> None:
    frames = codes(FRAMES)
    ids = torch.arange(FRAMES)
    x = trained.prompt_embedding(ids, frames[:, 0]) + trained.frame_embedding(frames)
    states = talker_states(trained, x[None])[0]
    first = trained.model.codec_embedding(frames[:, 0])
    logits = predictor_logits(trained.code_predictor, states, first, frames)
    (trained.codec_head(states).square().sum() + logits.square().sum()).backward()
    assert [name for name, weight in trained.named_parameters() if weight.grad is None] == []


def test_the_codec_is_trained_on_the_sound_that_is_served() -> None:
    config = DecoderConfig.from_directory(CODEC)
    served = Decoder.from_directory(CODEC, torch.float32, CPU)
    trained = Decoder(config)
    load_strict(trained, read_tensors(CODEC), prefix="decoder.", ignored=IGNORED)
    for decoder in (served, trained):
        StateStore(decoder, 1, torch.float32, CPU)
    refold(trained)
    frames = codes(FRAMES)[None]
    whole = trained.waveform(served.quantizer(frames), WholeRows.of(1, FRAMES, CPU)).clamp(-1, 1)
    parts = [
        served(part, Rows(torch.tensor([0]), torch.tensor([begin]), torch.tensor([3]), 3, True))
        for begin, part in zip(range(0, FRAMES, 3), frames.split(3, dim=1), strict=True)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-3, atol=1e-4)


def test_sequences_hold_every_frame_once_as_input_and_once_as_goal_and_then_the_end() -> None:
    writer = Writer(DIRECTORY, ["Hello there.", "How are you?"])
    corpus = Corpus(np.array([0, 1]), np.array([1, 1]), np.array([0, 7]), np.array([7, 5]))
    for seed in range(8):
        lanes = writer.sequence(corpus, np.array([0, 1]), np.random.default_rng(seed))
        fed, wanted = lanes[FED], lanes[WANTED]
        assert fed[fed != NONE].tolist() == list(range(12))
        assert wanted[wanted != NONE].tolist() == [*range(12), END]
        assert np.array_equal(wanted[:-1], fed[1:])
        assert wanted[-1] == END


def test_sequences_for_training_and_validation_share_no_text() -> None:
    texts = np.arange(200)
    corpus = Corpus(texts, texts % 2, texts.astype(np.int64), np.ones(200, np.int32))
    kept, held_out = (np.concatenate(corpus.chosen(held)) for held in (False, True))
    assert len(held_out) == -(-200 // sequences.HELD_OUT)
    assert sorted([*kept, *held_out]) == list(range(200))
