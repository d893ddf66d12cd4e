"""Train talker and code predictor on codes, for a given time, while more of them are being made.

    python -m engine_lib.training.talker CHECKPOINT TEXTS.gz CODES OUT --seconds 700

CHECKPOINT is what the stage `words` wrote. OUT/talker.safetensors holds the averaged weights that did best on
sentences held out; OUT/talker.json the curve.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from engine_lib.layers import rotary
from engine_lib.talker.code_predictor import CodePredictor
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.model import Talker
from engine_lib.training import speech, texts
from engine_lib.training.encode import Coded
from engine_lib.training.folding import refold
from engine_lib.training.sequences import CODEC, END, FED, LENGTHS, TEXT, WANTED, Corpus, Writer
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
from engine_lib.wire import CODEBOOKS

PEAK_RATE, DECAY, DROPOUT = 2e-3, 0.05, 0.1
REPLACED, DROPPED = 0.25, 0.04  # up to so many of a sequence's fed frames are another's; so many are missing
AHEAD = 4  # half frames whose phones the states must tell
FIRST_HOURS = 6.0
VALIDATION = 2000  # sequences
IGNORED = -100
WEIGHTS = "talker.safetensors"


def talker_states(talker: Talker, x: Tensor) -> Tensor:
    """Talker.forward of whole sequences from their start, without a cache: [rows, length, hidden], the same back."""
    length = x.shape[1]
    positions = torch.arange(length, device=x.device)
    sizes = talker.config.talker
    cos, sin = (table[None, :, None] for table in rotary(positions, sizes.head_dim, sizes.rope_theta))
    mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()[None, None]
    for layer in talker.model.layers:
        x = layer(x, cos, sin, _no_memory, mask)
    return talker.model.norm(x)  # type: ignore[no-any-return]


def predictor_logits(predictor: CodePredictor, hidden: Tensor, first: Tensor, codes: Tensor) -> Tensor:
    """CodePredictor.forward where the codes [rows, 16] are known: logits [rows, 15, vocabulary]."""
    later = [table(codes[:, group]) for group, table in enumerate(predictor.model.codec_embedding, start=1)]
    x = predictor.small_to_mtp_projection(torch.stack([hidden, first, *later[:-1]], dim=1))
    positions = torch.arange(predictor.groups, device=x.device)
    cos, sin = (
        table[None, :, None] for table in rotary(positions, predictor.config.head_dim, predictor.config.rope_theta)
    )
    mask = torch.ones(predictor.groups, predictor.groups, dtype=torch.bool, device=x.device).tril()[None, None]
    for layer in predictor.model.layers:
        x = layer(x, cos, sin, _no_memory, mask)
    x = predictor.model.norm(x)[:, 1:]
    heads = torch.stack([head.weight for head in predictor.lm_head])  # type: ignore[misc]
    return torch.einsum("rgh,gvh->rgv", x, heads.to(x.dtype))


def _no_memory(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    return keys, values


def initialise(talker: Talker) -> None:
    """Start values."""
    for name, parameter in talker.named_parameters():
        with torch.no_grad():
            if name.endswith("norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith("bias"):
                parameter.zero_()
            elif "text_embedding" in name:
                parameter.normal_(0, 0.5)
            elif "embedding" in name:
                parameter.normal_(0, 0.02)
            else:
                narrow = 0.4 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                parameter.normal_(0, narrow * 0.7 / math.sqrt(parameter.shape[1]))


class Data:
    """Codes and sequences on the device, in tensors that stay where they are."""

    def __init__(self, folder: Path, device: torch.device, hours: float, sequences: int) -> None:
        frames = int(hours * 45_000)
        self.codes = torch.zeros(frames, CODEBOOKS, dtype=torch.uint8, device=device)
        self.phones = torch.zeros(frames, 2, dtype=torch.uint8, device=device)
        self.lanes = {
            length: torch.full((sequences, 4, length), -1, dtype=torch.int32, device=device) for length in LENGTHS
        }
        self.counts = dict.fromkeys(LENGTHS, 0)
        self.available = {length: torch.ones((), device=device) for length in LENGTHS}
        self.total = torch.ones((), device=device)
        self._folder, self._device = folder, device
        self._parts: list[Coded] = []
        self._read: set[Path] = set()
        self.frames = 0

    @property
    def hours(self) -> float:
        """How much speech there is."""
        return self.frames / 45_000

    def read(self) -> None:
        """Take in new parts."""
        for path in sorted(set(self._folder.glob("*.npz")) - self._read):
            part = Coded.read(path)
            end = self.frames + len(part.codes)
            if end > len(self.codes):
                return
            self.codes[self.frames : end] = torch.from_numpy(part.codes).to(self._device)
            self.phones[self.frames : end] = torch.from_numpy(part.phones).to(self._device)
            self.frames = end
            self._parts.append(part)
            self._read.add(path)
        self.total.fill_(float(self.frames))

    def corpus(self) -> Corpus:
        """What has been read."""
        frames = np.concatenate([part.frames for part in self._parts])
        return Corpus(
            np.concatenate([part.text for part in self._parts]),
            np.concatenate([part.speaker for part in self._parts]),
            np.cumsum(frames, dtype=np.int64) - frames,
            frames,
        )

    def put(self, made: list[dict[int, NDArray[np.int32]]]) -> None:
        """Exchange the sequences."""
        for length in LENGTHS:
            rows = [part[length] for part in made if length in part]
            if rows:
                fresh = np.concatenate(rows)[: len(self.lanes[length])]
                self.lanes[length][: len(fresh)] = torch.from_numpy(fresh).to(self._device)
                self.counts[length] = len(fresh)
                self.available[length].fill_(float(len(fresh)))


class Learner(nn.Module):
    """The talker with what it needs for learning alone: dropout, and heads that read phones off its states."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.talker = Talker(config)
        initialise(self.talker)
        self.read_phones = nn.Linear(config.talker.hidden, AHEAD * len(speech.PHONES))
        for layer in (*self.talker.model.layers, *self.talker.code_predictor.model.layers):
            for part in (layer.self_attn, layer.mlp):
                part.register_forward_hook(_dropped)

    def forward(self, data: Data, lanes: Tensor, predicted: int, training: bool) -> Tensor:
        """Losses of lanes [rows, 4, length]: code 0, phones, the mean of codes 1 to 15, then each of these."""
        talker, device = self.talker, lanes.device
        refold(talker)
        text, codec, fed, wanted = (lanes[:, lane].long() for lane in (TEXT, CODEC, FED, WANTED))
        codes, is_fed = data.codes[fed.clamp(min=0)].long(), fed >= 0
        if training:
            share = torch.rand(len(lanes), 1, device=device) * REPLACED
            other = data.codes[(torch.rand(fed.shape, device=device) * data.total).long()].long()
            codes = torch.where((torch.rand(fed.shape, device=device) < share)[..., None], other, codes)
            is_fed = is_fed & (torch.rand(fed.shape, device=device) >= DROPPED)
        x = talker.prompt_embedding(text, codec)
        x = x + talker.frame_embedding(codes.flatten(0, 1)).view_as(x) * is_fed[..., None]
        x = F.dropout(x, DROPOUT / 2, training)
        states = talker_states(talker, x).flatten(0, 1)  # [rows * length, hidden]
        targets = data.codes[wanted.clamp(min=0)].long().flatten(0, 1)
        wanted = wanted.flatten()
        spoken = wanted >= 0
        first = torch.where(spoken, targets[:, 0], torch.full_like(wanted, IGNORED))
        first = torch.where(wanted == END, talker.config.ids.codec_eos, first)
        loss = F.cross_entropy(talker.codec_head(states).float(), first, ignore_index=IGNORED)
        phones = self._phone_loss(data, states, lanes[:, WANTED].long())
        picked = (torch.rand(wanted.shape, device=device) + 2 * spoken).topk(predicted).indices
        known, counted = targets[picked], spoken[picked].float()
        logits = predictor_logits(
            talker.code_predictor, states[picked], talker.model.codec_embedding(known[:, 0]), known
        ).float()
        errors = F.cross_entropy(logits.transpose(1, 2), known[:, 1:], reduction="none") * counted[:, None]
        others = errors.sum(0) / counted.sum().clamp(min=1)  # [15]
        return torch.cat([torch.stack([loss, phones, others.mean()]), others])

    def _phone_loss(self, data: Data, states: Tensor, wanted: Tensor) -> Tensor:
        """Cross entropy of the wanted frame's phones and the next one's. wanted [rows, length]."""
        after = torch.cat([wanted[:, 1:], torch.full_like(wanted[:, :1], -1)], dim=1)
        labels = []
        for frames in (wanted, after):
            known = data.phones[frames.clamp(min=0)].long()
            labels.append(known.masked_fill((frames < 0)[..., None], IGNORED))
        guess = self.read_phones(states).float().view(-1, len(speech.PHONES))
        return F.cross_entropy(guess, torch.cat(labels, dim=-1).flatten(), ignore_index=IGNORED)


