"""Whether the served checkpoint clones voices; only then torch is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_lib.files import Section, locate, read_json
from engine_lib.profile import EngineSettings

if TYPE_CHECKING:
    from engine_lib.cloning.engine import Engine

NOISE = "noise"  # engine_lib.noise.NAME, without its torch


def start(settings: EngineSettings) -> Engine | None:
    """The engine for the checkpoint that `settings` name, or None: it isn't a Base one.

    Raises ConfigurationError naming what doesn't fit.
    """
    if settings.model in ("", NOISE):
        return None
    directory = locate(settings.model, cache_dir=settings.cache_dir, local_files_only=settings.local_files_only)
    if Section(read_json(directory / "config.json"), "config.json").text("tts_model_type") != "base":
        return None
    from engine_lib.cloning.engine import Engine
    from engine_lib.startup import prepare

    return Engine.from_checkpoint(directory, prepare(settings).device)
