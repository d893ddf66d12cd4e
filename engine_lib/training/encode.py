"""Turn the teacher's speech into codes with the trained codec, part after part, also while more is being made.

    python -m engine_lib.training.encode SPEECH CODEC OUT --seconds 340

Every part becomes OUT/NNNNN.npz; with `--seconds` it goes on looking for new parts until then.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engine_lib.codec.config import DecoderConfig
from engine_lib.training import codec as codec_stage
from engine_lib.training.codec import Codec
from engine_lib.training.speech import HOP, Part, Speech
from engine_lib.training.steps import choose_device, log, start_log


@dataclass(frozen=True)
class Coded(Part):
    """speech.Speech with codes, uint8 [frames, 16], in the samples' place."""

    codes: NDArray[np.uint8]
    phones: NDArray[np.uint8]
    frames: NDArray[np.int32]
    text: NDArray[np.int32]
    speaker: NDArray[np.int32]


@torch.no_grad()
def encode(codec: Codec, speech: Speech, device: torch.device) -> Coded:
    """All utterances of a part at once, each by itself."""
    longest = int(speech.frames.max())
    samples = torch.zeros(len(speech.frames), longest * HOP, device=device)
    begins = np.concatenate([[0], np.cumsum(speech.frames)])
    for row, (begin, frames) in enumerate(zip(begins, speech.frames, strict=False)):
        part = speech.samples[begin * HOP : (begin + frames) * HOP]
        samples[row, : len(part)] = torch.from_numpy(part.astype(np.float32) / 32768)
    latent = codec.latent(codec.from_teacher(samples))
    codes = codec.quantizing(codec.decoder.quantizer, latent, False)[1].cpu().numpy()  # [rows, 16, longest]
    flat = [row[:, :frames].T for row, frames in zip(codes, speech.frames, strict=True)]
    return Coded(np.concatenate(flat).astype(np.uint8), speech.phones, speech.frames, speech.text, speech.speaker)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m engine_lib.training.encode", description=__doc__)
    parser.add_argument("speech", type=Path, help="folder of the stage `speech`")
    parser.add_argument("codec", type=Path, help="folder of the stage `codec`")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=0.0, help="go on for so long")
    arguments = parser.parse_args()
    start_log()
    deadline = time.time() + arguments.seconds
    device = choose_device()
    config = DecoderConfig.from_directory(arguments.codec)
    codec = Codec.load(arguments.codec / codec_stage.WEIGHTS, config, device)
    arguments.out.mkdir(parents=True, exist_ok=True)
    parts = 0
    while True:
        done = {path.name for path in arguments.out.glob("*.npz")}
        new = [path for path in sorted(arguments.speech.glob("*.npz")) if path.name not in done]
        for path in new:
            encode(codec, Speech.read(path), device).write(arguments.out / path.name)
            parts += 1
            if parts % 100 == 0:
                log.info("%d parts encoded", parts)
        if not new:
            if time.time() > deadline:
                break
            time.sleep(1.0)
    log.info("%d parts encoded, no more to come", parts)


if __name__ == "__main__":
    main()
