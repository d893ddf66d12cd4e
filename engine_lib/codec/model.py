"""The codec's decoder: 16 codes a frame in, 1,920 samples out, its state kept from call to call (model.md 6).

Attribute names are the checkpoint's tensor names. Plain torch; the oracle of any faster path.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.checkpoint import load_strict, read_tensors
from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.streaming import CausalConv, CausalUpsample, Rows, StreamingLayer
from engine_lib.layers import RMSNorm, SwiGLU, fold, rotary, rotate

# The encoder half and the projections before the codebooks serve encoding alone.
IGNORED = ("encoder.*", "decoder.quantizer.rvq_*.input_proj.weight")
DILATIONS = (1, 3, 9)


class Codebook(nn.Module):
    """One codebook as training left it: sums of the vectors that fell to each entry, and how many did."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__()
        self.embedding_sum = nn.Parameter(torch.empty(entries, size))
        self.cluster_usage = nn.Parameter(torch.empty(entries))

    def table(self) -> Tensor:
        """The entries [entries, size]."""
        return self.embedding_sum / self.cluster_usage.clamp(min=1e-5)[:, None]


class VectorQuantizer(nn.Module):
    """Holds one codebook under its official name."""

    def __init__(self, entries: int, size: int) -> None:
        super().__init__()
        self._codebook = Codebook(entries, size)

    def table(self) -> Tensor:
        """The codebook's entries [entries, size]."""
        return self._codebook.table()


class CodebookStack(nn.Module):
    """Holds the codebooks of one residual quantizer under their official names."""

    def __init__(self, codebooks: int, entries: int, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VectorQuantizer(entries, size) for _ in range(codebooks))


class ResidualQuantizer(nn.Module):
    """The sum of one entry from each of its codebooks, projected."""

    table: Tensor  # [codebooks * entries, size]
    offsets: Tensor  # [codebooks]

    def __init__(self, codebooks: int, entries: int, outputs: int) -> None:
        super().__init__()
        size = outputs // 2
        self.vq = CodebookStack(codebooks, entries, size)
        self.output_proj = nn.Conv1d(size, outputs, 1, bias=False)
        self.register_buffer("table", torch.empty(codebooks * entries, size), persistent=False)
        self.register_buffer("offsets", torch.empty(codebooks, dtype=torch.int64), persistent=False)

    def fold(self) -> None:
        """Compute the tables, in the float32 that the sums are stored in."""
        tables = [layer.table() for layer in self.vq.layers]  # type: ignore[operator]
        self.table.copy_(torch.cat(tables))
        self.offsets.copy_(torch.arange(len(tables)) * len(tables[0]))

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [rows, frames, codebooks] -> [rows, outputs, frames]."""
        total = F.embedding(codes + self.offsets, self.table).sum(dim=2)
        return self.output_proj(total.transpose(1, 2))  # type: ignore[no-any-return]


class Quantizer(nn.Module):
    """The first codebook (what is said) and the rest (how it sounds), each projected, then added."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.rvq_first = ResidualQuantizer(1, config.codebook_size, config.codebook_dim)
        self.rvq_rest = ResidualQuantizer(config.quantizers - 1, config.codebook_size, config.codebook_dim)

    def forward(self, codes: Tensor) -> Tensor:
        """int64 [rows, frames, quantizers] -> [rows, codebook_dim, frames]."""
        return self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Sight:
    """Shared by all attention layers of a call: rotary angles [rows, 1, frames, head_dim] and who sees whom.

    mask [rows, 1, frames, window - 1 + frames]: True where a frame (row) looks at a kept or new frame (column).
    """

    cos: Tensor
    sin: Tensor
    mask: Tensor

    @classmethod
    def of(cls, rows: Rows, config: DecoderConfig) -> Sight:
        """The angles and mask for `rows`."""
        kept = config.window - 1
        steps = torch.arange(rows.frames, device=rows.starts.device)
        cos, sin = rotary(rows.starts[:, None] + steps, config.head_dim, config.rope_theta)
        column = torch.arange(kept + rows.frames, device=steps.device)
        present = column <= steps[:, None] + kept
        recent = column > steps[:, None] + kept - config.window
        begun = column >= kept - rows.starts[:, None]  # columns before the stream's first frame hold nothing
        return cls(cos[:, None], sin[:, None], ((present & recent) & begun[:, None])[:, None])


class Attention(StreamingLayer):
    """Attention to the last `window` frames; keeps the keys (rotated) and values of all but the present one."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__((2, config.kv_heads, config.window - 1, config.head_dim))
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden, config.heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, rows: Rows, sight: Sight) -> Tensor:
        """[rows, frames, hidden] -> [rows, frames, hidden]."""
        queries = self._heads(self.q_proj(x), self.heads)
        keys, values = self._heads(self.k_proj(x), self.kv_heads), self._heads(self.v_proj(x), self.kv_heads)
        queries = rotate(queries, sight.cos, sight.sin)
        keys = rotate(keys, sight.cos, sight.sin)
        keys, values = rows.extend(self.state, torch.stack((keys, values), dim=1), dim=-2).unbind(1)
        out = F.scaled_dot_product_attention(
            queries, keys, values, sight.mask, enable_gqa=self.heads != self.kv_heads
        )  # [rows, heads, frames, head_dim]
        return self.o_proj(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        """[rows, frames, heads * head_dim] -> [rows, heads, frames, head_dim]."""
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)


class LayerScale(nn.Module):
    """A learned factor for each channel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        return x * self.scale


