"""What /openapi.json says of bodies and answers. Describes only: schemas.py checks, routes.py answers.

`tests/proxy/test_openapi.py` sends what is described here to a real server and holds the answers against it.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Literal

from fastapi import Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field, RootModel

from proxy.audio import CONTENT_TYPES
from proxy.batch import BatchRequest
from proxy.schemas import SpeechRequest

Responses = dict[int | str, dict[str, Any]]  # as FastAPI's routes take them

EVENTS = "text/event-stream"
EVENT = {  # each of them
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "description": "JSON with a `type`: speech.audio.delta with `audio` in base64; at the end speech.audio.done"
            " with `usage` and `finish_reason`, or speech.audio.error with `error`.",
        }
    },
}


class Error(BaseModel):
    """OpenAI's error object."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]
    param: str | None = Field(description="The field at fault.")
    code: str


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: Error


class Usage(BaseModel):
    """Text tokens in, frames of 80 ms out."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class BatchResult(BaseModel):
    """One item of a batch: its sound, or its error."""

    index: int
    status: int = Field(description="200, or what the item would have got alone.")
    error: Error | None = None
    format: str | None = None
    content_type: str | None = None
    sample_rate: int | None = None
    audio_seconds: float | None = None
    seed: int | None = None
    finish_reason: Literal["stop", "length"] | None = None
    usage: Usage | None = None
    audio: str | None = Field(None, description="Base64.")


class BatchAnswer(BaseModel):
    """All items of a batch, in their order."""

    results: list[BatchResult]


class BatchErrorAnswer(ErrorAnswer):
    """An error of the whole batch; with `results` where no item was spoken, and then it is the first one's."""

    results: list[BatchResult] | None = None


class Model(BaseModel):
    """A model as OpenAI's API lists it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Voice(BaseModel):
    """A speaker."""

    id: str
    name: str
    language: str


class AddedVoice(Voice):
    """A voice that was added, as OpenAI's API shows it."""

    object: Literal["audio.voice"]
    created_at: int
    type: Literal["audio_sample"]
    with_ref_text: bool


class OneVoice(RootModel[AddedVoice | Voice]):
    """A voice of either kind."""


class VoiceList(BaseModel):
    """Who can speak."""

    voices: list[AddedVoice | Voice]


class DeletedVoice(BaseModel):
    """A voice that is gone."""

    id: str
    object: Literal["audio.voice.deleted"]
    deleted: bool


class ModelWithVoices(Model, VoiceList):
    """A model and its speakers."""


class ModelList(BaseModel):
    """OpenAI's list of models."""

    object: Literal["list"]
    data: list[Model]


class ModelName(BaseModel):
    """A model as some clients expect it."""

    id: str


class AudioModelList(ModelList):
    """The list again, under the name that some clients look for."""

    models: list[ModelName]


class Health(BaseModel):
    """Whether it lives."""

    status: Literal["ok", "engine lost"]


class Readiness(BaseModel):
    """Whether it can speak."""

    ready: bool
    reason: str | None = None


REQUEST_ID = {"x-request-id": {"description": "Names the request in the log.", "schema": {"type": "string"}}}
SOUND_HEADERS = {
    **REQUEST_ID,
    "x-seed": {"description": "The seed that was used.", "schema": {"type": "integer", "minimum": 0}},
    "x-sample-rate": {"description": "Hz.", "schema": {"type": "integer", "minimum": 8000}},
}


def answer(model: type[BaseModel], description: str = "What was asked for.") -> Responses:
    """The answer of a route that went well."""
    return {200: {"model": model, "description": description}}


def errors(*statuses: HTTPStatus | int, model: type[BaseModel] = ErrorAnswer) -> Responses:
    """A route's errors."""
    return {
        int(status): {"model": model, "description": HTTPStatus(status).phrase, "headers": REQUEST_ID}
        for status in statuses
    }


SPEAKING_ERRORS = (400, 401, 404, 408, 413, 415, 429, 500, 503)
SPEECH: Responses = {
    200: {
        "description": "Sound while it is made, or server-sent events that carry it.",
        "headers": SOUND_HEADERS,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in CONTENT_TYPES.values()}
        | {EVENTS: {"schema": EVENT}},
    },
    **errors(*SPEAKING_ERRORS),
}
BATCH: Responses = {
    200: {
        "model": BatchAnswer,
        "description": "Each item's sound, in base64, or its error; or files and a manifest.json.",
        "headers": REQUEST_ID,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    },
    **errors(*SPEAKING_ERRORS, model=BatchErrorAnswer),
}
# 4XX and not 401 and 404: where a path has a parameter, FastAPI adds a 422 else, which we never answer.
BY_NAME: Responses = {"4XX": {"model": ErrorAnswer, "description": "A wrong key, or no such thing."}}
METRICS: Responses = {
    200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
# Says that a key is asked for; service.require_key looks at it.
KEY = [Security(HTTPBearer(auto_error=False, description="The server's API key."))]
HEALTH = answer(Health) | {503: {"model": Health, "description": "No Triton server answers any more."}}
READINESS = answer(Readiness) | {503: {"model": Readiness, "description": "Not now, and why."}}


def speech_body() -> dict[str, Any]:
    """The JSON schema of POST /v1/audio/speech."""
    schema = SpeechRequest.model_json_schema()
    for name, field in schema["properties"].items():
        if name not in schema["required"]:
            _allow(field, {"type": "null"})  # counts as left out
    by_id = {"type": "object", "properties": {"id": {"type": "string", "maxLength": 256}}, "required": ["id"]}
    _allow(schema["properties"]["voice"], by_id)
    return schema


def batch_body() -> dict[str, Any]:
    """The JSON schema of POST /v1/audio/speech/batch."""
    return BatchRequest.model_json_schema()


def _allow(field: dict[str, Any], also: dict[str, Any]) -> None:
    """Let a field's schema take `also` as well."""
    if "anyOf" not in field:
        told = {key: field.pop(key) for key in list(field) if key not in ("title", "description", "default")}
        field["anyOf"] = [told]
    if also not in field["anyOf"]:
        field["anyOf"].append(also)


def body(schema: dict[str, Any]) -> dict[str, Any]:
    """A route's `openapi_extra` for a JSON body, which the route reads by itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
