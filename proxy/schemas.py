"""What a request to speak may say, and the only check of it. Knows the fields; knows nothing of HTTP or Triton."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from engine_lib.errors import InvalidRequest
from engine_lib.wire import MAX_REF_CHARACTERS, StreamOptions, check_text, invalid_field
from proxy.markup import without_tags

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class _Request(StreamOptions):
    """What every way to ask for speech has in common: the options for the engine, and how the sound comes."""

    model: str | None = Field(None, description="The served model's id, or one of OpenAI's names. Default: the served.")
    speed: float = Field(1.0, ge=0.25, le=4, description="The pitch stays.")
    sample_rate: Literal[8000, 16000, 22050, 24000, 44100, 48000] = Field(
        24_000, description="Hz. Opus is always 48,000."
    )

    speaker_embedding: list[float] | None = Field(
        None, min_length=1, max_length=16_384, description="Speak in this x-vector, where voices are cloned."
    )

    @field_validator("response_format", mode="before", check_fields=False)
    @classmethod
    def _case_and_spaces_are_ignored(cls, value: Any) -> Any:
        return value.strip().lower() if isinstance(value, str) else value


class LiveRequest(_Request):
    """A `request.start` message: what can be said of a text that is still being written."""

    response_format: Literal["pcm", "pcm16", "pcm_s16le"] = "pcm"
    # What a live text always is may be said, and nothing else.
    stream: Literal[True] = True
    stream_format: Literal["audio"] = "audio"
    non_streaming_mode: Literal[False] | None = None


class SpeechRequest(_Request):
    """The body of POST /v1/audio/speech."""

    input: str = Field(description="What to say. Tags of SSML are dropped.")
    response_format: Format = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    ref_audio: str | None = Field(
        None,
        min_length=1,
        description="Speak in the voice of this sample of 1 to 30 s: a data URL, or base64, of any kind of sound file.",
    )
    ref_text: str | None = Field(
        None, max_length=MAX_REF_CHARACTERS, description="What is said in the sample, word for word."
    )
    stream: bool = Field(True, description="False: the whole body at once, with Content-Length.")

    @field_validator("input")
    @classmethod
    def _speakable(cls, value: str) -> str:
        return check_text(without_tags(value))

    @field_validator("ref_text")
    @classmethod
    def _says_something(cls, value: str | None) -> str | None:
        return None if value is None or not value.strip() else check_text(value, param="ref_text").strip()


HTTP_ALONE = tuple(name for name in SpeechRequest.model_fields if name not in LiveRequest.model_fields)


def parse_live(event: Mapping[str, Any]) -> LiveRequest:
    """The request in a `request.start` message. Raises InvalidRequest naming the field at fault."""
    for name in HTTP_ALONE:
        if event.get(name) is not None:
            raise InvalidRequest(f"'{name}' is a field of requests over HTTP; here it means nothing.", param=name)
    try:
        return LiveRequest.model_validate(event)
    except ValidationError as error:
        raise invalid_field(error) from None


def parse_speech(body: bytes, max_input_chars: int) -> SpeechRequest:
    """The request in a JSON body. Raises InvalidRequest naming the field at fault."""
    return parse_speech_fields(parse_object(body), max_input_chars)


def parse_object(body: bytes | str, what: str = "The body", code: str = "invalid_json") -> dict[str, Any]:
    """The JSON object in a body or message, `what` in words for people. Raises InvalidRequest with `code`."""
    try:
        data = json.loads(body)
    except RecursionError:
        raise InvalidRequest(f"{what} is nested too deeply.", code=code) from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise InvalidRequest(f"{what} isn't valid JSON.", code=code) from None
    except ValueError:  # of Python's int, which JSON doesn't bound
        raise InvalidRequest(f"{what} has a number of too many digits.", code=code) from None
    if not isinstance(data, dict):
        raise InvalidRequest(f"{what} must be a JSON object.", code=code)
    return data


def parse_speech_fields(fields: Mapping[str, Any], max_input_chars: int) -> SpeechRequest:
    """The request in a JSON object. Raises InvalidRequest naming the field at fault."""
    try:
        request = SpeechRequest.model_validate(fields)
    except ValidationError as error:
        raise invalid_field(error) from None
    if len(request.input) > max_input_chars:
        raise InvalidRequest(
            f"'input' has {len(request.input)} characters; the limit is {max_input_chars}.",
            param="input",
            code="input_too_large",
        )
    if request.ref_audio is not None and request.speaker_embedding is not None:
        raise InvalidRequest("'speaker_embedding' and 'ref_audio' exclude each other.", param="speaker_embedding")
    if request.ref_text is not None and request.ref_audio is None:
        raise InvalidRequest("'ref_text' belongs to 'ref_audio'.", param="ref_text")
    return request
