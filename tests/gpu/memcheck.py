"""Small cases of every kernel variant, for compute-sanitizer, under which the tests themselves take too long:

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1
    compute-sanitizer --padding 4096 --report-api-errors no --kernel-name kne=frame python -m tests.gpu.memcheck frame

Without torch's cache every tensor is an allocation of its own, so that a step beyond its end is seen. Errors of API
calls aren't ours: CUDA's Python bindings ask for functions that the driver hasn't got. Prints a digest of all that was
made, which must be the same without the sanitizer. `planted frame` and `planted codec` make a mistake that must be
found.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from engine_lib import random_model
from engine_lib.codec.config import DecoderConfig
from engine_lib.codec.kernels.runner import KernelRunner
from engine_lib.codec.kernels.weights import weights_of
from engine_lib.codec.path import DTYPES, load_kernels
from engine_lib.kernels.compile import default_cache
from engine_lib.talker.config import TalkerConfig
from engine_lib.talker.frame_kernel import COLUMN, FED_BACK, FIRST_FRAME, MAY_END, ROW, FrameKernel, tiles_for
from engine_lib.talker.frame_weights import pack_talker
from engine_lib.wire import SAMPLES_PER_FRAME
from tests.engine_lib.codec.random_decoder import SMALL, TRUE, random_decoder

CUDA = torch.device("cuda:0")
LAYERS, SLOTS, POSITIONS = 2, 32, 512
PATIENCE = 2**28  # tries of a wait, where the kernel's own limit is 2**20: it runs a hundred times slower here
FRAMES = [(1, 1), (3, 3), (8, 8), (9, 9), (16, 16), (32, 32)]  # columns, rows, one stream each
PROMPTS = [(8, 1), (32, 0), (13, 1), (32, 1), (32, 9)]  # columns of one prompt after rows of streams
CALLS = [(1, 1, 0), (2, 3, 0), (5, 4, 70), (3, 25, 80), (32, 12, 3)]  # rows, frames, frames before


def frame(size: str, missing: int = 0) -> str:
    """A digest of the frame kernel's codes and logits at the ends of all it reads and writes.

    `missing`: rows of logits for which there is no place.
    """
    with tempfile.TemporaryDirectory() as directory:
        written = random_model.talker_config(size)
        written["talker_config"]["num_hidden_layers"] = LAYERS
        (Path(directory) / "config.json").write_text(json.dumps(written), encoding="utf-8")
        config = TalkerConfig.from_directory(Path(directory))
    weights = pack_talker(random_model.talker(config, CUDA), POSITIONS)
    kernel = FrameKernel(config, weights, SLOTS, POSITIONS, cache=default_cache(), extra={"PATIENCE": PATIENCE})
    voice = torch.full((1, config.talker.hidden), 0.5, device=CUDA).bfloat16()
    kernel.keys.fill_(0.5)
    kernel.values.fill_(0.25)
    digest = hashlib.sha256()
    for count, rows in FRAMES + PROMPTS:
        begin = time.perf_counter()
        last = range(SLOTS - 1, SLOTS - 1 - count, -1)
        columns = np.array([(0, slot, POSITIONS - 1 - slot % 3, 0, 0, 0, FED_BACK, 0, 0) for slot in last], COLUMN)
        columns["first"] = columns["position"]
        columns["text"] = random_model.TEXT_VOCABULARY - 1
        if count > rows:
            own = max(0, rows - 1)  # of the streams beside the prompt, whose last position samples if any does
            length = count - own
            order = [length - 1, *range(length - 1)] if rows else [*range(length)]
            at = POSITIONS - length
            columns["slot"][own:] = 0
            columns["position"][own:] = [at + position for position in order]
            columns["first"][own:], columns["base"][own:] = at, rows
            columns["code"][own:] = 3071
            columns["side"][-1] = voice.data_ptr()
        rules = np.array([(row, 0, 0, 1 / 0.9, 0.9, 1.05, 50, 1 / 0.9, 0.9, 50, 0) for row in range(rows)], ROW)
        rules["flags"][::2] = FIRST_FRAME | MAY_END
        made = torch.zeros(max(0, rows - missing), 3072, device=CUDA), torch.zeros(15, rows, 2048, device=CUDA)
        codes = kernel.launch(columns, rules, made if rows else None).wait()
        for part in (codes, *(tensor.cpu().numpy() for tensor in made)):
            digest.update(part.tobytes())
        variant = tiles_for(count, rows)
        print(f"frame {size} {count} columns {rows} rows {variant} {time.perf_counter() - begin:.2f} s", flush=True)
    return digest.hexdigest()[:16]


def codec(config: DecoderConfig, number: str) -> str:
    """A digest of the codec kernels' samples."""
    weights = weights_of(random_decoder(config, device="cuda"), DTYPES[number])
    runner = KernelRunner(weights, load_kernels(number), SLOTS, SLOTS, record=False)
    draw, digest = np.random.default_rng(0), hashlib.sha256()
    for rows, frames, before in CALLS:
        begin = time.perf_counter()
        slots = list(range(SLOTS - rows, SLOTS))
        for slot in slots:
            runner.reset(slot)
        for done in range(0, before, 25):
            step = min(25, before - done)
            runner.decode_float(slots, [draw.integers(0, config.codebook_size, (step, 16)) for _ in slots])
        codes = [draw.integers(0, config.codebook_size, (max(1, frames - row % 3), 16)) for row in range(rows)]
        for part in runner.decode_float(slots, codes):
            digest.update(part.tobytes())
        _, count, width = runner._upload(slots, codes)
        runner._module.start_all(runner.launches(count, width))
        pcm = runner._pcm.cpu().numpy()[: count * width * SAMPLES_PER_FRAME].reshape(count, -1)
        for row, part in enumerate(codes):
            digest.update(pcm[row, : len(part) * SAMPLES_PER_FRAME].tobytes())
        print(f"codec {number} {rows} rows {frames} frames {time.perf_counter() - begin:.2f} s", flush=True)
    return digest.hexdigest()[:16]


def codec_planted() -> str:
    """Samples for which there is one place too few."""
    weights = weights_of(random_decoder(SMALL, device="cuda"), DTYPES["float16"])
    runner = KernelRunner(weights, load_kernels("float16"), 1, 1, record=False)
    runner._upload([0], [np.zeros((1, 16), np.int64)])
    wave = torch.zeros(SAMPLES_PER_FRAME - 1, device=CUDA)
    runner._module.start_all(runner.launches(1, 1, wave))
    return f"{float(wave.sum()):.3f}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["frame", "codec", "planted"])
    parser.add_argument(
        "which", nargs="*", help="sizes (0.6B 1.7B), formats (float16 bfloat16); planted: frame or codec"
    )
    asked = parser.parse_args()
    if asked.what == "planted":
        print(frame("0.6B", missing=1) if asked.which == ["frame"] else codec_planted())
    elif asked.what == "frame":
        for size in asked.which or ["0.6B", "1.7B"]:
            print(f"digest frame {size}: {frame(size)}", flush=True)
    else:
        for number in asked.which or ["float16", "bfloat16"]:
            for name, config in (("small", SMALL), ("true", TRUE)):
                print(f"digest codec {name} {number}: {codec(config, number)}", flush=True)


if __name__ == "__main__":
    main()
