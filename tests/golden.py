"""Golden outputs of the official implementation, and the small checkpoint behind them (tests/data/README.md)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine_lib.wire import Voice

DATA = Path(__file__).parent / "data"
CHECKPOINT = DATA / "checkpoint_custom_voice"
BASE = DATA / "checkpoint_base"
VARIANTS = {"cv": None, "vd": "config.voice_design.json", "cv_0b6": "config.custom_voice_0b6.json"}


@dataclass(frozen=True)
class Golden:
    """One case: what was asked, and the arrays that came out."""

    name: str
    info: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]


def golden(name: str) -> Golden:
    """Read one case from tests/data/golden."""
    info = json.loads((DATA / "golden" / f"{name}.json").read_text(encoding="utf-8"))["info"]
    with np.load(DATA / "golden" / f"{name}.npz") as arrays:
        return Golden(name, info, dict(arrays))


def utterances() -> list[str]:
    """Names of the cases that hold one whole utterance."""
    return sorted(
        path.stem
        for path in (DATA / "golden").glob("[cv][vd]_*.json")
        if "wav" in json.loads(path.read_text())["arrays"]
    )


def checkpoint(name: str, folder: Path) -> Path:
    """The checkpoint directory for a case: the stored one, or a copy in `folder` with the variant's config."""
    if name.startswith("bc"):
        return BASE
    variant = VARIANTS["cv_0b6" if name.startswith("cv_0b6") else name[:2]]
    if variant is None:
        return CHECKPOINT
    directory = folder / variant
    if not directory.exists():
        shutil.copytree(CHECKPOINT, directory)
        shutil.copy(DATA / variant, directory / "config.json")
    return directory


def clones() -> list[str]:
    """Names of the cases that hold one utterance in a cloned voice."""
    return sorted(path.stem for path in (DATA / "golden").glob("bc_*.json"))


def voice_of(case: Golden) -> Voice:
    """The voice that a case speaks in, from the official encoders."""
    sample, request = golden("clone_frontend"), case.info["request"]
    if request.get("x_vector_only_mode"):
        return Voice(sample["x_vector"])
    return Voice(sample["x_vector"], sample["ref_codes"].astype(np.int32), request["ref_text"])
