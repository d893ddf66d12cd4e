"""From samples to an x-vector, the speaker's place among all speakers: ECAPA-TDNN over a mel spectrogram (model.md 7).

Attribute names are the checkpoint's tensor names. Always float32: it runs once a voice.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_lib.checkpoint import load_strict, read_tensors
from engine_lib.cloning.config import SpeakerConfig
from engine_lib.wire import SAMPLE_RATE

FFT, HOP = 1024, 256  # samples
HIGHEST_HZ = 12_000.0


class Conv(nn.Module):
    """A convolution that keeps the length, its input mirrored at both ends."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self._reach = (kernel - 1) * dilation

    def forward(self, x: Tensor) -> Tensor:
        """[1, inputs, frames] -> [1, outputs, frames]."""
        before = self._reach // 2
        return self.conv(F.pad(x, (before, self._reach - before), mode="reflect"))  # type: ignore[no-any-return]


class Tdnn(Conv):
    """The same, rectified."""

    def forward(self, x: Tensor) -> Tensor:
        """[1, inputs, frames] -> [1, outputs, frames]."""
        return F.relu(super().forward(x))


class Res2Net(nn.Module):
    """The channels in groups, of which each but the first also hears what the one before made."""

    def __init__(self, channels: int, kernel: int, dilation: int, scale: int) -> None:
        super().__init__()
        width = channels // scale
        self.blocks = nn.ModuleList(Tdnn(width, width, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, frames] -> the same."""
        first, *others = x.chunk(len(self.blocks) + 1, dim=1)
        parts = [first]
        for number, (block, part) in enumerate(zip(self.blocks, others, strict=True)):
            parts.append(block(part if number == 0 else part + parts[-1]))
        return torch.cat(parts, dim=1)


class SqueezeExcitation(nn.Module):
    """Scales each channel by what all of them are on average."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, inner, 1)
        self.conv2 = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, frames] -> the same."""
        mean = x.mean(dim=2, keepdim=True)
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(mean))))


class SeRes2Net(nn.Module):
    """One block of the network."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int, config: SpeakerConfig) -> None:
        super().__init__()
        self.tdnn1 = Tdnn(inputs, outputs, 1)
        self.res2net_block = Res2Net(outputs, kernel, dilation, config.res2net_scale)
        self.tdnn2 = Tdnn(outputs, outputs, 1)
        self.se_block = SqueezeExcitation(outputs, config.se_channels)

    def forward(self, x: Tensor) -> Tensor:
        """[1, inputs, frames] -> [1, outputs, frames]; both are the same number."""
        return x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))  # type: ignore[no-any-return]


class AttentiveStatistics(nn.Module):
    """Mean and deviation over time, weighted by what is worth hearing."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = Tdnn(3 * channels, attention_channels, 1)
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[1, channels, frames] -> [1, 2 * channels, 1]."""
        even = torch.full_like(x[:, :1], 1 / x.shape[2])
        about = torch.cat((x, *(part.expand_as(x) for part in _statistics(x, even))), dim=1)
        weights = torch.softmax(self.conv(torch.tanh(self.tdnn(about))), dim=2)
        return torch.cat(_statistics(x, weights), dim=1)


def _statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    mean = (x * weights).sum(dim=2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(dim=2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    """The whole encoder."""

    window: Tensor
    filters: Tensor

    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        self.config = config
        first, *middle, last = zip(
            (config.mels, *config.channels[:-1]), config.channels, config.kernels, config.dilations, strict=True
        )
        self.blocks = nn.ModuleList([Tdnn(*first), *(SeRes2Net(*sizes, config) for sizes in middle)])
        together = sum(config.channels[1:-1])
        self.mfa = Tdnn(together, *last[1:])
        self.asp = AttentiveStatistics(config.channels[-1], config.attention_channels)
        self.fc = nn.Conv1d(2 * config.channels[-1], config.size, 1)
        self.register_buffer("window", torch.hann_window(FFT, device="cpu"), persistent=False)
        self.register_buffer("filters", mel_filters(config.mels), persistent=False)

    @classmethod
    def from_directory(cls, directory: Path, device: torch.device) -> SpeakerEncoder:
        """Build and fill from a Base checkpoint. Raises ConfigurationError naming any tensor that doesn't fit."""
        encoder = cls(SpeakerConfig.from_directory(directory))
        load_strict(encoder, read_tensors(directory, "speaker_encoder."), prefix="speaker_encoder.")
        return encoder.to(device).eval().requires_grad_(False)

    def mel(self, samples: Tensor) -> Tensor:
        """Logarithmic mel spectrogram of float32 [samples] at 24 kHz -> [mels, frames]."""
        margin = (FFT - HOP) // 2
        padded = F.pad(samples[None], (margin, margin), mode="reflect")
        spectrum = torch.stft(padded, FFT, HOP, window=self.window, center=False, return_complex=True)[0]
        magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
        return (self.filters @ magnitude).clamp(min=1e-5).log()

    def forward(self, samples: Tensor) -> Tensor:
        """Float32 [samples] at 24 kHz -> x-vector [size]."""
        x = self.mel(samples)[None]
        first, *blocks = self.blocks
        x = first(x)
        heard = []
        for block in blocks:
            x = block(x)
            heard.append(x)
        return self.fc(self.asp(self.mfa(torch.cat(heard, dim=1))))[0, :, 0]  # type: ignore[no-any-return]


def mel_filters(mels: int) -> Tensor:
    """Slaney's mel filters, each of unit area, for the spectrum's bins: [mels, FFT / 2 + 1] (librosa's default)."""
    bins = torch.linspace(0, SAMPLE_RATE / 2, FFT // 2 + 1, dtype=torch.float64, device="cpu")
    top = _hertz_to_mel(HIGHEST_HZ)
    edges = torch.tensor([_mel_to_hertz(top * step / (mels + 1)) for step in range(mels + 2)], dtype=torch.float64)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * (2 / (edges[2:] - edges[:-2]))[:, None]).float()


# Slaney's scale: linear up to 1 kHz, where it is at 15 mels, then 27 steps for a factor of 6.4.
_LINEAR_HZ, _BEND_HZ, _BEND_MEL, _STEP = 200 / 3, 1000.0, 15.0, math.log(6.4) / 27


def _hertz_to_mel(hertz: float) -> float:
    return hertz / _LINEAR_HZ if hertz < _BEND_HZ else _BEND_MEL + math.log(hertz / _BEND_HZ) / _STEP


def _mel_to_hertz(mel: float) -> float:
    return mel * _LINEAR_HZ if mel < _BEND_MEL else _BEND_HZ * math.exp(_STEP * (mel - _BEND_MEL))
