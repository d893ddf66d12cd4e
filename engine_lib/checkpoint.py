"""Find a checkpoint in the official layout, read it, and fill modules from it, every tensor accounted for.

Layout (model.md 1): config.json, generation_config.json, vocab.json, merges.txt, model.safetensors (or an index with
shards) and the same under speech_tokenizer/ for the codec.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from engine_lib.errors import ConfigurationError

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"
WANTED = ["*.json", "*.txt", "*.safetensors", "speech_tokenizer/*.json", "speech_tokenizer/*.safetensors"]


def locate(model: str, *, cache_dir: str | None, local_files_only: bool) -> Path:
    """The local directory of `model`, a path or a Hugging Face id (downloaded with progress unless it's cached).

    Raises ConfigurationError when it is neither, or can't be had.
    """
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

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers above 0, of at least one."""
        value = self._typed(key, (list,), "a list", None)
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


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Every tensor of model.safetensors, or of the shards that its index names, on the CPU."""
    if (directory / INDEX_FILE).is_file():
        weight_map = read_json(directory / INDEX_FILE).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ConfigurationError(f"{directory / INDEX_FILE} has no 'weight_map'.")
        files = sorted({str(name) for name in weight_map.values()})
    else:
        weight_map, files = None, [WEIGHTS_FILE]
    tensors: dict[str, Tensor] = {}
    for name in files:
        path = directory / name
        if path.parent != directory:
            raise ConfigurationError(f"{directory / INDEX_FILE} names a shard outside its directory: {name!r}.")
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(f"{path} can't be read: {error}") from error
    if weight_map is not None and (absent := sorted(set(weight_map) - set(tensors))):
        raise ConfigurationError(f"{directory}: the index promises tensors that no shard holds: {_some(absent)}.")
    return tensors


def load_strict(
    module: nn.Module, tensors: Mapping[str, Tensor], *, prefix: str = "", ignored: Sequence[str] = ()
) -> None:
    """Fill every parameter and buffer of `module` from the tensor of its name behind `prefix`, in the module's dtype.

    Raises ConfigurationError naming what is missing, has another shape, or is there but unknown: every tensor must be
    used, except those that match a pattern of `ignored` (fnmatch, whole names).
    """
    targets = {prefix + name: target for name, target in module.state_dict(keep_vars=True).items()}
    if missing := sorted(set(targets) - set(tensors)):
        raise ConfigurationError(f"The checkpoint lacks tensors: {_some(missing)}.")
    for name, target in targets.items():
        if tensors[name].shape != target.shape:
            have, want = list(tensors[name].shape), list(target.shape)
            raise ConfigurationError(f"Tensor {name} has shape {have}, but the config asks for {want}.", param=name)
    unknown = sorted(
        name
        for name in tensors
        if name not in targets and not any(fnmatch.fnmatchcase(name, pattern) for pattern in ignored)
    )
    if unknown:
        raise ConfigurationError(f"The checkpoint has tensors that this model doesn't know: {_some(unknown)}.")
    for name, target in targets.items():
        target.data.copy_(tensors[name])


def _some(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
