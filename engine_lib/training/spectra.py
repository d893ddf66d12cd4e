"""Mel filters, resampling, and how far apart two waveforms sound."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 24_000


def mel_filters(window: int, bands: int) -> Tensor:
    """Slaney's mel filters, area-normalised, up to 12 kHz: [window // 2 + 1, bands]."""
    knee, step = 15.0, math.log(6.4) / 27  # linear below 1 kHz (15 mels), logarithmic above

    def mels(hertz: float) -> float:
        return hertz * 3 / 200 if hertz < 1000 else knee + math.log(hertz / 1000) / step

    points = torch.linspace(0, mels(RATE / 2), bands + 2, dtype=torch.float64)
    edges = torch.where(points < knee, points * 200 / 3, 1000 * ((points - knee) * step).exp())
    bins = torch.linspace(0, RATE / 2, window // 2 + 1, dtype=torch.float64)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (edges[2:] - edges[:-2])).float()


class Resampler(nn.Module):
    """`up` samples out of each `down`, by a windowed sinc."""

    filters: Tensor  # [up, 1, taps]
    REACH = 24

    def __init__(self, up: int, down: int) -> None:
        super().__init__()
        self.down = down
        cutoff = 0.98 * min(1.0, up / down)
        offsets = torch.arange(-self.REACH, self.REACH + down, dtype=torch.float64)
        at = offsets[None] - torch.arange(up, dtype=torch.float64)[:, None] * down / up
        window = torch.cos(at / (self.REACH + down) * math.pi / 2).clamp(min=0) ** 2
        filters = torch.sinc(at * cutoff) * window
        filters = filters / filters.sum(dim=1, keepdim=True)
        self.register_buffer("filters", filters.float()[:, None])

    def forward(self, x: Tensor) -> Tensor:
        """[rows, n * down] -> [rows, n * up]."""
        padded = F.pad(x[:, None], (self.REACH, self.REACH + self.down - 1))
        return F.conv1d(padded, self.filters, stride=self.down).transpose(1, 2).flatten(1)


class Resolution(NamedTuple):
    """One way to look at a spectrum."""

    window: int
    hop: int
    bands: int


RESOLUTIONS = (
    Resolution(2048, 512, 128),
    Resolution(1024, 256, 80),
    Resolution(512, 128, 48),
    Resolution(256, 64, 24),
    Resolution(128, 32, 12),
)


class SpectralDistance(nn.Module):
    """Mean difference of log spectra, mel and plain, over all RESOLUTIONS."""

    def __init__(self) -> None:
        super().__init__()
        for resolution in RESOLUTIONS:
            self.register_buffer(f"window_{resolution.window}", torch.hann_window(resolution.window))
            self.register_buffer(f"mel_{resolution.window}", mel_filters(resolution.window, resolution.bands) * 20)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two [rows, samples] -> a number."""
        total = x.new_zeros(())
        for window, hop, _ in RESOLUTIONS:
            shape = self.get_buffer(f"window_{window}")
            filters = self.get_buffer(f"mel_{window}")
            a, b = (torch.stft(wave, window, hop, window, shape, return_complex=True).abs() for wave in (x, y))
            mel = [torch.log((spectrum.transpose(1, 2) @ filters).clamp(min=1e-5)) for spectrum in (a, b)]
            total = total + (mel[0] - mel[1]).abs().mean()
            total = total + 0.4 * (a.clamp(min=3e-4).log() - b.clamp(min=3e-4).log()).abs().mean()
        return total / len(RESOLUTIONS)
