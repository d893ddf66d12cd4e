"""What speech_tokenizer/config.json says of the decoder, checked once; no size is assumed (model.md 1.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from engine_lib import wire
from engine_lib.errors import ConfigurationError
from engine_lib.files import Section, read_json

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
        top = Section(read_json(path), str(path))
        if top.text("model_type") != MODEL_TYPE:
            raise ConfigurationError(
                f"{path}: model_type is {top.text('model_type')!r}, not {MODEL_TYPE!r}.", param="model_type"
            )
        if top.size("output_sample_rate") != wire.SAMPLE_RATE:
            raise ConfigurationError(
                f"{path}: output_sample_rate is {top.size('output_sample_rate')}, not {wire.SAMPLE_RATE}.",
                param="output_sample_rate",
            )
        data = top.section("decoder_config")
        config = cls(
            codebook_size=data.size("codebook_size"),
            codebook_dim=data.size("codebook_dim"),
            quantizers=data.size("num_quantizers"),
            latent=data.size("latent_dim"),
            hidden=data.size("hidden_size"),
            intermediate=data.size("intermediate_size"),
            layers=data.size("num_hidden_layers"),
            heads=data.size("num_attention_heads"),
            kv_heads=data.size("num_key_value_heads"),
            head_dim=data.size("head_dim"),
            window=data.size("sliding_window"),
            rms_norm_eps=data.scale("rms_norm_eps"),
            rope_theta=data.scale("rope_theta"),
            channels=data.size("decoder_dim"),
            upsampling_ratios=data.sizes("upsampling_ratios"),
            upsample_rates=data.sizes("upsample_rates"),
        )
        config._check(data)
        return config

    def _check(self, data: Section) -> None:
        """What the layers and the wire take for granted."""
        samples = math.prod(self.upsampling_ratios) * math.prod(self.upsample_rates)
        _require(samples == wire.SAMPLES_PER_FRAME, "upsample_rates", f"make {samples} samples of a frame")
        _require(self.quantizers == wire.CODEBOOKS, "num_quantizers", f"is {self.quantizers}")
        _require(self.codebook_dim % 2 == 0, "codebook_dim", f"is odd: {self.codebook_dim}")
        _require(self.head_dim % 2 == 0, "head_dim", f"is odd: {self.head_dim}")
        _require(self.heads % self.kv_heads == 0, "num_key_value_heads", f"doesn't divide {self.heads} heads")
        _require(self.channels % 2 ** len(self.upsample_rates) == 0, "decoder_dim", f"can't be halved: {self.channels}")
        activation = data.text("hidden_act", "silu")
        _require(activation == "silu", "hidden_act", f"is {activation!r}")
        _require(not data.flag("attention_bias", False), "attention_bias", "is on")


def _require(holds: bool, key: str, what: str) -> None:
    if not holds:
        raise ConfigurationError(f"decoder_config: '{key}' {what}, which this decoder can't be built from.", param=key)
