"""From a talker's hidden state and first code to the frame's other 15 codes (model.md 4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from engine_lib.layers import RMSNorm, rotary
from engine_lib.talker.config import TransformerConfig
from engine_lib.talker.transformer import DecoderLayer


class PredictorStack(nn.Module):
    """Embeddings of codes 1..15 (of the talker's width) and the decoder layers."""

    def __init__(self, config: TransformerConfig, groups: int, talker_hidden: int) -> None:
        super().__init__()
        self.codec_embedding = nn.ModuleList(nn.Embedding(config.vocabulary, talker_hidden) for _ in range(groups - 1))
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.rms_norm_eps)


class CodePredictor(nn.Module):
    """A small transformer that runs 16 positions a frame with a fresh memory."""

    def __init__(self, config: TransformerConfig, groups: int, talker_hidden: int) -> None:
        super().__init__()
        self.config = config
        self.groups = groups
        self.model = PredictorStack(config, groups, talker_hidden)
        self.lm_head = nn.ModuleList(nn.Linear(config.hidden, config.vocabulary, bias=False) for _ in range(groups - 1))
        if config.hidden != talker_hidden:
            self.small_to_mtp_projection: nn.Module = nn.Linear(talker_hidden, config.hidden)
        else:
            self.small_to_mtp_projection = nn.Identity()

    def forward(self, hidden: Tensor, first: Tensor, choose: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Codes 1..15 of one frame.

        hidden [rows, talker_hidden]: the talker's state after its final norm, that chose the first code; first
        [rows, talker_hidden]: the first code's embedding; choose(g, logits [rows, vocabulary]) -> codes [rows].
        Returns [rows, 15].
        """
        rows = hidden.shape[0]
        positions = torch.arange(self.groups, device=hidden.device)
        cos, sin = (table[None, :, None] for table in rotary(positions, self.config.head_dim, self.config.rope_theta))
        memories = [_Growing() for _ in self.model.layers]
        causal = torch.ones(2, 2, dtype=torch.bool, device=hidden.device).tril()[None, None]
        x, start = torch.stack((hidden, first), dim=1), 0
        codes: list[Tensor] = []
        for group in range(1, self.groups):
            width = x.shape[1]
            here = slice(start, start + width)
            state = self.small_to_mtp_projection(x)
            for layer, memory in zip(self.model.layers, memories, strict=True):
                state = layer(state, cos[:, here], sin[:, here], memory, causal if width == 2 else None)
            start += width
            logits = self.lm_head[group - 1](self.model.norm(state[:, -1]))
            codes.append(choose(group, logits))
            x = self.model.codec_embedding[group - 1](codes[-1]).view(rows, 1, -1)
        return torch.stack(codes, dim=1)


class _Growing:
    """One layer's keys and values of this frame so far."""

    def __init__(self) -> None:
        self._seen: tuple[Tensor, Tensor] | None = None

    def __call__(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self._seen is not None:
            keys, values = torch.cat((self._seen[0], keys), dim=1), torch.cat((self._seen[1], values), dim=1)
        self._seen = (keys, values)
        return self._seen
