"""Checkpoints of the published sizes with random weights: for measuring speed where the real ones can't be had.

    python -m engine_lib.random_model 1.7B DIRECTORY

writes one in the official layout. Only the shapes are true: what it speaks is noise, and it never means to stop.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers

from engine_lib import noise
from engine_lib.layers import fold
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.model import Talker

SIZES = {"1.7B": 2048, "0.6B": 1024}  # the talker's width; the rest follows (model.md 1.1)
TEXT_VOCABULARY = 151_936
WORDS = 151_643  # of the tokenizer, before its control tokens


def write(directory: Path, size: str, device: torch.device) -> None:
    """Write the checkpoint of `size` into the new folder `directory`; weights are drawn on `device`."""
    noise.write_checkpoint(directory, talker_config(size), codec_config(), merges(), torch.bfloat16, device)


def talker(config: TalkerConfig, device: torch.device) -> Talker:
    """A bf16 talker of random weights, straight in the memory of `device`."""
    with torch.device("meta"):
        made = Talker(config)
    made = made.to(torch.bfloat16).to_empty(device=device)
    weights = noise.random_weights(made, "", torch.Generator(device).manual_seed(0), torch.bfloat16)
    for name, target in made.state_dict(keep_vars=True).items():
        target.data.copy_(weights.pop(name))
    fold(made)
    return made.eval().requires_grad_(False)


def talker_config(size: str) -> dict[str, Any]:
    """config.json of CustomVoice in `size`, a key of SIZES."""
    layer = {
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_code_groups": 16,
    }
    hidden = SIZES[size]
    predictor = {"vocab_size": 2048, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5}
    return {
        "model_type": "qwen3_tts",
        "tts_model_size": size.lower().replace(".", "b")[:3],
        "tts_model_type": "custom_voice",
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "talker_config": layer
        | {
            "vocab_size": 3072,
            "text_vocab_size": TEXT_VOCABULARY,
            "text_hidden_size": 2048,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": 28,
            "codec_pad_id": 2148,
            "codec_bos_id": 2149,
            "codec_eos_token_id": 2150,
            "codec_think_id": 2154,
            "codec_nothink_id": 2155,
            "codec_think_bos_id": 2156,
            "codec_think_eos_id": 2157,
            "codec_language_id": {"english": 2050, "chinese": 2055},
            "spk_id": {"ryan": 3061, "vivian": 3065},
            "spk_is_dialect": {"ryan": False, "vivian": False},
            "code_predictor_config": layer | predictor,
        },
    }


def codec_config() -> dict[str, Any]:
    """speech_tokenizer/config.json of the published codec (model.md 6)."""
    return {
        "model_type": "qwen3_tts_tokenizer_12hz",
        "output_sample_rate": 24000,
        "decoder_config": {
            "codebook_size": 2048,
            "codebook_dim": 512,
            "num_quantizers": 16,
            "latent_dim": 1024,
            "hidden_size": 512,
            "intermediate_size": 1024,
            "num_hidden_layers": 8,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 64,
            "sliding_window": 72,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "decoder_dim": 1536,
            "upsampling_ratios": [2, 2],
            "upsample_rates": [8, 5, 4, 3],
        },
    }


def merges() -> list[tuple[str, str]]:
    """Byte pairs, then pairs of pairs of letters, as many as a tokenizer of WORDS words has."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = list(itertools.product(alphabet, alphabet))
    letters = [first + second for first, second in itertools.product("etaoinshrdlucmfwypvbgkjqxz", repeat=2)]
    longer = itertools.product(letters, letters)
    return pairs + list(itertools.islice(longer, WORDS - len(alphabet) - len(pairs)))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.random_model", description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("directory", type=Path, help="a new folder for the checkpoint")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    write(arguments.directory, arguments.size, device)


if __name__ == "__main__":
    main()