def _dropped(module: nn.Module, _: object, output: Tensor) -> Tensor:
    return F.dropout(output, DROPOUT, module.training)


_writer: Writer | None = None


def _prepare(checkpoint: Path, sentences: list[str]) -> None:
    global _writer
    _writer = Writer(checkpoint, sentences)


def _write(corpus: Corpus, count: int, seed: int) -> dict[int, NDArray[np.int32]]:
    assert _writer is not None
    return _writer.many(corpus, count, seed)


class Scribes:
    """Processes that write sequences beside the training."""

    def __init__(self, pool: Pool, workers: int, sequences: int) -> None:
        self._pool, self._workers, self._each, self._seed = pool, workers, sequences // workers, 0
        self._asked: list[AsyncResult[dict[int, NDArray[np.int32]]]] = []

    def ask(self, corpus: Corpus) -> None:
        """Begin a new set."""
        self._asked = [
            self._pool.apply_async(_write, (corpus, self._each, self._seed + worker)) for worker in range(self._workers)
        ]
        self._seed += self._workers

    def ready(self) -> bool:
        """Whether the set that was asked for is there."""
        return all(result.ready() for result in self._asked)

    def get(self) -> list[dict[int, NDArray[np.int32]]]:
        """The set, waiting for it."""
        return [result.get() for result in self._asked]


