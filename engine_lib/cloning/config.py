"""What a Base checkpoint's files say of its two encoders, checked once; no size is assumed (model.md 1.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from engine_lib import wire
from engine_lib.errors import ConfigurationError
from engine_lib.files import Section, read_json


@dataclass(frozen=True)
class SpeakerConfig:
    """Sizes of the speaker encoder. What real files leave out has the official class's default."""

    size: int  # of the x-vector: the talker's hidden size
    mels: int
    channels: tuple[int, ...]  # of the first convolution, the SE-Res2Net blocks and the aggregation
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention_channels: int
    res2net_scale: int
    se_channels: int

    @classmethod
    def from_directory(cls, directory: Path) -> SpeakerConfig:
        """Read `directory`/config.json. Raises ConfigurationError naming the key that's missing or wrong."""
        data = Section(read_json(directory / "config.json"), "config.json").section("speaker_encoder_config")
        if data.whole("sample_rate") != wire.SAMPLE_RATE:
            raise ConfigurationError(f"{data.where}: sample_rate is not {wire.SAMPLE_RATE}.", param="sample_rate")
        config = cls(
            size=data.size("enc_dim"),
            mels=data.size("mel_dim", 128),
            channels=data.sizes("enc_channels", (512, 512, 512, 512, 1536)),
            kernels=data.sizes("enc_kernel_sizes", (5, 3, 3, 3, 1)),
            dilations=data.sizes("enc_dilations", (1, 2, 3, 4, 1)),
            attention_channels=data.size("enc_attention_channels", 128),
            res2net_scale=data.size("enc_res2net_scale", 8),
            se_channels=data.size("enc_se_channels", 128),
        )
        if not len(config.channels) == len(config.kernels) == len(config.dilations) >= 3:
            raise ConfigurationError(f"{data.where}: channels, kernels and dilations differ in number.")
        if any(width % config.res2net_scale for width in config.channels[1:-1]):
            raise ConfigurationError(f"{data.where}: 'enc_res2net_scale' doesn't divide the channels.")
        return config


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of the codec's encoder, from samples to codes."""

    filters: int  # of the first convolution; each stride doubles them
    kernel: int
    residual_kernel: int
    last_kernel: int
    compress: int  # a residual block's inner width is its width over this
    ratios: tuple[int, ...]  # strides, the first layer's first
    hidden: int
    intermediate: int
    layers: int
    heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    codebook_size: int
    codebook_dim: int
    quantizers: int  # that the file holds, the semantic one included; the first wire.CODEBOOKS are used

    @classmethod
    def from_directory(cls, directory: Path) -> EncoderConfig:
        """Read `directory`/config.json. Raises ConfigurationError naming the key that's missing or wrong."""
        top = Section(read_json(directory / "config.json"), str(directory / "config.json"))
        data = top.section("encoder_config")
        config = cls(
            filters=data.size("num_filters"),
            kernel=data.size("kernel_size"),
            residual_kernel=data.size("residual_kernel_size"),
            last_kernel=data.size("last_kernel_size"),
            compress=data.size("compress"),
            ratios=tuple(reversed(data.sizes("upsampling_ratios"))),
            hidden=data.size("hidden_size"),
            intermediate=data.size("intermediate_size"),
            layers=data.size("num_hidden_layers"),
            heads=data.size("num_attention_heads"),
            head_dim=data.size("head_dim"),
            norm_eps=data.scale("norm_eps"),
            rope_theta=data.scale("rope_theta"),
            codebook_size=data.size("codebook_size"),
            codebook_dim=data.size("codebook_dim"),
            quantizers=data.size("num_quantizers"),
        )
        _require(top.size("input_sample_rate") == wire.SAMPLE_RATE, "input_sample_rate")
        _require(top.size("encoder_valid_num_quantizers") == wire.CODEBOOKS, "encoder_valid_num_quantizers")
        _require(math.prod(config.ratios) * 2 == wire.SAMPLES_PER_FRAME, "upsampling_ratios")
        _require(config.quantizers >= wire.CODEBOOKS, "num_quantizers")
        _require(config.heads == data.size("num_key_value_heads"), "num_key_value_heads")
        _require(data.size("num_semantic_quantizers") == 1, "num_semantic_quantizers")
        _require(data.size("num_residual_layers") == 1, "num_residual_layers")
        _require(data.text("hidden_act") == "gelu", "hidden_act")
        _require(not data.flag("use_conv_shortcut", False), "use_conv_shortcut")
        return config


def _require(holds: bool, key: str) -> None:
    if not holds:
        raise ConfigurationError(f"encoder_config: '{key}' is one that this encoder can't be built from.", param=key)
