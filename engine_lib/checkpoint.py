"""Read a checkpoint's tensors, and fill modules from them, every tensor accounted for. Finding it is files.py's."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from engine_lib.errors import ConfigurationError
from engine_lib.files import read_json

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"


def read_tensors(directory: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the shards that its index names, on the CPU; those of `prefix` alone."""
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
            with safe_open(path, framework="pt") as shard:
                names = [key for key in shard.keys() if key.startswith(prefix)]  # noqa: SIM118, it's no mapping
                tensors |= {key: shard.get_tensor(key) for key in names}
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(f"{path} can't be read: {error}") from error
    promised = {key for key in weight_map or {} if key.startswith(prefix)}
    if absent := sorted(promised - set(tensors)):
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
