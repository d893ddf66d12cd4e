"""What a request may name: the served model, its voices, its languages. Answers from the engine's description."""

from __future__ import annotations

from engine_lib.errors import InvalidRequest, NotFound
from engine_lib.wire import Description, StreamOptions

OPENAI_MODELS = frozenset({"tts-1", "tts-1-hd", "gpt-4o-mini-tts"})  # names that clients have built in
_IGNORED = str.maketrans("", "", " \t-_")  # what doesn't tell voices apart


def check_model(name: str | None, served: Description) -> None:
    """Raise NotFound unless `name` means the served model; None does."""
    names = {served.model, last_part(served.model), *OPENAI_MODELS}
    if name is not None and name not in names:
        raise NotFound(
            f"There is no such model here; '{last_part(served.model)}' is served.",
            param="model",
            code="model_not_found",
        )


def check_speaker(options: StreamOptions, served: Description) -> None:
    """Raise InvalidRequest for a voice or language that the engine will refuse."""
    speakers = [speaker["id"] for speaker in served.speakers]
    if options.voice is not None:
        known = {name.casefold().translate(_IGNORED) for name in (*speakers, *served.voice_aliases)}
        if options.voice.casefold().translate(_IGNORED) not in known:
            voices = ", ".join(speakers) or "none: describe the voice in 'instructions' instead"
            raise InvalidRequest(f"Unknown voice. This model's voices: {voices}.", param="voice")
    if options.language is not None and options.language.strip().lower() not in {"auto", *served.languages}:
        raise InvalidRequest(
            f"Unknown language. This model's languages: {', '.join(served.languages)}.", param="language"
        )


def last_part(model: str) -> str:
    """The last part of a model's id or path."""
    return model.rstrip("/").rpartition("/")[2]