def train(
    checkpoint: Path,
    sentences: list[str],
    folder: Path,
    out: Path,
    seconds: float,
    scale: int,
    workers: int,
    hours: float,
) -> None:
    """`scale` divides the batch, for a try on a CPU."""
    began = time.time()
    rows = {length: max(1, 16384 // length // scale) for length in LENGTHS}
    predicted, sequences = 4096 // scale, 100_000 // scale
    out.mkdir(parents=True, exist_ok=True)
    pool = multiprocessing.get_context("fork").Pool(workers, _prepare, (checkpoint, sentences))  # before CUDA starts
    scribes = Scribes(pool, workers, sequences)
    torch.manual_seed(1)
    device = choose_device()
    data = Data(folder, device, hours, sequences)
    while data.hours < FIRST_HOURS / scale:
        data.read()
        time.sleep(0.2)
    scribes.ask(data.corpus())
    held_out = Writer(checkpoint, sentences).many(data.corpus(), VALIDATION // scale, 0, held_out=True)
    validation = {length: torch.from_numpy(made).to(device) for length, made in held_out.items()}
    learner = Learner(TalkerConfig.from_directory(checkpoint)).to(device).train()
    learned = list(learner.parameters())
    decayed = [p for name, p in learner.named_parameters() if p.dim() >= 2 and "embedding" not in name]
    plain = [p for name, p in learner.named_parameters() if p.dim() < 2 or "embedding" in name]
    optimiser = adam([(decayed, DECAY), (plain, 0.0)], (0.9, 0.98), device)
    average = Average(learned, 0.003)
    figures, phones_count = torch.zeros(4, device=device), torch.tensor(0.7, device=device)
    data.put(scribes.get())
    log.info("%.2f hours to begin with; %s", data.hours, data.counts)

    def recorded(length: int) -> None:
        chosen = (torch.rand(rows[length], device=device) * data.available[length]).long()
        with half(device):
            losses = learner(data, data.lanes[length][chosen], predicted, True)
        optimiser.zero_grad(set_to_none=True)
        (losses[0] + phones_count * losses[1] + losses[2]).backward()
        figures[:3] = losses[:3].detach()
        figures[3] = clip(learned, 1.0)
        optimiser.step()
        average.update()

    @torch.no_grad()
    def validate() -> list[float]:
        average.swap()
        learner.eval()
        found, weights = [], []
        for length, made in validation.items():
            for part in torch.split(made, rows[length]):
                with half(device):
                    found.append(learner(data, part, min(predicted, part.shape[0] * length), False))
                weights.append(len(part))
        learner.train()
        average.swap()
        shares = torch.tensor(weights, device=device, dtype=torch.float32)
        return ((torch.stack(found) * shares[:, None]).sum(0) / shares.sum()).tolist()

    used = [length for length in LENGTHS if data.counts[length]]
    steps = {length: as_graph(lambda length=length: recorded(length), learned, 2) for length in used}  # type: ignore[misc]
    rng, curve, best, taken = np.random.default_rng(0), [], math.inf, 0

    def check() -> None:
        nonlocal best
        result = validate()
        curve.append({"step": taken, "hours": data.hours, "losses": result, "training": figures.tolist()})
        log.info("validation: code 0 %.3f phones %.3f codes 1-15 %.3f", *result[:3])
        if result[0] + result[2] < best:
            best = result[0] + result[2]
            average.swap()
            weights = {name: p.detach().to(torch.bfloat16).cpu() for name, p in learner.talker.state_dict().items()}
            average.swap()
            kept = {name: tensor.contiguous() for name, tensor in weights.items() if "._" not in name}
            save_file(kept, out / WEIGHTS)
        (out / "talker.json").write_text(json.dumps(curve), encoding="utf-8")

    loop_began = time.time()
    log.info("begins")
    while (progress := (time.time() - loop_began) / (began + seconds - loop_began)) < 1:
        set_rate(optimiser, PEAK_RATE * min(1.0, (taken + 1) / 300) * cosine(progress, 0.02))
        phones_count.fill_(0.7 * (1 - 0.5 * progress))
        weights = np.array([data.counts[length] * length for length in used], float)
        steps[int(rng.choice(used, p=weights / weights.sum()))]()
        taken += 1
        if taken % 20 == 0 and device.type == "cuda":
            torch.cuda.synchronize()  # so that the clock means something
        if taken % 400 == 0 and scribes.ready():
            data.put(scribes.get())
            data.read()
            scribes.ask(data.corpus())
        if taken in (1, 20, 100) or taken % 500 == 0:
            said = [round(value, 3) for value in figures.tolist()]
            log.info("step %d, code 0, phones, codes 1-15, gradient: %s, %.2f hours", taken, said, data.hours)
        if taken % 1500 == 0:
            check()
    check()
    log.info("talker done after %d steps", taken)
    pool.terminate()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.talker", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="folder of the stage `words`")
    parser.add_argument("texts", type=Path, help="what the stage `texts` wrote")
    parser.add_argument("codes", type=Path, help="folder of the stage `encode`")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--scale", type=int, default=1, help="divides the batch, to try it on a CPU")
    parser.add_argument("--workers", type=int, default=2, help="processes that write sequences")
    parser.add_argument("--hours", type=float, default=90, help="the most speech to take in")
    arguments = parser.parse_args()
    start_log()
    train(
        arguments.checkpoint,
        texts.read(arguments.texts),
        arguments.codes,
        arguments.out,
        arguments.seconds,
        arguments.scale,
        arguments.workers,
        arguments.hours,
    )


if __name__ == "__main__":
    main()
