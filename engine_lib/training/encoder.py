"""The codec's side that is needed for training alone: from samples to latent vectors, and the codebooks' learning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.codec.model import Codebook, ResidualQuantizer, VectorQuantizer
from engine_lib.codec.model import Quantizer as CodebookPair
from engine_lib.training.spectra import mel_filters

WINDOW, HOP, BANDS = 1024, 240, 100
DECAY = 0.98  # of the codebooks' moving sums


class _Normed(nn.Module):
    """LayerNorm over channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, channels: int, kernel: int = 5) -> None:
        super().__init__()
        self.norm = _Normed(channels)
        self.look = nn.Conv1d(channels, channels, kernel, padding=kernel // 2)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.gelu(self.look(self.norm(x))))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """24 kHz samples to one latent vector a frame. Looks both ways: nobody encodes a stream with it."""

    filters: Tensor
    window: Tensor

    def __init__(self, size: int, channels: int = 256) -> None:
        super().__init__()
        self.register_buffer("filters", mel_filters(WINDOW, BANDS) * 20)
        self.register_buffer("window", torch.hann_window(WINDOW))
        layers: list[nn.Module] = [nn.Conv1d(BANDS, channels, 5, padding=2)]
        for _ in range(3):  # 100 columns a second to 12.5
            layers += [_Block(channels), _Block(channels), nn.Conv1d(channels, channels, 4, 2, 1)]
        layers += [_Block(channels, 3), _Block(channels, 3), _Normed(channels), nn.Conv1d(channels, size, 1)]
        self.layers = nn.Sequential(*layers)

    def features(self, samples: Tensor) -> Tensor:
        """[rows, frames * 1,920] -> log mel [rows, BANDS, frames * 8]."""
        around = (WINDOW - HOP) // 2
        padded = F.pad(samples, (around, around), mode="reflect")
        spectrum = torch.stft(padded, WINDOW, HOP, WINDOW, self.window, center=False, return_complex=True).abs()
        mel = (spectrum.transpose(1, 2) @ self.filters).clamp(min=1e-4).log()
        return mel.transpose(1, 2) * 0.25 + 0.5

    def forward(self, features: Tensor) -> Tensor:
        """-> [rows, size, frames], each vector of zero mean and unit variance."""
        x = self.layers(features).transpose(1, 2)
        return F.layer_norm(x, (x.shape[-1],)).transpose(1, 2)


class Quantizing(nn.Module):
    """A decoder's codebooks while they learn: nearest entries, straight-through gradients, moving sums, revival."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first_in = nn.Conv1d(size, size // 2, 1, bias=False)
        self.rest_in = nn.Conv1d(size, size // 2, 1, bias=False)

    def forward(self, codebooks: CodebookPair, latent: Tensor, training: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[rows, size, frames] -> the quantised latent, codes [rows, 16, frames], commitment loss, and the first
        codebook's entries [rows * frames, size / 2].

        While training, half of the rows use but some of the later codebooks, so that the early ones carry the most.
        """
        rows, _, frames = latent.shape
        used = None
        if training:
            device = latent.device
            some = torch.randint(1, 16, (rows,), device=device)
            used = torch.where(torch.rand(rows, device=device) < 0.5, 15, some)
            used = used[:, None].expand(rows, frames).reshape(-1)
        first, codes, loss, entries = self._stack(codebooks.rvq_first, self.first_in, latent, training, None)
        rest, others, more, _ = self._stack(codebooks.rvq_rest, self.rest_in, latent - first.detach(), training, used)
        return first + rest, torch.cat([codes, others], dim=1), loss + more, entries

    def _stack(
        self, stack: ResidualQuantizer, projection: nn.Conv1d, latent: Tensor, training: bool, used: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows, _, frames = latent.shape
        wanted = projection(latent).float().transpose(1, 2).flatten(0, 1)  # [rows * frames, size / 2]
        left, total, codes = wanted, torch.zeros_like(wanted), []
        loss = wanted.new_zeros(())
        for number, codebook in enumerate(_codebooks(stack)):
            code, entry = _nearest(codebook, left.detach(), training)
            mask = 1.0 if used is None else (number < used).float()[:, None]
            loss = loss + ((left - entry).square().mean(dim=1, keepdim=True) * mask).mean()
            total = total + entry * mask
            left = left - entry
            codes.append(code)
        through = wanted + (total - wanted).detach()
        out = stack.output_proj(through.view(rows, frames, -1).transpose(1, 2))
        return out, torch.stack(codes, dim=1).view(rows, frames, -1).transpose(1, 2), loss, through

    @torch.no_grad()
    def revive(self, codebooks: CodebookPair, latent: Tensor, share: float) -> None:
        """Give entries used less than `share` of the average new places among the vectors that there are."""
        first = None
        for stack, projection in ((codebooks.rvq_first, self.first_in), (codebooks.rvq_rest, self.rest_in)):
            x = latent if first is None else latent - first
            left = projection(x).float().transpose(1, 2).flatten(0, 1)
            total = torch.zeros_like(left)
            for codebook in _codebooks(stack):
                usual = codebook.cluster_usage.mean()
                dead = codebook.cluster_usage < share * usual
                picked = left[torch.randint(0, len(left), (len(dead),), device=left.device)] * usual * 0.5
                codebook.embedding_sum.copy_(torch.where(dead[:, None], picked, codebook.embedding_sum))
                codebook.cluster_usage.copy_(torch.where(dead, usual * 0.5, codebook.cluster_usage))
                _, entry = _nearest(codebook, left, False)
                left, total = left - entry, total + entry
            if first is None:
                rows, _, frames = latent.shape
                first = stack.output_proj(total.view(rows, frames, -1).transpose(1, 2))


def _codebooks(stack: ResidualQuantizer) -> list[Codebook]:
    layers = [layer for layer in stack.vq.layers if isinstance(layer, VectorQuantizer)]
    return [layer._codebook for layer in layers]


def _nearest(codebook: Codebook, vectors: Tensor, training: bool) -> tuple[Tensor, Tensor]:
    """The nearest entry's number and itself; while training, the sums move towards `vectors`."""
    table = codebook.table().detach()
    distance = vectors.square().sum(1, keepdim=True) - 2 * vectors @ table.T + table.square().sum(1)
    code = distance.argmin(1)
    if training:
        with torch.no_grad():
            hits = (code[:, None] == torch.arange(len(table), device=code.device)).to(vectors.dtype)
            codebook.cluster_usage.mul_(DECAY).add_(hits.sum(0), alpha=1 - DECAY)
            codebook.embedding_sum.mul_(DECAY).add_(hits.T @ vectors, alpha=1 - DECAY)
    return code, F.embedding(code, table)
