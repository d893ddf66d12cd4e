from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine_lib.checkpoint import load_strict, read_tensors
from engine_lib.cloning.codec_encoder import CodecEncoder
from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import Decoder
from engine_lib.files import TINY, VOICES
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.model import Talker
from engine_lib.training import export, recipe, words
from engine_lib.training.codec import WEIGHTS as CODEC_WEIGHTS
from engine_lib.training.codec import Codec
from engine_lib.training.talker import WEIGHTS as TALKER_WEIGHTS
from engine_lib.training.talker import Learner

DIRECTORY = VOICES / TINY
CPU = torch.device("cpu")


def test_the_voice_fits_into_12_megabytes_and_has_its_card_and_notices_beside_it() -> None:
    assert sum(path.stat().st_size for path in DIRECTORY.rglob("*") if path.is_file()) <= 12_000_000
    card = (DIRECTORY / "README.md").read_text(encoding="utf-8")
    assert "Carnegie Mellon University" in card
    assert "Princeton University" in card


def test_what_was_trained_is_exported_into_a_checkpoint_that_loads(tmp_path: Path) -> None:
    vocabulary, merges = words.learn(["hello there", "how are you", "fine, thanks"])
    checkpoint = tmp_path / "voice"
    words.write(checkpoint, vocabulary, merges)
    config = TalkerConfig.from_directory(checkpoint)
    learner = Learner(config)
    save_file(
        {name: tensor.to(torch.bfloat16) for name, tensor in learner.talker.state_dict().items() if "._" not in name},
        tmp_path / TALKER_WEIGHTS,
    )
    codec = Codec(DecoderConfig.from_directory(checkpoint / "speech_tokenizer"))
    save_file(codec.weights(), tmp_path / CODEC_WEIGHTS)
    export.export(tmp_path, tmp_path, checkpoint)
    talker = Talker.from_directory(checkpoint, config, torch.float32, CPU)
    kept = learner.talker.model.codec_embedding.weight[: recipe.CODES].to(torch.bfloat16).float()
    assert torch.equal(talker.model.codec_embedding.weight[: recipe.CODES], kept)
    decoder = Decoder.from_directory(checkpoint / "speech_tokenizer", torch.float32, CPU)
    entries = codec.decoder.quantizer.rvq_first.vq.layers[0].table().to(torch.bfloat16).float()
    assert torch.equal(decoder.quantizer.rvq_first.table, entries)
    CodecEncoder.from_directory(checkpoint / "speech_tokenizer", CPU)


def test_the_shipped_configuration_is_the_recipes() -> None:
    assert TalkerConfig.from_directory(DIRECTORY).speaker_ids == {
        name: recipe.FIRST_SPEAKER_ID + place for place, name in enumerate(recipe.SPEAKERS)
    }
    decoder = Decoder(DecoderConfig.from_directory(DIRECTORY / "speech_tokenizer"))
    load_strict(
        decoder,
        read_tensors(DIRECTORY / "speech_tokenizer", "decoder."),
        prefix="decoder.",
        ignored=("*.input_proj.*",),
    )
    assert {tensor.dtype for tensor in load_file(DIRECTORY / "model.safetensors").values()} == {torch.bfloat16}
