"""From options and environment to what the two processes get, and the resolved configuration in print."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from engine_lib.profile import EngineSettings

NOISE = "noise"  # QWEN3_TTS_MODEL of the checkpoint with random weights
TINY = "tiny"  # of the voice that comes with the package
DEFAULT_MODEL = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"


def environment(base: Mapping[str, str], options: Mapping[str, str | None]) -> dict[str, str]:
    """`base` with the variables of `options` that aren't None over it, and QWEN3_TTS_MODEL set in any case."""
    given = {name: value for name, value in options.items() if value is not None}
    result = {**base, **given}
    if "QWEN3_TTS_PROFILE" in given:  # a profile by option beats a file by environment
        result.pop("QWEN3_TTS_ENGINE_CONFIG", None)
    if not result.get("QWEN3_TTS_MODEL"):
        result["QWEN3_TTS_MODEL"] = default_model(result.get("QWEN3_TTS_DEVICE") or "auto")
    return result


def default_model(device: str) -> str:
    """The checkpoint to serve when none was chosen: the large one only where a GPU can run it."""
    return TINY if device == "cpu" or not cuda_device_present() else DEFAULT_MODEL


def cuda_device_present() -> bool:
    """Whether an NVIDIA GPU is here, found without torch."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return True
    if (program := shutil.which("nvidia-smi")) is None:
        return False
    # WSL has the program but no such device file; the program alone, without a driver, fails or lists nothing.
    listing = subprocess.run([program, "-L"], capture_output=True, text=True, check=False, timeout=60)
    return listing.returncode == 0 and "GPU " in listing.stdout


def describe(settings: EngineSettings) -> str:
    """The resolved configuration as YAML that --engine-config takes; what isn't part of a profile is a comment."""
    resolved = {key: list(value) if isinstance(value, tuple) else value
                for key, value in settings.profile.resolved().items()}  # fmt: skip
    return "\n".join(
        [
            f"# model: {settings.model}",
            f"# device: {settings.device}",
            f"# cache_dir: {settings.cache_dir or 'default'}",
            f"# local_files_only: {str(settings.local_files_only).lower()}",
            f"# sha256: {settings.profile.digest()}",
            yaml.safe_dump(resolved, sort_keys=False, default_flow_style=None, width=120).rstrip(),
        ]
    )
