"""Times the codec on this machine's GPU: kernels and plain decoder, and how far the kernels are from it.

python -m engine_lib.codec.bench DIRECTORY [--json FILE], DIRECTORY being a checkpoint's speech_tokenizer. For the
times, random weights of the released sizes are as good as real ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_lib import wire
from engine_lib.codec.kernels.fit import misfit
from engine_lib.codec.kernels.launch import Module
from engine_lib.codec.kernels.program import Convolve
from engine_lib.codec.kernels.runner import KernelRunner
from engine_lib.codec.kernels.weights import weights_of
from engine_lib.codec.model import Decoder
from engine_lib.codec.path import DTYPES, load_kernels
from engine_lib.codec.runner import Codes, Runner
from engine_lib.timing import median_time

SIZES = [(rows, frames) for rows in (1, 8, 32) for frames in (1, 4, 12)]
TENSOR_RATE = 790e12  # bf16 operations a second that a matrix product reached on an H200 (docs/benchmarks/codec.md)
REPEATS = 20


def main(arguments: list[str]) -> None:
    """Print the table, one line for each size, and the errors."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.codec.bench")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    options = parser.parse_args(arguments)
    device = torch.device("cuda:0")
    decoder = Decoder.from_directory(options.directory, torch.float32, device)
    if (reason := misfit(decoder.config, device)) is not None:
        sys.exit(f"The kernels don't run here: {reason}.")
    result = measure(decoder, {number: load_kernels(number) for number in ("float16", "bfloat16")})
    sys.stdout.write(table(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def measure(decoder: Decoder, modules: dict[str, Module]) -> dict[str, Any]:
    """Times in milliseconds by kind and size ("rows x frames"), and relative errors of the kernels."""
    draw = np.random.default_rng(0)
    codes: list[Codes] = [draw.integers(0, decoder.config.codebook_size, (25, wire.CODEBOOKS)) for _ in range(32)]
    plain = Runner(decoder, 32)
    wanted = plain.decode_float([0], [codes[0]])[0]
    times: dict[str, dict[str, float]] = {}
    errors: dict[str, float] = {}
    for number, module in modules.items():
        runner = KernelRunner(weights_of(decoder, DTYPES[number]), module, 32, 32)
        got = runner.decode([0], [codes[0]])[0] / np.float32(32767)
        errors[number] = float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
        times[f"{number} graph"] = {_name(*size): graph_ms(runner, *size) for size in SIZES}
        times[f"{number} decode()"] = _decode_times(runner, codes)
        times["floor"] = {_name(*size): floor_ms(runner, *size) for size in SIZES}
    times["plain float32 decode()"] = _decode_times(plain, codes)
    return {"device": torch.cuda.get_device_name(), "ms": times, "error": errors}


def graph_ms(runner: KernelRunner, rows: int, frames: int) -> float:
    """The median of a recorded call's replays."""
    call = runner.call(rows, frames)
    call.row.copy_(torch.tensor([[row, 100, frames, 0] for row in range(rows)], dtype=torch.int32))
    call.codes.random_(0, runner.codebook_size)
    return median_time(lambda: runner.replay(rows, frames), REPEATS)


def floor_ms(runner: KernelRunner, rows: int, frames: int) -> float:
    """The time of the products' arithmetic alone at TENSOR_RATE."""
    products = 0
    for step in runner.steps(rows, frames):
        if isinstance(step, Convolve):
            each = [step.product] + ([step.then[1]] if step.then else [])
            products += step.per_frame * sum(part.up * part.outputs * part.taps * part.inputs for part in each)
    return 2e3 * products * rows * frames / TENSOR_RATE


def _decode_times(runner: Runner | KernelRunner, codes: list[Codes]) -> dict[str, float]:
    times = {}
    for rows, frames in SIZES:
        chunks = [row[:frames] for row in codes[:rows]]
        times[_name(rows, frames)] = _wall_ms(partial(runner.decode, range(rows), chunks))
    return times


def _wall_ms(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def _name(rows: int, frames: int) -> str:
    return f"{rows} x {frames}"


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    names = [_name(*size) for size in SIZES]
    lines = [f"| {result['device']}, ms | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for kind, times in result["ms"].items():
        lines.append(f"| {kind} | " + " | ".join(f"{times[name]:.2f}" for name in names) + " |")
    lines += [f"\nError against float32, {number}: {error:.2e}" for number, error in result["error"].items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
