"""What a request may name: the served model, its voices, its languages. Answers from the engine's description."""

from __future__ import annotations

from engine_lib.errors import NotFound
from engine_lib.wire import Description, StreamOptions, folded, known_language, unknown_voice


def check_model(name: str | None, served: Description) -> None:
    """Raise NotFound unless `name` means the served model; None does."""
    names = {served.model, last_part(served.model), *served.model_aliases}
    if name is not None and name not in names:
        raise NotFound(
            f"There is no such model here; '{last_part(served.model)}' is served.",
            param="model",
            code="model_not_found",
        )


def find_speaker(name: str, served: Description) -> dict[str, str] | None:
    """The model's own speaker of that name, if it has one."""
    return next((speaker for speaker in served.speakers if folded(speaker["id"]) == folded(name)), None)


def check_speaker(options: StreamOptions, served: Description) -> None:
    """Raise InvalidRequest for a voice or language that the engine will refuse. Cloned voices are cloning.py's."""
    speakers = [speaker["id"] for speaker in served.speakers]
    known = {folded(name) for name in (*speakers, *served.voice_aliases)}
    if not served.embedding_size and options.voice is not None and folded(options.voice) not in known:
        raise unknown_voice(speakers)
    known_language(options.language, served.languages)


def last_part(model: str) -> str:
    """The last part of a model's id or path."""
    return model.rstrip("/").rpartition("/")[2]
