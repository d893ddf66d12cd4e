"""Networks that tell decoded speech from the teacher's, so that the codec learns what a spectrum's mean hides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PERIODS = (2, 3, 5, 7, 11)
WINDOWS = (2048, 1024, 512)


class PeriodCritic(nn.Module):
    """Looks at every `period`-th sample."""

    def __init__(self, period: int, widths: tuple[int, ...] = (24, 48, 96, 160)) -> None:
        super().__init__()
        self.period = period
        inputs = (1, *widths[:-1])
        layers = [nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in zip(inputs, widths, strict=True)]
        self.layers = nn.ModuleList([*layers, nn.Conv2d(widths[-1], widths[-1], (5, 1), 1, (2, 0))])
        self.last = nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[rows, samples] -> verdicts, and the features on the way."""
        x = F.pad(x[:, None], (0, -x.shape[-1] % self.period), mode="reflect").reshape(len(x), 1, -1, self.period)
        return _through(self.layers, self.last, x)


class SpectrumCritic(nn.Module):
    """Looks at a complex spectrum."""

    window: Tensor

    def __init__(self, size: int, width: int = 24) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size))
        self.layers = nn.ModuleList(
            [
                nn.Conv2d(2, width, (3, 9), 1, (1, 4)),
                nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)),
                nn.Conv2d(width, width, (3, 9), (1, 2), (2, 4), dilation=(2, 1)),
                nn.Conv2d(width, width, (3, 9), (1, 2), (4, 4), dilation=(4, 1)),
                nn.Conv2d(width, width, 3, 1, 1),
            ]
        )
        self.last = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[rows, samples] -> verdicts, and the features on the way."""
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.stft(
                x.float(), self.size, self.size // 4, self.size, self.window, return_complex=True, normalized=True
            )
            x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)
        return _through(self.layers, self.last, x)


class Critics(nn.Module):
    """All of them."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ModuleList([*map(PeriodCritic, PERIODS), *map(SpectrumCritic, WINDOWS)])

    def own_loss(self, real: Tensor, made: Tensor) -> Tensor:
        """What the critics learn by: 1 for real, 0 for made."""
        loss = real.new_zeros(())
        for critic in self.all:
            true, false = critic(torch.cat([real, made.detach()]))[0].float().chunk(2)
            loss = loss + (1 - true).square().mean() + false.square().mean()
        return loss / len(self.all)

    def codec_loss(self, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        """What the codec learns by: to be taken for real, and to look alike inside."""
        fooled, alike = real.new_zeros(()), real.new_zeros(())
        for critic in self.all:
            verdict, features = critic(torch.cat([real, made]))
            fooled = fooled + (1 - verdict.float().chunk(2)[1]).square().mean()
            for feature in features:
                a, b = feature.float().chunk(2)
                a = a.detach()
                alike = alike + (a - b).abs().mean() / (a.abs().mean() + 1e-3) / len(features)
        return fooled / len(self.all), alike / len(self.all)


def _through(layers: nn.ModuleList, last: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return last(x), features
