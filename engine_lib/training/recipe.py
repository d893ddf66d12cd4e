"""What the voice is: its sizes, ids and names, as the official configuration files say them. Knows no tensors."""

from __future__ import annotations

from typing import Any

from engine_lib.talker.config import SUPPRESSED_TAIL
from engine_lib.wire import CODEBOOKS

SPEAKERS = {"nora": "cmu_us_slt", "hugo": "cmu_us_rms"}  # our names, and flite's
LANGUAGE = "english"
CODES = 128  # entries of a codebook
TEXT_TOKENS = 576  # 256 bytes and 320 merges; `assistant`, `user` and the control tokens come on top
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>")

# Places in the codec's vocabulary behind the codes, in the order of the published checkpoints.
CODEC_IDS = {
    "codec_pad_id": CODES,
    "codec_bos_id": CODES + 1,
    "codec_eos_token_id": CODES + 2,
    "codec_think_id": CODES + 6,
    "codec_nothink_id": CODES + 7,
    "codec_think_bos_id": CODES + 8,
    "codec_think_eos_id": CODES + 9,
}
LANGUAGE_ID = CODES + 10
FIRST_SPEAKER_ID = CODES + 32

_LAYER = {
    "attention_bias": False,
    "attention_dropout": 0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "num_code_groups": CODEBOOKS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
}
PREDICTOR = {
    "vocab_size": CODES,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
TALKER = {
    "vocab_size": CODES + SUPPRESSED_TAIL,
    "text_hidden_size": 128,
    "hidden_size": 256,
    "intermediate_size": 416,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 64,
}
DECODER = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "codebook_dim": 128,
    "codebook_size": CODES,
    "decoder_dim": 176,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "latent_dim": 128,
    "layer_scale_initial_scale": 0.1,
    "max_position_embeddings": 8000,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_quantizers": CODEBOOKS,
    "num_semantic_quantizers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "sliding_window": 24,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
}
# Nothing is cloned from this voice, but the official package wants the codec's other half to be there.
ENCODER = {
    "model_type": "mimi",
    "hidden_act": "gelu",
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "audio_channels": 1,
    "codebook_dim": 8,
    "codebook_size": CODES,
    "compress": 2,
    "dilation_growth_rate": 2,
    "frame_rate": 12.5,
    "head_dim": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "max_position_embeddings": 8000,
    "num_attention_heads": 2,
    "num_filters": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "num_quantizers": CODEBOOKS,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "residual_kernel_size": 3,
    "sampling_rate": 24000,
    "sliding_window": 250,
    "upsample_groups": 32,
    "upsampling_ratios": [8, 6, 5, 4],
    "use_causal_conv": True,
    "vector_quantization_hidden_dimension": 8,
}


def config(vocabulary: dict[str, int]) -> dict[str, Any]:
    """config.json for the tokenizer's `vocabulary` (its words, without SPECIAL, which follow)."""
    special = {name: len(vocabulary) + place for place, name in enumerate(SPECIAL)}
    rows = -(-(len(vocabulary) + len(SPECIAL)) // 8) * 8
    talker = _LAYER | {
        "model_type": "qwen3_tts_talker",
        "max_position_embeddings": 32768,
        "position_id_per_seconds": 13,
        "rope_scaling": {
            "interleaved": True,
            "mrope_section": [12, 10, 10],
            "rope_type": "default",
            "type": "default",
        },
        "text_vocab_size": rows,
        "codec_language_id": {LANGUAGE: LANGUAGE_ID},
        "spk_id": {name: FIRST_SPEAKER_ID + place for place, name in enumerate(SPEAKERS)},
        "spk_is_dialect": dict.fromkeys(SPEAKERS, False),
    }
    predictor = {
        "model_type": "qwen3_tts_talker_code_predictor",
        "layer_types": ["full_attention"] * PREDICTOR["num_hidden_layers"],
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "rope_scaling": None,
    }
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "tiny",
        "tts_model_type": "custom_voice",
        "assistant_token_id": vocabulary["assistant"],
        "im_start_token_id": special["<|im_start|>"],
        "im_end_token_id": special["<|im_end|>"],
        "tts_pad_token_id": special["<tts_pad>"],
        "tts_bos_token_id": special["<tts_text_bos>"],
        "tts_eos_token_id": special["<tts_text_eod>"],
        "talker_config": talker | TALKER | CODEC_IDS | {"code_predictor_config": _LAYER | predictor | PREDICTOR},
        "transformers_version": "4.57.3",
    }


def codec_config() -> dict[str, Any]:
    """speech_tokenizer/config.json."""
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_valid_num_quantizers": CODEBOOKS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": 1920,
        "encode_downsample_rate": 1920,
        "decoder_config": DECODER,
        "encoder_config": ENCODER,
        "transformers_version": "4.57.3",
    }
