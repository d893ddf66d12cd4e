"""Cloned voices in a folder, one safetensors file each, so that they outlive the process.

A file is named by the voice's random id alone; its name, owner and text stand inside. Knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import tempfile
import threading
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from engine_lib.errors import InvalidRequest
from engine_lib.wire import CODEBOOKS, Voice, folded

log = logging.getLogger(__name__)

FORMAT = "qwen3-tts-voice-1"
ID = re.compile(r"voice_[0-9a-f]{32}")
MAX_NAME, MAX_CONSENT = 64, 512  # characters
MAX_FILE_BYTES = 1 << 20
CLOCK_TICK_NS = 1_000_000_000
_NAME_SIGNS = " -_.'()&+,"  # beside letters, marks and digits of any script


@dataclass(frozen=True, eq=False)
class StoredVoice:
    """A voice with what is known of it."""

    id: str
    name: str
    owner: str  # see service.owner_of
    model: str  # the checkpoint that it was made with, and can be used with
    created_at: int  # seconds since 1970
    consent: str  # what its maker said about the speaker's consent
    voice: Voice


def new_id() -> str:
    """An id that nobody can guess."""
    return f"voice_{secrets.token_hex(16)}"


def check_name(name: str) -> str:
    """`name` in NFC and without outer spaces. Raises InvalidRequest unless it's a name for people."""
    name = unicodedata.normalize("NFC", name).strip()
    if not 1 <= len(name) <= MAX_NAME or not folded(name):
        raise InvalidRequest(f"'name' must have 1 to {MAX_NAME} characters.", param="name")
    if not all(unicodedata.category(sign)[0] in "LMN" or sign in _NAME_SIGNS for sign in name) or name[0] == ".":
        raise InvalidRequest("'name' must consist of letters, digits and spaces.", param="name")
    return name


class VoiceStore:
    """The voices in `folder`, at most `most` an owner. Safe for several threads, and for several processes."""

    def __init__(self, folder: Path, most: int) -> None:
        self._folder = folder
        self._most = most
        self._lock = threading.Lock()  # of the voices in memory
        self._write_lock = threading.Lock()  # so that between a check for room and the write nobody else writes
        self._voices: dict[str, StoredVoice] = {}
        self._unreadable: set[str] = set()
        self._seen = -1  # the folder's time of change when it was last read

    def visible(self, owner: str | None, model: str) -> list[StoredVoice]:
        """What `owner`, or anyone if None, may use with `model`, oldest first."""
        with self._lock:
            self._refresh()
            found = [
                stored
                for stored in self._voices.values()
                if stored.model == model and (owner is None or stored.owner == owner)
            ]
        return sorted(found, key=lambda stored: (stored.created_at, stored.id))

    def find(self, name: str, owner: str | None, model: str) -> StoredVoice | None:
        """The voice of that id or name."""
        return next((v for v in self.visible(owner, model) if v.id == name or folded(v.name) == folded(name)), None)

    def check_room(self, name: str, owner: str | None, model: str) -> None:
        """Raise InvalidRequest when `name` is taken, or no more voices may be kept."""
        if self.find(name, owner, model):
            raise InvalidRequest("There is a voice of this 'name' already.", param="name", code="name_taken")
        with self._lock:
            kept = sum(1 for stored in self._voices.values() if owner is None or stored.owner == owner)
        if kept >= self._most:
            raise InvalidRequest(
                f"{self._most} voices are kept already; delete one first.", param="name", code="too_many_voices"
            )

    def add(self, stored: StoredVoice, owner: str | None) -> None:
        """Keep a voice. Raises InvalidRequest as `check_room` does, OSError when the disk doesn't take it."""
        check_name(stored.name)
        with self._write_lock:
            self.check_room(stored.name, owner, stored.model)
            self._write(stored)

    def delete(self, voice_id: str, owner: str | None, model: str) -> bool:
        """Forget a voice. False when there was none of that id."""
        if not any(stored.id == voice_id for stored in self.visible(owner, model)):
            return False
        self._path(voice_id).unlink(missing_ok=True)
        with self._lock:
            self._voices.pop(voice_id, None)
        return True

    def _path(self, voice_id: str) -> Path:
        if not ID.fullmatch(voice_id):
            raise ValueError("only ids of our own making are names of files")
        return self._folder / f"{voice_id}.safetensors"

    def _write(self, stored: StoredVoice) -> None:
        """All or nothing: a file appears under its name once it is on the disk."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = {
            "format": FORMAT,
            "name": stored.name,
            "owner": stored.owner,
            "model": stored.model,
            "created_at": str(stored.created_at),
            "consent": stored.consent,
            "ref_text": stored.voice.text,
        }
        arrays = {"x_vector": np.ascontiguousarray(stored.voice.x_vector, np.float32)}
        if len(stored.voice.codes):
            arrays["codes"] = np.ascontiguousarray(stored.voice.codes, np.int32)
        handle, unfinished = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".part")  # readable to us alone
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(save(arrays, about))
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self._path(stored.id))
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
        with self._lock:
            self._voices[stored.id] = stored

    def _refresh(self) -> None:
        """Read what has changed in the folder, be it by another process."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            self._voices.clear()
            return
        if changed == self._seen:
            return
        here = {path.stem: path for path in self._folder.glob("voice_*.safetensors") if ID.fullmatch(path.stem)}
        self._voices = {voice_id: stored for voice_id, stored in self._voices.items() if voice_id in here}
        for voice_id in here.keys() - self._voices.keys() - self._unreadable:
            stored = _read(here[voice_id])
            if stored is None:
                self._unreadable.add(voice_id)
            else:
                self._voices[voice_id] = stored
        # Some clocks of files tick only every few ms: a change just now may not be the tick's last.
        self._seen = changed if time.time_ns() - changed > CLOCK_TICK_NS else -1


def _read(path: Path) -> StoredVoice | None:
    """The voice in a file, or None, which is logged, when it isn't one."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        with safe_open(path, framework="np") as file:
            about = file.metadata() or {}
            names = set(file.keys())
            x_vector = file.get_tensor("x_vector")
            codes = file.get_tensor("codes") if "codes" in names else np.empty((0, CODEBOOKS), np.int32)
        if about.get("format") != FORMAT:
            raise ValueError("it has another format")
        if x_vector.dtype != np.float32 or x_vector.ndim != 1 or not np.isfinite(x_vector).all():
            raise ValueError("its x-vector is none")
        if codes.dtype != np.int32 or codes.shape[1:] != (CODEBOOKS,):
            raise ValueError("its codes are none")
        voice = Voice(x_vector, codes, about["ref_text"])
        name, created_at = check_name(about["name"]), int(about["created_at"])
        return StoredVoice(path.stem, name, about["owner"], about["model"], created_at, about["consent"], voice)
    except FileNotFoundError:
        return None  # deleted meanwhile
    except (OSError, SafetensorError, ValueError, KeyError, InvalidRequest) as error:
        log.warning("voice file %s isn't used: %s", path.name, type(error).__name__)
        return None
