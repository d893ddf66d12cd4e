"""A small checkpoint of random weights in the official layout, made on the spot: every part runs, only noise comes out.

For trying the service itself, where what is said doesn't matter.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from torch import Tensor, nn

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import Decoder
from engine_lib.talker.config import SUPPRESSED_TAIL, TalkerConfig
from engine_lib.talker.model import Talker

NAME = "noise"
VERSION = 1  # part of the cache path: raise it when what is made changes
CODEBOOK = 64
WORDS = 256  # one token a byte
LAYER = {
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_code_groups": 16,
}


def checkpoint() -> Path:
    """The checkpoint's directory in the user's cache, made at the first call. Safe when two processes call at once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qwen3-tts-triton"
    directory = cache / f"{NAME}-{VERSION}"
    if not directory.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            write(Path(made) / NAME)
            try:
                (Path(made) / NAME).rename(directory)
            except OSError:
                if not directory.is_dir():  # else the other process was first, with the same weights
                    raise
    return directory


def write(directory: Path) -> None:
    """Write the checkpoint into the new folder `directory`, the same bytes every time."""
    write_checkpoint(directory, _talker_config(), _codec_config(), [], torch.float32, torch.device("cpu"))


def write_checkpoint(
    directory: Path,
    talker_config: dict[str, Any],
    codec_config: dict[str, Any],
    merges: Sequence[tuple[str, str]],
    talker_dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Write a checkpoint into the new folder `directory`, with weights drawn on `device`.

    The tokenizer knows every byte, and what `merges` makes of them. The codec's weights are float32, as published.
    """
    generator = torch.Generator(device).manual_seed(0)
    codec = directory / "speech_tokenizer"
    codec.mkdir(parents=True)
    _write_json(directory / "config.json", talker_config)
    _write_json(directory / "generation_config.json", {})
    words = sorted(pre_tokenizers.ByteLevel.alphabet()) + [first + second for first, second in merges]
    _write_json(directory / "vocab.json", {word: number for number, word in enumerate(words)})
    lines = ["#version: 0.2", *(f"{first} {second}" for first, second in merges)]
    (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(codec / "config.json", codec_config)
    with torch.device("meta"):
        talker = Talker(TalkerConfig.from_directory(directory))
        decoder = Decoder(DecoderConfig.from_directory(codec))
    for module, prefix, dtype, folder in (
        (talker, "talker.", talker_dtype, directory),
        (decoder, "decoder.", torch.float32, codec),
    ):
        weights = random_weights(module, prefix, generator, dtype)
        save_file({name: tensor.cpu() for name, tensor in weights.items()}, folder / "model.safetensors")


def random_weights(module: nn.Module, prefix: str, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights that keep activations near unit size, under the official names, on the generator's device."""
    return {
        prefix + name: _weights(name, target.shape, generator).to(dtype) for name, target in module.state_dict().items()
    }


def _weights(name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
    device = generator.device
    if name.endswith(("cluster_usage", "norm.weight", "scale", "gamma")):
        return torch.ones(shape, device=device)
    if name.endswith(("alpha", "beta", "bias")):
        return torch.zeros(shape, device=device)
    values = torch.randn(shape, generator=generator, device=device)
    if "embedding" in name:
        return values
    return values / math.sqrt(math.prod(shape[1:]))


def _talker_config() -> dict[str, Any]:
    special = WORDS
    codes = CODEBOOK
    return {
        "model_type": "qwen3_tts",
        "tts_model_size": "1b7",
        "tts_model_type": "custom_voice",
        "im_start_token_id": special,
        "im_end_token_id": special + 1,
        "tts_pad_token_id": special + 2,
        "tts_bos_token_id": special + 3,
        "tts_eos_token_id": special + 4,
        "talker_config": LAYER
        | {
            "vocab_size": codes + SUPPRESSED_TAIL,
            "text_vocab_size": WORDS + 8,
            "text_hidden_size": 48,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "codec_pad_id": codes + 100,
            "codec_bos_id": codes + 101,
            "codec_eos_token_id": codes + 102,
            "codec_think_id": codes + 106,
            "codec_nothink_id": codes + 107,
            "codec_think_bos_id": codes + 108,
            "codec_think_eos_id": codes + 109,
            "codec_language_id": {"english": codes + 2, "chinese": codes + 7},
            "spk_id": {"hiss": codes + 200, "hum": codes + 201},
            "spk_is_dialect": {"hiss": False, "hum": False},
            "code_predictor_config": LAYER
            | {"vocab_size": codes, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2},
        },
    }


def _codec_config() -> dict[str, Any]:
    return {
        "model_type": "qwen3_tts_tokenizer_12hz",
        "output_sample_rate": 24000,
        "decoder_config": {
            "codebook_size": CODEBOOK,
            "codebook_dim": 32,
            "num_quantizers": 16,
            "latent_dim": 32,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "sliding_window": 16,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "decoder_dim": 64,
            "upsampling_ratios": [2, 2],
            "upsample_rates": [8, 5, 4, 3],
        },
    }


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
