"""Train the codec on the teacher's speech, for a given time, while more of it is being made.

    python -m engine_lib.training.codec SPEECH OUT --seconds 270

writes OUT/codec.safetensors: decoder, encoder and the projections before the codebooks. Loss: log spectra, commitment
to the codebooks, the phones as read from the first codebook alone (it is what the talker has to get right), and from
CRITICS_FROM of the time on what the critics say.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.model import Decoder
from engine_lib.codec.streaming import StateStore
from engine_lib.training import recipe, speech, words
from engine_lib.training.critics import Critics
from engine_lib.training.encoder import Encoder, Quantizing
from engine_lib.training.folding import WholeRows, refold
from engine_lib.training.spectra import Resampler, SpectralDistance
from engine_lib.training.steps import (
    Average,
    adam,
    as_graph,
    choose_device,
    clip,
    cosine,
    half,
    log,
    set_rate,
    start_log,
)
from engine_lib.wire import SAMPLES_PER_FRAME

CRITICS_FROM = 0.5
PEAK_RATE, CRITICS_RATE = 1.2e-3, 3e-4
FIRST_S = 300  # seconds of speech to begin with
READ_EVERY_S, READ_FOR_S = 4.0, 0.5
WEIGHTS = "codec.safetensors"


class Codec(nn.Module):
    """Encoder, codebooks and decoder in one."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.codebook_dim)
        self.decoder = Decoder(config)
        self.quantizing = Quantizing(config.codebook_dim)
        self.from_teacher = Resampler(3, 2)
        _initialise(self.decoder)

    def to_device(self, device: torch.device) -> Codec:
        """Move, and give the decoder's layers the state that they ask for but never use here."""
        self.to(device)
        StateStore(self.decoder, 1, torch.float32, device)
        return self

    def latent(self, samples: Tensor) -> Tensor:
        """24 kHz [rows, samples] -> [rows, size, frames]."""
        with torch.no_grad():
            features = self.encoder.features(samples)
        with half(samples.device):
            return self.encoder(features).float()  # type: ignore[no-any-return]

    def decode(self, quantised: Tensor) -> Tensor:
        """[rows, size, frames] -> [rows, samples]."""
        refold(self.decoder)
        return self.decoder.waveform(quantised, WholeRows.of(len(quantised), quantised.shape[-1], quantised.device))

    def weights(self) -> dict[str, Tensor]:
        """What is to be kept; the encoder in half the bytes."""
        return {
            name: (tensor.half() if name.startswith("encoder.layers") else tensor).detach().cpu().contiguous()
            for name, tensor in self.state_dict().items()
        }

    @classmethod
    def load(cls, path: Path, config: DecoderConfig, device: torch.device) -> Codec:
        """From what this stage wrote."""
        codec = cls(config)
        codec.load_state_dict(load_file(path))
        return codec.to_device(device).eval().requires_grad_(False)


def _initialise(decoder: Decoder) -> None:
    """Start values of what the serving modules leave unset."""
    for name, parameter in decoder.named_parameters():
        with torch.no_grad():
            if name.endswith(("norm.weight", "layernorm.weight", "cluster_usage")):
                parameter.fill_(1.0)
            elif name.endswith((".alpha", ".beta", "norm.bias")):
                parameter.zero_()
            elif name.endswith((".scale", ".gamma")):
                parameter.fill_(0.1)
            elif name.endswith("embedding_sum"):
                parameter.normal_(0, 0.1)
        if name.endswith(("embedding_sum", "cluster_usage")):
            parameter.requires_grad_(False)  # moving sums


class Store:
    """All speech made so far, on the device, 16 kHz int16."""

    def __init__(self, folder: Path, device: torch.device, hours: float, crop: int) -> None:
        """Room for `hours`; batches are crops of `crop` frames."""
        frames = int(hours * 3600 * 12.5)
        self._folder, self._crop, self._device = folder, crop, device
        self._samples = torch.zeros(frames * speech.HOP, dtype=torch.int16, device=device)
        self._phones = torch.zeros(frames, 2, dtype=torch.uint8, device=device)
        self._places = torch.ones((), device=device)  # where a crop may begin
        self._read: set[Path] = set()
        self.frames = 0
        self._capacity = frames

    @property
    def hours(self) -> float:
        """How much there is."""
        return self.frames / 12.5 / 3600

    def read(self, seconds: float) -> None:
        """Take in new parts, for at most about so long."""
        deadline = time.time() + seconds
        for path in sorted(set(self._folder.glob("*.npz")) - self._read):
            part = speech.Speech.read(path)
            end = self.frames + len(part.phones)
            if end > self._capacity or time.time() > deadline:
                return
            self._samples[self.frames * speech.HOP : end * speech.HOP] = torch.from_numpy(part.samples).to(self._device)
            self._phones[self.frames : end] = torch.from_numpy(part.phones).to(self._device)
            self.frames = end
            self._places.fill_(float(end - self._crop))
            self._read.add(path)

    def batch(self, rows: int) -> tuple[Tensor, Tensor]:
        """Random crops [rows, crop * HOP] in -1..1 at random levels, and their phones [rows, crop, 2]."""
        begin = (torch.rand(rows, 1, device=self._device) * self._places).long()
        samples = self._samples[begin * speech.HOP + torch.arange(self._crop * speech.HOP, device=self._device)]
        level = 10 ** ((torch.rand(rows, 1, device=self._device) * 6 - 4) / 20)
        phones = self._phones[begin + torch.arange(self._crop, device=self._device)]
        return samples.float() / 32768 * level, phones.long()


