"""Time the talker's steps on this GPU with random weights of the true shapes, and check what they compute.

    python -m engine_lib.bench --size 1.7B --json result.json

Prints Markdown. Times are medians between CUDA events around a step as the engine starts it, host work included where
the GPU waits for it. The floor is the weights' bytes over the copy bandwidth measured in the same run. Errors are of
the logits against float32 arithmetic on the same bf16 weights, fed the same codes: ||x - reference|| / ||reference||.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine_lib import random_model
from engine_lib.kernels.compile import default_cache
from engine_lib.talker.config import SUPPRESSED_TAIL, TalkerConfig
from engine_lib.talker.frame_kernel import COLUMN, FED_BACK, FIRST_FRAME, MOST_COLUMNS, ROW, FrameKernel
from engine_lib.talker.frame_weights import FrameWeights
from engine_lib.talker.kernel_runner import KernelRunner
from engine_lib.talker.kv_cache import KVCache
from engine_lib.talker.model import Talker
from engine_lib.talker.runner import Runner
from engine_lib.talker.scheduler import Batch
from engine_lib.talker.step import Steps
from engine_lib.talker.stream import Sampling, Stream
from engine_lib.text.prompt import Prompt
from engine_lib.timing import median_time

POSITIONS = 2048
USUAL = Sampling(0.9, 50, 1.0, 1.05, 0.9, 50, 1.0)  # generation_config.json of the published checkpoints
PROMPT = 10  # positions of a streaming-text prompt
REPEATS = 30


@dataclass(frozen=True)
class Row:
    """One line of the result: what was timed, of how many streams, at which context, and the times in ms."""

    what: str
    batch: int
    context: int
    kernel: float
    plain: float | None
    floor: float


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.empty(2**32, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    milliseconds = median_time(lambda: target.copy_(source), REPEATS)
    return 2 * source.numel() / (milliseconds / 1000)


def stream(slot: int, context: int) -> Stream:
    """A stream whose next step feeds back the frame at cache position context - 1; in its prompt for PROMPT."""
    prompt = Prompt(tuple(range(100, 100 + PROMPT)), (2148,) * PROMPT, (), 8)
    made = Stream(
        str(slot),
        prompt,
        sampling=USUAL,
        seed=slot,
        limit=POSITIONS,
        chunk_schedule=(1,),
        hurry_lead_s=0.0,
        eos_id=2150,
        pad_id=151671,
        ignore_eos=True,
        mask_eos=False,
        deliver=lambda chunk: None,
    )
    made.slot = slot
    if context > PROMPT:
        made.prefilled, made.asked = PROMPT, context - PROMPT
    return made


def frame_time(steps: Steps, batch: int, context: int) -> float:
    """One frame of `batch` streams at `context`."""
    streams = [stream(slot, context) for slot in range(batch)]
    return median_time(lambda: steps.start(Batch([], streams)).wait(), REPEATS)


def first_frame_time(steps: Steps, batch: int) -> float:
    """Prompts and first frames of `batch` streams."""

    def run() -> None:
        waiting = [stream(slot, PROMPT) for slot in range(batch)]
        while waiting:
            steps.start(Batch(waiting, [])).wait()
            waiting = [one for one in waiting if one.in_prefill]

    return median_time(run, REPEATS)


def prompt_time(kernel: FrameKernel, batch: int) -> float:
    """Prompts of `batch` streams alone, without a frame."""
    columns = [(0, slot, position, 0, 0, 100, 2148, 0, 0) for slot in range(batch) for position in range(PROMPT)]
    parts = [np.array(columns[at : at + MOST_COLUMNS], COLUMN) for at in range(0, len(columns), MOST_COLUMNS)]
    for part in parts:
        part["base"] = [int(np.flatnonzero(part["slot"] == slot)[0]) for slot in part["slot"]]
        part["first"] = [int(part["position"][part["slot"] == slot].min()) for slot in part["slot"]]
    none = np.zeros(0, ROW)
    return median_time(lambda: [kernel.launch(part, none) for part in parts], REPEATS)


class Reference:
    """A talker in plain torch that is fed what the kernel was fed."""

    def __init__(self, talker: Talker) -> None:
        self._talker = talker
        self._device = talker.codec_head.weight.device
        config = talker.config.talker
        dtype = talker.codec_head.weight.dtype
        self._cache = KVCache(config.layers, 1, POSITIONS, config.kv_heads, config.head_dim, dtype, self._device)

    @torch.inference_mode()
    def prompt(self, prompt: Prompt, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of a prompt's first frame: [1, vocabulary] and [15, 1, codes], for the frame `codes` [1, 16]."""
        text, codec = (torch.tensor([lane], device=self._device) for lane in (prompt.text, prompt.codec))
        return self._logits(self._talker.prompt_embedding(text, codec), 0, codes)

    @torch.inference_mode()
    def frame(self, latest: Tensor, text: int, position: int, codes: Tensor) -> tuple[Tensor, Tensor]:
        """The same of the frame after `latest` [1, 16]."""
        x = self._talker.frame_embedding(latest) + self._talker.text_side(torch.tensor([text], device=self._device))
        return self._logits(x[None], position, codes)

    def remember(self, past: Tensor) -> None:
        """Take keys and values [2, layers, kv_heads, positions, head_dim] as the stream's past."""
        for store, taken in zip((self._cache.keys, self._cache.values), past, strict=True):
            store[:, 0, : taken.shape[2]] = taken.transpose(1, 2)

    def _logits(self, x: Tensor, position: int, codes: Tensor) -> tuple[Tensor, Tensor]:
        positions = position + torch.arange(x.shape[1], device=self._device)[None]
        slot = torch.zeros(1, dtype=torch.long, device=self._device)
        hidden = self._talker(x, self._cache, slot, positions, POSITIONS)[:, -1]
        others: list[Tensor] = []

        def given(group: int, logits: Tensor) -> Tensor:
            others.append(logits.float())
            return codes[:, group]

        self._talker.code_predictor(hidden, self._talker.model.codec_embedding(codes[:, 0]), given)
        return self._talker.codec_head(hidden).float(), torch.stack(others)


