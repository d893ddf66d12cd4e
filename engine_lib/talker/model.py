"""The talker: text and past frames in, hidden states and first-code logits out (model.md 2.1, 3).

Attribute names are the checkpoint's tensor names. Plain torch; the oracle of any faster path.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.checkpoint import load_strict, read_tensors
from engine_lib.layers import RMSNorm, fold, rotary
from engine_lib.talker.code_predictor import CodePredictor
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.kv_cache import KVCache
from engine_lib.talker.transformer import DecoderLayer


class TextProjection(nn.Module):
    """Text embedding's width to the talker's: fc2(silu(fc1(x)))."""

    def __init__(self, text_hidden: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_hidden, text_hidden)
        self.linear_fc2 = nn.Linear(text_hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., text_hidden] -> [..., hidden]."""
        return self.linear_fc2(F.silu(self.linear_fc1(x)))  # type: ignore[no-any-return]


class TalkerStack(nn.Module):
    """Both embeddings and the decoder layers."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.text_embedding = nn.Embedding(config.text_vocabulary, config.text_hidden)
        self.codec_embedding = nn.Embedding(config.talker.vocabulary, config.talker.hidden)
        self.layers = nn.ModuleList(DecoderLayer(config.talker) for _ in range(config.talker.layers))
        self.norm = RMSNorm(config.talker.hidden, config.talker.rms_norm_eps)


class Talker(nn.Module):
    """The whole language model of a checkpoint, the code predictor included."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        self.model = TalkerStack(config)
        self.text_projection = TextProjection(config.text_hidden, config.talker.hidden)
        self.codec_head = nn.Linear(config.talker.hidden, config.talker.vocabulary, bias=False)
        self.code_predictor = CodePredictor(config.predictor, config.code_groups, config.talker.hidden)

    @classmethod
    def from_directory(cls, directory: Path, config: TalkerConfig, dtype: torch.dtype, device: torch.device) -> Talker:
        """Build and fill from `directory`. Raises ConfigurationError naming any tensor that doesn't fit."""
        with torch.device("meta"):
            talker = cls(config)
        talker = talker.to(dtype).to_empty(device=device)
        load_strict(talker, read_tensors(directory), prefix="talker.", ignored=("speaker_encoder.*",))
        fold(talker)
        return talker.eval().requires_grad_(False)

    def prompt_embedding(self, text: Tensor, codec: Tensor, side: Tensor | None = None) -> Tensor:
        """Sum of the text-side and codec-side embeddings of ids [...]; a negative id adds nothing. -> [..., hidden].

        `side` [..., hidden], of a cloned voice, is added as it is; zeros where there is none.
        """
        x = self.text_side(text) + _embedded(self.model.codec_embedding, codec)
        return x if side is None else x + side

    def voice_embedding(self, x_vector: Tensor, codes: Tensor) -> Tensor:
        """What a prompt's lane of the voice picks from: x-vector [hidden], frames [n, 16] -> [1 + n, hidden]."""
        return torch.cat((x_vector.to(self.codec_head.weight.dtype)[None], self.frame_embedding(codes)))

    def text_side(self, text: Tensor) -> Tensor:
        """Projected text embeddings of ids [...]; zeros for negative ids. -> [..., hidden]."""
        projected = self.text_projection(self.model.text_embedding(text.clamp(min=0)))
        return projected * (text >= 0)[..., None]  # type: ignore[no-any-return]

    def frame_embedding(self, codes: Tensor) -> Tensor:
        """Sum of the 16 embeddings of frames [rows, 16] -> [rows, hidden] (model.md 3)."""
        total = self.model.codec_embedding(codes[:, 0])
        for group, table in enumerate(self.code_predictor.model.codec_embedding, start=1):
            total = total + table(codes[:, group])
        return total  # type: ignore[no-any-return]

    def forward(self, x: Tensor, cache: KVCache, slots: Tensor, positions: Tensor, context: int) -> Tensor:
        """Run `x` [rows, width, hidden] at `positions` [rows, width] of `slots` [rows]; see KVCache.span for context.

        Returns the states after the final norm, [rows, width, hidden].
        """
        span = cache.span(slots, positions, context)
        cos, sin = (
            table[:, :, None] for table in rotary(positions, self.config.talker.head_dim, self.config.talker.rope_theta)
        )
        for number, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, functools.partial(cache.extend, number, span), span.mask)
        return self.model.norm(x)  # type: ignore[no-any-return]


def _embedded(table: nn.Embedding, ids: Tensor) -> Tensor:
    return table(ids.clamp(min=0)) * (ids >= 0)[..., None]  # type: ignore[no-any-return]