def train(folder: Path, out: Path, seconds: float, rows: int, crop: int, heard: int, hours: float) -> None:
    """`heard`: frames of each crop that the critics hear; `hours`: the most speech that there will be."""
    began = time.time()
    torch.manual_seed(0)
    device = choose_device()
    out.mkdir(parents=True, exist_ok=True)
    words.write_json(out / "config.json", recipe.codec_config())
    codec = Codec(DecoderConfig.from_directory(out)).to_device(device)
    size = codec.config.codebook_dim
    read_phones = nn.Sequential(nn.Linear(size // 2, 192), nn.GELU(), nn.Linear(192, 2 * len(speech.PHONES))).to(device)
    critics, distance = Critics().to(device), SpectralDistance().to(device)
    learned = [p for p in (*codec.parameters(), *read_phones.parameters()) if p.requires_grad]
    judges = list(critics.parameters())
    own, theirs = adam([(learned, 1e-3)], (0.9, 0.98), device), adam([(judges, 1e-3)], (0.8, 0.98), device)
    # The encoder must match the codebooks' projections, so only what comes after the codebooks is averaged.
    after = [p for name, p in codec.decoder.named_parameters() if p.requires_grad and "quantizer" not in name]
    average = Average(after, 0.004)
    store = Store(folder, device, hours, crop)
    while store.frames < FIRST_S * 12.5:
        store.read(5.0)
        time.sleep(0.1)
    log.info("%.2f hours of speech to begin with, %d weights", store.hours, sum(p.numel() for p in learned))
    seen = torch.zeros(rows, size, crop, device=device)
    figures = torch.zeros(8, device=device)
    sway = torch.zeros((), device=device)  # of the critics
    within = torch.arange(heard * SAMPLES_PER_FRAME, device=device)

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        samples, phones = store.batch(rows)
        real = codec.from_teacher(samples)
        latent = codec.latent(real)
        seen.copy_(latent.detach())
        quantised, _, commitment, entries = codec.quantizing(codec.decoder.quantizer, latent, True)
        made = codec.decode(quantised)
        guess = read_phones(entries).view(-1, len(speech.PHONES))
        misread = F.cross_entropy(guess, phones.flatten())
        apart = distance(made, real)
        right = (guess.argmax(-1) == phones.flatten()).float().mean()
        figures[:4] = torch.stack([apart.detach(), commitment.detach(), misread.detach(), right])
        return real, made, 4 * apart + 0.2 * commitment + 0.3 * misread

    def learn(loss: Tensor) -> None:
        own.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        figures[4] = clip(learned, 3.0)
        own.step()
        average.update()

    def alone() -> None:
        learn(forward()[2])

    def judged() -> None:
        real, made, loss = forward()
        begin = (torch.rand(rows, 1, device=device) * (crop - heard - 4)).long() + 4
        places = begin * SAMPLES_PER_FRAME + within
        some, other = real.gather(1, places), made.gather(1, places)
        with half(device):
            verdict = critics.own_loss(some, other)
        theirs.zero_grad(set_to_none=True)
        verdict.backward()  # type: ignore[no-untyped-call]
        clip(judges, 5.0)
        theirs.step()
        with half(device):
            fooled, alike = critics.codec_loss(some, other)
        figures[5:8] = torch.stack([verdict.detach(), fooled.detach(), alike.detach()])
        learn(loss + sway * (fooled + 2 * alike))

    def save() -> None:
        average.swap()
        save_file(codec.weights(), out / WEIGHTS)
        average.swap()

    alone()
    codec.quantizing.revive(codec.decoder.quantizer, seen, 1e9)
    step, taken, critical, last_read = as_graph(alone, learned), 0, None, time.time()
    loop_began = time.time()
    while (progress := (time.time() - loop_began) / (began + seconds - loop_began)) < 1:
        if progress > CRITICS_FROM and critical is None:
            critical = taken
            step = as_graph(judged, [*learned, *judges], 2)
            log.info("critics from step %d on", taken)
        rate = PEAK_RATE * min(1.0, (taken + 1) / 150) * cosine(progress, 0.07)
        set_rate(own, rate)
        if critical is not None:
            set_rate(theirs, min(CRITICS_RATE, rate))
            sway.fill_(min(1.0, (taken - critical) / 150))
        step()
        taken += 1
        if taken % 25 == 0 or (taken < 60 and taken % 5 == 0):
            if progress < 0.7:
                codec.quantizing.revive(codec.decoder.quantizer, seen, 0.05)
            if device.type == "cuda":
                torch.cuda.synchronize()  # so that the clock means something
        if time.time() - last_read > READ_EVERY_S:
            store.read(READ_FOR_S)
            last_read = time.time()
        if taken in (1, 20, 100) or taken % 250 == 0:
            names = ("spectra", "commitment", "phones", "right", "gradient", "critics", "fooled", "alike")
            said = " ".join(f"{name} {value:.3f}" for name, value in zip(names, figures.tolist(), strict=True))
            log.info("step %d rate %.1e %s, %.2f hours", taken, rate, said, store.hours)
        if taken % 1000 == 0:
            save()
    save()
    log.info("codec done after %d steps, %.2f hours", taken, store.hours)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.codec", description=__doc__)
    parser.add_argument("speech", type=Path, help="folder of the stage `speech`")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--crop", type=int, default=32, help="frames of a row")
    parser.add_argument("--heard", type=int, default=10, help="frames of it that the critics hear")
    parser.add_argument("--hours", type=float, default=60, help="the most speech to take in")
    arguments = parser.parse_args()
    start_log()
    train(
        arguments.speech,
        arguments.out,
        arguments.seconds,
        arguments.rows,
        arguments.crop,
        arguments.heard,
        arguments.hours,
    )


if __name__ == "__main__":
    main()
