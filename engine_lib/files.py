"""Find a checkpoint in the official layout, and read what it says of itself. Knows no tensors and no torch.

Layout (model.md 1): config.json, generation_config.json, vocab.json, merges.txt, model.safetensors (or an index with
shards) and the same under speech_tokenizer/ for the codec.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_lib.errors import ConfigurationError

TINY = "tiny"  # the voice in this package
VOICES = Path(__file__).with_name("voices")
WANTED = ["*.json", "*.txt", "*.safetensors", "speech_tokenizer/*.json", "speech_tokenizer/*.safetensors"]


def locate(model: str, *, cache_dir: str | None, local_files_only: bool) -> Path:
    """The local directory of `model`: TINY, a path, or a Hugging Face id (downloaded unless it's cached).

    Raises ConfigurationError when it is neither, or can't be had.
    """
    if model == TINY:
        return VOICES / TINY
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if model.count("/") != 1 or model.startswith((".", "/", "~")):
        raise ConfigurationError(f"Model {model!r} is neither a directory nor a Hugging Face id.", param="model")
    from huggingface_hub import snapshot_download  # its import costs a second that local checkpoints needn't pay

    try:
        return Path(
            snapshot_download(model, cache_dir=cache_dir, local_files_only=local_files_only, allow_patterns=WANTED)
        )
    # The hub client raises its own, requests' and the operating system's errors: they share no base but Exception.
    except Exception as error:
        how = "found in the local cache" if local_files_only else "downloaded"
        raise ConfigurationError(
            f"Model {model!r} could not be {how}: {type(error).__name__}: {error}", param="model"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the checkpoint. Raises ConfigurationError naming the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} isn't valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path} must hold a JSON object.")
    return data


class Section:
    """Typed look-ups in one JSON object that name file and key when they fail."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self.where = where

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        return int(self._positive(key, self.whole(key, default)))

    def sizes(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """A list of whole numbers above 0, of at least one."""
        value = self._typed(key, (list,), "a list", None if default is None else list(default))
        if not value or any(type(item) is not int or item < 1 for item in value):
            raise ConfigurationError(
                f"{self.where}: '{key}' must list whole numbers above 0, not {value!r}.", param=key
            )
        return tuple(value)

    def scale(self, key: str) -> float:
        """A number above 0."""
        return self._positive(key, self.number(key))

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        return self._typed(key, (int,), "a whole number", default)  # type: ignore[no-any-return]

    def number(self, key: str, default: float | None = None) -> float:
        """A number."""
        return float(self._typed(key, (int, float), "a number", default))

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        return self._typed(key, (str,), "text", default)  # type: ignore[no-any-return]

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        return self._typed(key, (bool,), "true or false", default)  # type: ignore[no-any-return]

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object, empty when it is missing."""
        return self._typed(key, (dict,), "an object", {})  # type: ignore[no-any-return]

    def section(self, key: str) -> Section:
        """An object as a section of its own."""
        return Section(self._typed(key, (dict,), "an object", None), f"{self.where}: {key}")

    def _positive(self, key: str, value: float) -> float:
        if value <= 0:
            raise ConfigurationError(f"{self.where}: '{key}' must be above 0, not {value!r}.", param=key)
        return value

    def _typed(self, key: str, kinds: tuple[type, ...], words: str, default: Any) -> Any:
        value = self._data.get(key, default)
        if value is None:
            raise ConfigurationError(
                f"{self.where}: '{key}' is missing, so this isn't a Qwen3-TTS checkpoint.", param=key
            )
        if type(value) not in kinds:
            raise ConfigurationError(f"{self.where}: '{key}' must be {words}, not {value!r}.", param=key)
        return value
