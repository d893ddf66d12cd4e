"""What the Triton models do at their start: choose the device, find the checkpoint, size the thread pool."""

from __future__ import annotations

import gc
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from engine_lib import noise
from engine_lib.errors import ConfigurationError
from engine_lib.files import TINY, locate
from engine_lib.profile import EngineSettings
from engine_lib.turns import CodecTurns, TalkerTurns

log = logging.getLogger(__name__)

Side = TypeVar("Side", TalkerTurns, CodecTurns)


@dataclass(frozen=True)
class Prepared:
    """A checkpoint on this disk and the device to run it on."""

    directory: Path
    device: torch.device
    model: str  # what clients are told: the id, or the directory's own name
    speaks: bool  # False: random weights


def prepare(settings: EngineSettings) -> Prepared:
    """Resolve the settings on this machine. Raises ConfigurationError naming what can't be had."""
    device = choose_device(settings.device)
    if device.type == "cpu":
        # Talker and codec are two processes that share the cores; more threads than cores only fight.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    model = settings.model or TINY
    if model == noise.NAME:
        return Prepared(noise.checkpoint(), device, model, speaks=False)
    directory = locate(model, cache_dir=settings.cache_dir, local_files_only=settings.local_files_only)
    name = directory.name if model != TINY and Path(model).expanduser().is_dir() else model
    return Prepared(directory, device, name, speaks=True)


def choose_device(wanted: str) -> torch.device:
    """`auto` is the first CUDA device where there is one. Raises ConfigurationError for one that isn't there."""
    if wanted == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigurationError(f"QWEN3_TTS_DEVICE must be auto, cpu, cuda or cuda:N, not {wanted!r}.", param="device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise ConfigurationError(
            f"QWEN3_TTS_DEVICE is {wanted}, but this machine has {found} CUDA devices.", param="device"
        )
    return device


def take_turns(side: type[Side], settings: EngineSettings, ready: Prepared) -> Side | None:
    """A side's turns at the GPU that talker and codec share; None where they share none, or can't talk."""
    if not settings.profile.gpu_turns_rows or ready.device.type != "cuda":
        return None
    # A Triton without `serve` has a file by its number: both models are its children.
    path = Path(settings.turns_file or f"/dev/shm/qwen3-tts-turns-{os.getppid()}")
    try:
        return side(path)
    except OSError as error:
        log.warning("talker and codec take no turns at the GPU, which makes first sounds later: %s", error)
        return None


def settle() -> None:
    """Call when everything that lasts is made: the collector then never walks through it again, in nobody's way."""
    gc.collect()
    gc.freeze()
