"""Engine settings: a YAML profile, overridden by a user's file, plus the QWEN3_TTS_* environment. Knows no torch."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from engine_lib.errors import ConfigurationError

DEFAULT_PROFILE = "ttfa"
PACKAGED = Path(__file__).parent / "profiles"
TURNS_FILE = "QWEN3_TTS_TURNS_FILE"  # set by `serve` alone, which removes the file in the end
LISTS = {tuple[int, ...]: (int, "a list of whole numbers"), tuple[str, ...]: (str, "a list of names")}


@dataclass(frozen=True)
class Profile:
    """Everything about the engine that a deployment may want to choose. docs/profiles.md explains each key."""

    # Admission
    max_active: int = 32  # streams that speak at once; each holds a cache slot
    max_waiting: int = 256  # streams that wait for a slot; one more is refused as overloaded
    slot_positions: int = 2048  # prompt plus frames that one slot can hold
    # Chunks and scheduling
    chunk_schedule: tuple[int, ...] = (1, 2, 4, 8, 12)  # frames; the last repeats
    scheduling: Literal["deadline", "round_robin"] = "deadline"
    urgent_lead_ms: int = 1000  # deadline: streams with less audio ahead of playback go first
    hurry_lead_ms: int = 200  # with less audio ahead of playback, chunks leave before they are full
    rows_per_step: int = 32  # streams that make one frame together at most
    gpu_turns_rows: int = 4  # steps of at most so many streams take turns with the codec at the GPU; 0: none do
    # Length
    budget_base_frames: int = 75  # without max_new_tokens a text may take this many frames ...
    budget_frames_per_token: int = 15  # ... and this many more a text token
    # Numbers
    talker_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on CUDA, float32 on the CPU
    talker_path: Literal["auto", "plain"] = "auto"  # auto: the frame kernel where it runs
    # auto: float16 where the codec's kernels run, else float32
    codec_dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    # Codec
    codec_rows: int = 32  # chunks decoded together at most
    codec_idle_timeout_s: float = 60.0  # a stream whose next chunk stays out this long loses its state
    withhold_silent_first_frame: bool = True  # the presets' first frame is silent: 80 ms nobody need wait for
    # Live text
    flush_after_ms: int = 500  # held-back text is spoken when nothing new came for so long ...
    flush_characters: int = 64  # ... or when this much is held back
    live_idle_timeout_s: float = 120.0  # a text that gets nothing more for so long is given up
    # Names; a file adds to the table that it extends
    voice_aliases: Mapping[str, str] = field(default_factory=dict)  # other names for the checkpoint's speakers
    model_aliases: tuple[str, ...] = ()  # other names for the served model
    # Cloned voices
    voice_cache: int = 128  # cloned voices that the talker remembers by name ...
    codec_voice_cache: int = 32  # ... and whose samples the codec needn't decode again; 5 MiB each for the real codec
    # Prompts that begin alike
    prefix_positions: int = 4096  # kept of what stands before prompts' texts; as much memory as those of a slot

    def __post_init__(self) -> None:
        for key in (
            "max_active", "slot_positions", "rows_per_step", "budget_base_frames", "codec_rows", "flush_characters",
            "voice_cache", "codec_voice_cache",
        ):  # fmt: skip
            _require(getattr(self, key) >= 1, key, "must be at least 1")
        for key in (
            "max_waiting", "urgent_lead_ms", "hurry_lead_ms", "budget_frames_per_token", "flush_after_ms",
            "gpu_turns_rows", "prefix_positions",
        ):  # fmt: skip
            _require(getattr(self, key) >= 0, key, "must not be negative")
        for key in ("codec_idle_timeout_s", "live_idle_timeout_s"):
            _require(getattr(self, key) > 0, key, "must be above 0")
        _require(len(self.chunk_schedule) > 0, "chunk_schedule", "must name at least one size")
        _require(all(size >= 1 for size in self.chunk_schedule), "chunk_schedule", "must hold sizes of at least 1")

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, as plain data: what `config` prints and `digest` hashes."""
        return {
            item.name: dict(value) if isinstance(value := getattr(self, item.name), Mapping) else value
            for item in dataclasses.fields(self)
        }

    def digest(self) -> str:
        """SHA-256 of the resolved configuration, hexadecimal."""
        return hashlib.sha256(json.dumps(self.resolved(), sort_keys=True).encode()).hexdigest()


def _require(holds: bool, key: str, rule: str) -> None:
    if not holds:
        raise ConfigurationError(f"Engine setting '{key}' {rule}.", param=key)


