"""From samples to codes, the codec's other half: the encoder of Mimi (model.md 8).

Attribute names are the checkpoint's tensor names. Always float32: the codes are nearest neighbours, and it runs once a
voice.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.checkpoint import load_strict, read_tensors
from engine_lib.cloning.config import EncoderConfig
from engine_lib.layers import rotary, rotate
from engine_lib.wire import CODEBOOKS, SAMPLES_PER_FRAME

IGNORED = ("encoder.quantizer.*.output_proj.weight", "encoder.quantizer.*.codebook.initialized")


class Conv(nn.Module):
    """A convolution that looks back only; the last window is filled up behind the end."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, bias: bool = True, pad: str = "constant"
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, bias=bias)
        self._back, self._stride, self._pad = kernel - stride, stride, pad

    def forward(self, x: Tensor) -> Tensor:
        """[1, inputs, columns] -> [1, outputs, columns / stride, rounded up]."""
        missing = -x.shape[-1] % self._stride
        return self.conv(F.pad(x, (self._back, missing), mode=self._pad))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """Two convolutions behind an activation each, added to the input."""

    def __init__(self, channels: int, config: EncoderConfig) -> None:
        super().__init__()
        inner = channels // config.compress
        self.block = nn.ModuleList(
            [nn.ELU(), Conv(channels, inner, config.residual_kernel), nn.ELU(), Conv(inner, channels, 1)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, columns] -> the same."""
        y = x
        for layer in self.block:
            y = layer(y)
        return x + y


class SeaNet(nn.Module):
    """Samples to features at 25 Hz."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = [Conv(1, config.filters, config.kernel)]
        width = config.filters
        for ratio in config.ratios:
            layers += [ResidualBlock(width, config), nn.ELU(), Conv(width, 2 * width, 2 * ratio, ratio)]
            width *= 2
        self.layers = nn.ModuleList([*layers, nn.ELU(), Conv(width, config.hidden, config.last_kernel)])

    def forward(self, x: Tensor) -> Tensor:
        """[1, 1, samples] -> [1, hidden, columns]."""
        for layer in self.layers:
            x = layer(x)
        return x


class Attention(nn.Module):
    """Causal attention over everything before."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        wide = config.heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, wide, bias=False)
        self.k_proj = nn.Linear(config.hidden, wide, bias=False)
        self.v_proj = nn.Linear(config.hidden, wide, bias=False)
        self.o_proj = nn.Linear(wide, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [columns, hidden], cos and sin [columns, head_dim] -> [columns, hidden]."""
        q, k, v = (
            projection(x).view(len(x), self.heads, self.head_dim).transpose(0, 1)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.o_proj(out.transpose(0, 1).reshape(len(x), -1))  # type: ignore[no-any-return]


class Scale(nn.Module):
    """A factor for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[columns, channels] -> the same."""
        return x * self.scale


class FeedForward(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.fc2 = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[columns, hidden] -> the same."""
        return self.fc2(F.gelu(self.fc1(x)))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Pre-norm attention and feed-forward, each scaled and added."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.self_attn_layer_scale = Scale(config.hidden)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden, eps=config.norm_eps)
        self.mlp = FeedForward(config)
        self.mlp_layer_scale = Scale(config.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[columns, hidden] -> the same."""
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """The layers, with no norm behind them."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self._head_dim, self._theta = config.head_dim, config.rope_theta

    def forward(self, x: Tensor) -> Tensor:
        """[columns, hidden] -> the same."""
        cos, sin = rotary(torch.arange(len(x), device=x.device), self._head_dim, self._theta)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


class Codebook(nn.Module):
    """One codebook as training left it: sums of the vectors that fell to each entry, and how many did."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__()
        self.embed_sum = nn.Parameter(torch.empty(entries, size))
        self.cluster_usage = nn.Parameter(torch.empty(entries))

    def table(self) -> Tensor:
        """The entries [entries, size]."""
        return self.embed_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class VectorQuantizer(nn.Module):
    """Holds one codebook under its official name."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__()
        self.codebook = Codebook(entries, size)


class ResidualQuantizer(nn.Module):
    """Codebooks of which each encodes what those before it left over."""

    def __init__(self, codebooks: int, config: EncoderConfig) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(config.hidden, config.codebook_dim, 1, bias=False)
        self.layers = nn.ModuleList(
            VectorQuantizer(config.codebook_size, config.codebook_dim) for _ in range(codebooks)
        )

    def forward(self, features: Tensor, codebooks: int) -> Tensor:
        """[1, hidden, frames] -> codes [frames, codebooks] of the first so many."""
        rest = self.input_proj(features)[0].T
        codes = []
        for layer in self.layers[:codebooks]:
            table = layer.codebook.table()  # type: ignore[operator, union-attr]
            nearest = torch.cdist(rest[None], table[None], compute_mode="donot_use_mm_for_euclid_dist")[0].argmin(dim=1)
            codes.append(nearest)
            rest = rest - table[nearest]
        return torch.stack(codes, dim=1)


class SplitQuantizer(nn.Module):
    """The first codebook (what is said) and the rest (how it sounds), both from the same features."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.semantic_residual_vector_quantizer = ResidualQuantizer(1, config)
        self.acoustic_residual_vector_quantizer = ResidualQuantizer(config.quantizers - 1, config)

    def forward(self, features: Tensor) -> Tensor:
        """[1, hidden, frames] -> codes [frames, CODEBOOKS]."""
        meaning = self.semantic_residual_vector_quantizer(features, 1)
        return torch.cat((meaning, self.acoustic_residual_vector_quantizer(features, CODEBOOKS - 1)), dim=1)


class CodecEncoder(nn.Module):
    """The whole encoder."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = SeaNet(config)
        self.encoder_transformer = Transformer(config)
        self.downsample = Conv(config.hidden, config.hidden, 4, 2, bias=False, pad="replicate")
        self.quantizer = SplitQuantizer(config)

    @classmethod
    def from_directory(cls, directory: Path, device: torch.device) -> CodecEncoder:
        """Build and fill from a speech_tokenizer directory.

        Raises ConfigurationError naming any key or tensor that doesn't fit.
        """
        with torch.device("meta"):
            encoder = cls(EncoderConfig.from_directory(directory))
        encoder = encoder.to_empty(device="cpu")
        load_strict(encoder, read_tensors(directory, "encoder."), prefix="encoder.", ignored=IGNORED)
        return encoder.to(device).eval().requires_grad_(False)

    def features(self, samples: Tensor) -> Tensor:
        """Float32 [samples] at 24 kHz -> [1, hidden, frames] at 12.5 Hz."""
        seen = self.encoder(samples[None, None])
        return self.downsample(self.encoder_transformer(seen[0].T).T[None])  # type: ignore[no-any-return]

    def forward(self, samples: Tensor) -> Tensor:
        """Float32 [samples] at 24 kHz -> codes, int64 [frames, CODEBOOKS]; a frame begun is a frame."""
        frames = math.ceil(len(samples) / SAMPLES_PER_FRAME)
        return self.quantizer(self.features(samples))[:frames]  # type: ignore[no-any-return]