class Probe:
    """One stream in the kernel, frame by frame, with its logits."""

    def __init__(self, kernel: FrameKernel, config: TalkerConfig, slot: int, seed: int) -> None:
        self._kernel, self._config, self._slot = kernel, config, slot
        rule = (seed, 0, FIRST_FRAME, 1 / 0.9, 1.0, 1.05, 50, 1 / 0.9, 1.0, 50, 0)
        self._rows = np.array([rule], ROW)

    def prompt(self, prompt: Prompt) -> tuple[NDArray[np.int32], tuple[Tensor, Tensor]]:
        """The first frame's codes [1, 16] and logits."""
        lanes = zip(prompt.text, prompt.codec, strict=True)
        columns = [(0, self._slot, at, 0, 1, text, codec, 0, 0) for at, (text, codec) in enumerate(lanes)]
        return self._launch([columns[-1], *columns[:-1]])

    def frame(self, text: int, position: int) -> tuple[NDArray[np.int32], tuple[Tensor, Tensor]]:
        """The next frame's."""
        self._rows["flags"] = 0
        self._rows["frame"] += 1
        return self._launch([(0, self._slot, position, position, 0, text, FED_BACK, 0, 0)])

    def _launch(self, columns: list[tuple[int, ...]]) -> tuple[NDArray[np.int32], tuple[Tensor, Tensor]]:
        talker, predictor = self._config.talker, self._config.predictor
        logits = (
            torch.full((1, talker.vocabulary), torch.nan, device=self._kernel.device),
            torch.full((15, 1, predictor.vocabulary), torch.nan, device=self._kernel.device),
        )
        return self._kernel.launch(np.array(columns, COLUMN), self._rows, logits).wait().copy(), logits


def errors(talker: Talker, kernel: FrameKernel, frames: int = 8) -> dict[str, float]:
    """Relative errors of the kernel's and of torch's bf16 logits over the first frames of one stream."""
    generator = np.random.default_rng(0)
    config = talker.config
    ids = generator.integers(0, config.text_vocabulary, PROMPT), generator.integers(2048, 3072, PROMPT)
    prompt = Prompt(tuple(map(int, ids[0])), tuple(map(int, ids[1])), (), 1)
    exact, plain = Reference(copy.deepcopy(talker).float()), Reference(talker)
    probe = Probe(kernel, config, slot=0, seed=1)
    sums = dict.fromkeys(("kernel talker", "kernel predictor", "torch talker", "torch predictor"), 0.0)
    latest = torch.empty(0)
    for number in range(frames):
        text, position = 100 + number, PROMPT + number - 1
        codes, logits = probe.frame(text, position) if number else probe.prompt(prompt)
        frame = torch.from_numpy(codes).to(kernel.device, torch.long)
        wanted, torches = (
            reference.frame(latest, text, position, frame) if number else reference.prompt(prompt, frame)
            for reference in (exact, plain)
        )
        for name, got in (("kernel", logits), ("torch", torches)):
            for part, ours, theirs in zip(("talker", "predictor"), got, wanted, strict=True):
                sums[f"{name} {part}"] += relative(ours, theirs) / frames
        latest = frame
    return sums


