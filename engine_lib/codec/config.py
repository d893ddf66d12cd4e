"""What speech_tokenizer/config.json says of the decoder, checked once; no size is assumed (model.md 1.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_lib import wire
from engine_lib.checkpoint import read_json
from engine_lib.errors import ConfigurationError

MODEL_TYPE = "qwen3_tts_tokenizer_12hz"


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the codec's decoder, from codes to samples."""

    codebook_size: int  # codes are 0 .. codebook_size - 1
    codebook_dim: int
    quantizers: int
    latent: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int  # frames that attention sees, the present one included
    rms_norm_eps: float
    rope_theta: float
    channels: int  # of the first convolution; each block halves them
    upsampling_ratios: tuple[int, ...]
    upsample_rates: tuple[int, ...]

    @classmethod
    def from_directory(cls, directory: Path) -> DecoderConfig:
        """Read `directory`/config.json. Raises ConfigurationError naming the key that's missing or wrong."""
        path = directory / "config.json"
        top = read_json(path)
        if top.get("model_type") != MODEL_TYPE:
            raise ConfigurationError(
                f"{path}: model_type is {top.get('model_type')!r}, not {MODEL_TYPE!r}.", param="model_type"
            )
        if top.get("output_sample_rate") != wire.SAMPLE_RATE:
            raise ConfigurationError(
                f"{path}: output_sample_rate is {top.get('output_sample_rate')!r}, not {wire.SAMPLE_RATE}.",
                param="output_sample_rate",
            )
        data = top.get("decoder_config")
        if not isinstance(data, dict):
            raise ConfigurationError(f"{path}: 'decoder_config' is missing.", param="decoder_config")
        config = cls(
            codebook_size=_whole(data, "codebook_size"),
            codebook_dim=_whole(data, "codebook_dim"),
            quantizers=_whole(data, "num_quantizers"),
            latent=_whole(data, "latent_dim"),
            hidden=_whole(data, "hidden_size"),
            intermediate=_whole(data, "intermediate_size"),
            layers=_whole(data, "num_hidden_layers"),
            heads=_whole(data, "num_attention_heads"),
            kv_heads=_whole(data, "num_key_value_heads"),
            head_dim=_whole(data, "head_dim"),
            window=_whole(data, "sliding_window"),
            rms_norm_eps=_number(data, "rms_norm_eps"),
            rope_theta=_number(data, "rope_theta"),
            channels=_whole(data, "decoder_dim"),
            upsampling_ratios=_wholes(data, "upsampling_ratios"),
            upsample_rates=_wholes(data, "upsample_rates"),
        )
        config._check(data)
        return config

    def _check(self, data: Mapping[str, Any]) -> None:
        """What the layers and the wire take for granted."""
        samples = math.prod(self.upsampling_ratios) * math.prod(self.upsample_rates)
        _require(samples == wire.SAMPLES_PER_FRAME, "upsample_rates", f"make {samples} samples of a frame")
        _require(self.quantizers == wire.CODEBOOKS, "num_quantizers", f"is {self.quantizers}")
        _require(self.codebook_dim % 2 == 0, "codebook_dim", f"is odd: {self.codebook_dim}")
        _require(self.head_dim % 2 == 0, "head_dim", f"is odd: {self.head_dim}")
        _require(self.heads % self.kv_heads == 0, "num_key_value_heads", f"doesn't divide {self.heads} heads")
        _require(self.channels % 2 ** len(self.upsample_rates) == 0, "decoder_dim", f"can't be halved: {self.channels}")
        activation = data.get("hidden_act", "silu")
        _require(activation == "silu", "hidden_act", f"is {activation!r}")
        _require(not data.get("attention_bias", False), "attention_bias", "is on")


def _require(holds: bool, key: str, what: str) -> None:
    if not holds:
        raise ConfigurationError(f"decoder_config: '{key}' {what}, which this decoder can't be built from.", param=key)


def _value(data: Mapping[str, Any], key: str) -> Any:
    if data.get(key) is None:
        raise ConfigurationError(f"decoder_config: '{key}' is missing.", param=key)
    return data[key]


def _number(data: Mapping[str, Any], key: str) -> float:
    value = _value(data, key)
    if type(value) not in (int, float) or value <= 0:
        raise ConfigurationError(f"decoder_config: '{key}' must be a number above 0, not {value!r}.", param=key)
    return float(value)


def _whole(data: Mapping[str, Any], key: str) -> int:
    value = _value(data, key)
    if type(value) is not int or value < 1:
        raise ConfigurationError(f"decoder_config: '{key}' must be a whole number above 0, not {value!r}.", param=key)
    return value


def _wholes(data: Mapping[str, Any], key: str) -> tuple[int, ...]:
    value = _value(data, key)
    if not isinstance(value, list) or not value or any(type(item) is not int or item < 1 for item in value):
        raise ConfigurationError(f"decoder_config: '{key}' must list whole numbers above 0, not {value!r}.", param=key)
    return tuple(value)
