"""The /dev/shm regions of one Triton server: enough room, a name of their own, and none left behind.

Triton's Python backend keeps a region per model process, and forgets it when that process is killed. Every server of
ours names its regions by a prefix of its own and holds a lock file of the same prefix, so the next one can tell the
regions of the dead from those of the living: whoever gets a lock finds its owner dead. (A pid in the name would not
do: containers may share /dev/shm but not pids.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path
from typing import Self

from engine_lib.errors import ConfigurationError

DIRECTORY = Path("/dev/shm")
FAMILY = "qwen3-tts-"
MIB = 1 << 20
BYTES_PER_MODEL = 16 * MIB  # what one model's process takes under full load, with room to spare


class Regions:
    """The prefix of one server's regions. Use with `with`: leaving it removes them."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._directory = directory
        self.prefix = f"{FAMILY}{secrets.token_hex(4)}-"
        self._lock = -1

    def __enter__(self) -> Self:
        self._lock = os.open(self._directory / f"{self.prefix}lock", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._directory, self.prefix)
        os.close(self._lock)

    def clear(self) -> None:
        """Remove the regions and keep the prefix, for a server that is started again."""
        _remove(self._directory, self.prefix, but=f"{self.prefix}lock")


def remove_abandoned(directory: Path = DIRECTORY) -> list[str]:
    """Remove the regions of servers that were killed together with their supervisor. Returns their prefixes."""
    found = []
    for path in directory.glob(f"{FAMILY}*-lock"):
        with contextlib.suppress(FileNotFoundError, PermissionError, BlockingIOError), path.open("rb+") as file:
            # Each of the three means: not ours to remove. It went in between, is another user's, or its owner lives.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            prefix = path.name.removesuffix("lock")
            _remove(directory, prefix)
            found.append(prefix)
    return found


def _remove(directory: Path, prefix: str, but: str = "") -> None:
    for path in directory.glob(f"{prefix}*"):
        if path.name != but:
            path.unlink(missing_ok=True)


def check_room(models: int, directory: Path = DIRECTORY) -> None:
    """Raise ConfigurationError unless `directory` has room for the regions of so many models."""
    try:
        state = os.statvfs(directory)
    except OSError as error:
        raise ConfigurationError(f"Triton needs shared memory at {directory}: {error.strerror}.") from None
    free, need = state.f_bavail * state.f_frsize, models * BYTES_PER_MODEL
    if free < need:
        raise ConfigurationError(
            f"{directory} has {free // MIB} MiB free, and {models} models need {need // MIB} MiB. "
            f"In a container start it with --shm-size={max(64, 2 * need // MIB)}m."
        )