def load_profile(source: str | Path) -> Profile:
    """The packaged profile of that name, or a YAML file, which may extend another by `extends: NAME`.

    Raises ConfigurationError that names the file, the key and, for an unknown one, the nearest known name.
    """
    return Profile(**_read(source, seen=()))


def packaged_profiles() -> list[str]:
    """Names of the profiles in the package."""
    return sorted(path.stem for path in PACKAGED.glob("*.yaml"))


def _read(source: str | Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """A profile file's values over those that it extends."""
    path = PACKAGED / f"{source}.yaml"
    if str(source) not in packaged_profiles():
        path = (seen[-1].parent if seen else Path()) / Path(source).expanduser()
    path = path.resolve()
    if path in seen:
        raise ConfigurationError(f"Profile {path} extends itself.", param="extends")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(packaged_profiles())
        raise ConfigurationError(f"No profile {str(source)!r} (packaged: {known}): {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"Profile {path} isn't valid YAML: {error}") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigurationError(f"Profile {path} must be a mapping of settings.")
    base = data.pop("extends", None)
    values = _read(str(base), (*seen, path)) if base is not None else {}
    return values | {key: _over(values.get(key), _checked(path, key, value)) for key, value in data.items()}


def _over(base: Any, own: Any) -> Any:
    """A file's own value over the one that it extends: names come to names, anything else takes its place."""
    if isinstance(own, Mapping):
        merged = {**(base or {}), **own}
        return types.MappingProxyType({name: meant for name, meant in merged.items() if meant is not None})
    if isinstance(own, tuple) and all(isinstance(name, str) for name in own):
        return tuple(dict.fromkeys((*(base or ()), *own)))
    return own


def _checked(path: Path, key: str, value: Any) -> Any:
    """`value` in the type that the field `key` declares."""
    hints = typing.get_type_hints(Profile)
    if key not in hints:
        near = difflib.get_close_matches(str(key), hints, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise ConfigurationError(f"Profile {path}: unknown setting '{key}'.{hint}", param=str(key))
    kind = hints[key]
    if kind is float and type(value) is int:
        value = float(value)
    if isinstance(value, list) and kind in LISTS and all(type(item) is LISTS[kind][0] for item in value):
        return tuple(value)
    if typing.get_origin(kind) is Literal:
        fits, expected = value in typing.get_args(kind), " or ".join(map(str, typing.get_args(kind)))
    elif kind == Mapping[str, str]:
        fits = isinstance(value, dict) and all(
            isinstance(name, str) and isinstance(meant, str | None) for name, meant in value.items()
        )
        expected = "a mapping of names to names, or to null for a name to be forgotten"
    elif kind in LISTS:
        fits, expected = False, LISTS[kind][1]
    else:
        fits, expected = type(value) is kind, {int: "a whole number", float: "a number", bool: "true or false"}[kind]
    if not fits:
        raise ConfigurationError(f"Profile {path}: '{key}' must be {expected}, not {value!r}.", param=key)
    return value


@dataclass(frozen=True)
class EngineSettings:
    """What the Triton models read from the environment. Both `serve` and a bare tritonserver go through it."""

    model: str
    profile: Profile
    device: str  # auto, cpu, cuda or cuda:N
    cache_dir: str | None
    local_files_only: bool
    turns_file: str | None  # where talker and codec agree on turns at their GPU

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> EngineSettings:
        """Read QWEN3_TTS_*. Raises ConfigurationError naming the variable."""
        env = os.environ if environment is None else environment
        config = env.get("QWEN3_TTS_ENGINE_CONFIG") or env.get("QWEN3_TTS_PROFILE") or DEFAULT_PROFILE
        return cls(
            model=env.get("QWEN3_TTS_MODEL") or "",
            profile=load_profile(config),
            device=env.get("QWEN3_TTS_DEVICE") or "auto",
            turns_file=env.get(TURNS_FILE) or None,
            cache_dir=env.get("QWEN3_TTS_MODEL_CACHE_DIR") or None,
            local_files_only=boolean(env.get("QWEN3_TTS_LOCAL_FILES_ONLY") or "0", "QWEN3_TTS_LOCAL_FILES_ONLY"),
        )


def boolean(text: str, name: str) -> bool:
    """1, true, yes or 0, false, no; else ConfigurationError naming the variable."""
    value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(text.strip().lower())
    if value is None:
        raise ConfigurationError(f"{name} must be 1, true, yes, 0, false or no, not {text!r}.", param=name)
    return value