def relative(got: Tensor, wanted: Tensor) -> float:
    """||got - wanted|| / ||wanted||."""
    return float((got - wanted).norm() / wanted.norm())


def is_batch_invariant(steps: KernelRunner, batches: Sequence[int]) -> bool:
    """Whether a stream's frames are the same alone and among others, first and later ones, in any row."""

    def spoken(slots: list[int]) -> dict[int, list[list[int]]]:
        streams = [stream(slot, PROMPT) for slot in slots]
        heard: dict[int, list[list[int]]] = {slot: [] for slot in slots}
        while any(len(frames) < 6 for frames in heard.values()):
            batch = Batch([one for one in streams if one.in_prefill], [one for one in streams if not one.in_prefill])
            step = steps.start(batch)
            for one, codes in zip(step.streams, step.wait(), strict=True):
                one.asked += 1
                heard[int(one.id)].append(codes.tolist())
        return {slot: frames[:6] for slot, frames in heard.items()}

    alone = {slot: spoken([slot])[slot] for slot in range(max(batches))}
    return all(
        frames == alone[slot]
        for batch in batches
        for slots in (list(range(batch)), list(range(batch))[::-1])
        for slot, frames in spoken(slots).items()
    )


def weight_bytes(weights: FrameWeights, *, frame: bool) -> int:
    """Bytes of matrices that a frame (or a prompt's launch) reads."""
    legs = (weights.frame_schedule if frame else weights.prompt_schedule)[0, :, 2].cpu().tolist()
    matrices = [matrix for matrix, chunks in zip(weights.matrices, legs, strict=False) if chunks]
    return sum(matrix.tiles.numel() * matrix.tiles.element_size() for matrix in matrices)


def run(size: str, batches: Sequence[int], contexts: Sequence[int]) -> dict[str, Any]:
    """The whole bench, as plain data."""
    device = torch.device("cuda:0")
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(random_model.talker_config(size)), encoding="utf-8")
        config = TalkerConfig.from_directory(Path(directory))
    assert config.codes == config.talker.vocabulary - SUPPRESSED_TAIL
    talker = random_model.talker(config, device)
    bandwidth = copy_bandwidth(device)
    plain = Runner(talker, max(batches), POSITIONS, 64)
    plain.warm_up(USUAL)
    plains = {(batch, context): frame_time(plain, batch, context) for batch in batches for context in contexts}
    firsts = {batch: first_frame_time(plain, batch) for batch in (1, 8)}
    del plain
    torch.cuda.empty_cache()
    steps = KernelRunner(talker, max(batches), POSITIONS, cache=default_cache())
    steps.warm_up(USUAL)
    frame_floor = weight_bytes(steps.weights, frame=True) / bandwidth * 1000
    prompt_floor = weight_bytes(steps.weights, frame=False) / bandwidth * 1000
    rows = [
        Row("frame", batch, context, frame_time(steps, batch, context), plains[batch, context], frame_floor)
        for context in contexts
        for batch in batches
    ]
    rows += [
        Row("prompt and first frame", batch, PROMPT, first_frame_time(steps, batch), firsts[batch], frame_floor)
        for batch in (1, 8)
    ]
    rows += [
        Row("prompt alone", batch, PROMPT, prompt_time(steps.kernel, batch), None, prompt_floor) for batch in (1, 8)
    ]
    return {
        "date": datetime.date.today().isoformat(),
        "card": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "size": size,
        "copy_bandwidth_tb_s": bandwidth / 1e12,
        "rows": [vars(row) for row in rows],
        "errors": errors(talker, steps.kernel),
        "batch_invariant": is_batch_invariant(steps, batches),
    }


def markdown(result: dict[str, Any]) -> str:
    """The result as a table with what must be known to read it."""
    head = (
        f"{result['size']}, {result['card']}, torch {result['torch']}, {result['date']}; "
        f"copies move {result['copy_bandwidth_tb_s']:.2f} TB/s"
    )
    lines = [
        head,
        "",
        "| what | streams | context | kernel ms | plain graph ms | floor ms |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        plain = "" if row["plain"] is None else f"{row['plain']:.2f}"
        times = f"{row['kernel']:.2f} | {plain} | {row['floor']:.2f}"
        lines.append(f"| {row['what']} | {row['batch']} | {row['context']} | {times} |")
    lines += ["", *(f"- error of the logits, {name}: {value:.2e}" for name, value in result["errors"].items())]
    lines.append(f"- same codes alone and in every batch: {'yes' if result['batch_invariant'] else 'NO'}")
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.bench", description=__doc__)
    parser.add_argument("--size", choices=random_model.SIZES, default="1.7B")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1000])
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    result = run(arguments.size, arguments.batches, arguments.contexts)
    print(markdown(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