class TransformerLayer(nn.Module):
    """Attention, then the feed-forward part; each normed before and scaled after, each added to its input."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.self_attn_layer_scale = LayerScale(config.hidden)
        self.post_attention_layernorm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.mlp = SwiGLU(config.hidden, config.intermediate)
        self.mlp_layer_scale = LayerScale(config.hidden)

    def forward(self, x: Tensor, rows: Rows, sight: Sight) -> Tensor:
        """[rows, frames, hidden] -> [rows, frames, hidden]."""
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), rows, sight))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """The layers between a projection in and one out; nothing goes around the whole of it."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.input_proj = nn.Linear(config.latent, config.hidden)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.rms_norm_eps)
        self.output_proj = nn.Linear(config.hidden, config.latent)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, frames, latent] -> [rows, frames, latent]."""
        sight = Sight.of(rows, self.config)
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, rows, sight)
        return self.output_proj(self.norm(x))  # type: ignore[no-any-return]


class ConvNeXt(nn.Module):
    """A depthwise causal convolution, then a channel mix of four times the width, scaled and added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(channels, channels, 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, channels, columns] -> [rows, channels, columns]."""
        y = self.norm(self.dwconv(x, rows).transpose(1, 2))
        y = self.pwconv2(F.gelu(self.pwconv1(y))) * self.gamma
        return x + y.transpose(1, 2)  # type: ignore[no-any-return]


class UpsampleStage(nn.ModuleList):
    """`ratio` columns for each, then a ConvNeXt layer."""

    def __init__(self, channels: int, ratio: int) -> None:
        super().__init__([CausalUpsample(channels, channels, ratio, ratio), ConvNeXt(channels)])

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, channels, columns] -> [rows, channels, columns * ratio]."""
        for layer in self:
            x = layer(x, rows)
        return x


class SnakeBeta(nn.Module):
    """x + sin(exp(alpha) x)^2 / (exp(beta) + 1e-9), for each channel."""

    rate: Tensor  # [channels, 1]
    gain: Tensor  # [channels, 1]

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))
        self.register_buffer("rate", torch.empty(channels, 1), persistent=False)
        self.register_buffer("gain", torch.empty(channels, 1), persistent=False)

    def fold(self) -> None:
        """Compute what doesn't depend on x."""
        self.rate.copy_(self.alpha.exp()[:, None])
        self.gain.copy_(1 / (self.beta.exp()[:, None] + 1e-9))

    def forward(self, x: Tensor) -> Tensor:
        """[rows, channels, columns] -> [rows, channels, columns]."""
        wave = (x * self.rate).sin_()
        return torch.addcmul(x, wave.square_(), self.gain)


class ResidualUnit(nn.Module):
    """Two convolutions behind an activation each, added to the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(channels, channels, 7, dilation=dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, channels, columns] -> [rows, channels, columns]."""
        return x + self.conv2(self.act2(self.conv1(self.act1(x), rows)), rows)  # type: ignore[no-any-return]


class DecoderBlock(nn.Module):
    """Upsampling by `rate`, then three residual units with growing reach."""

    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__()
        units = [ResidualUnit(outputs, dilation) for dilation in DILATIONS]
        self.block = nn.ModuleList([SnakeBeta(inputs), CausalUpsample(inputs, outputs, 2 * rate, rate), *units])

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        """[rows, inputs, columns] -> [rows, outputs, columns * rate]."""
        activation, *streaming = self.block
        x = activation(x)
        for layer in streaming:
            x = layer(x, rows)
        return x


class Decoder(nn.Module):
    """Codes to samples. Needs a StateStore on it before the first call."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        latent = config.latent
        self.quantizer = Quantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, latent, 3)
        self.pre_transformer = Transformer(config)
        self.upsample = nn.ModuleList(UpsampleStage(latent, ratio) for ratio in config.upsampling_ratios)
        widths = [config.channels >> halvings for halvings in range(len(config.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            [
                CausalConv(latent, widths[0], 7),
                *map(DecoderBlock, widths, widths[1:], config.upsample_rates),
                SnakeBeta(widths[-1]),
                CausalConv(widths[-1], 1, 7),
            ]
        )

    @classmethod
    def from_directory(cls, directory: Path, dtype: torch.dtype, device: torch.device) -> Decoder:
        """Build and fill from a speech_tokenizer directory.

        Raises ConfigurationError naming any key or tensor that doesn't fit.
        """
        config = DecoderConfig.from_directory(directory)
        with torch.device("meta"):
            decoder = cls(config)
        decoder = decoder.to_empty(device="cpu")
        load_strict(decoder, read_tensors(directory), prefix="decoder.", ignored=IGNORED)
        decoder = decoder.to(device=device).eval().requires_grad_(False)
        fold(decoder)
        return decoder.to(dtype)

    def forward(self, codes: Tensor, rows: Rows) -> Tensor:
        """int64 [rows, frames, quantizers] -> [rows, frames * 1,920] in -1..1; advances the rows' state."""
        return self.waveform(self.quantizer(codes), rows).clamp(-1, 1)

    def waveform(self, latent: Tensor, rows: Rows) -> Tensor:
        """[rows, codebook_dim, frames], the codes' entries summed -> [rows, frames * 1,920]; advances the state."""
        x = self.pre_conv(latent, rows)
        x = self.pre_transformer(x.transpose(1, 2), rows).transpose(1, 2)
        for stage in self.upsample:
            x = stage(x, rows)
        first, *blocks, activation, last = self.decoder
        x = first(x, rows)
        for block in blocks:
            x = block(x, rows)
        return last(activation(x), rows).squeeze(1)  # type: ignore[no-any-return]
