"""Which path does what, in which order. Knows HTTP; leaves the work to the modules that it names."""

from __future__ import annotations

import secrets
import time
from typing import Any

from fastapi import APIRouter, Depends, Request, WebSocket
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from engine_lib.errors import NotReady, ServiceError
from engine_lib.wire import MAX_SEED, Description
from proxy import documented
from proxy.batch import BatchResponse, parse_batch
from proxy.bodies import read_json_body
from proxy.logs import Account
from proxy.responses import SpeechResponse
from proxy.schemas import SpeechRequest, parse_speech
from proxy.served import check_model
from proxy.service import Here, Service, owner_of, require_key, service_of
from proxy.speaking import Speaking
from proxy.utterance import PATH
from proxy.voice_routes import listed
from proxy.websocket import speak_live

OWNER = "qwen3-tts-triton"
STARTED = int(time.time())

open_routes = APIRouter()  # for everyone
routes = APIRouter(dependencies=[Depends(require_key)])


@routes.post(
    "/v1/audio/speech",
    response_class=Response,
    summary="Speak",
    responses=documented.SPEECH,
    openapi_extra=documented.body(documented.speech_body()),
)
async def speak(request: Request) -> Response:
    """Text in, speech out, while it is made."""
    arrived, service = time.monotonic(), service_of(request)
    body = await read_json_body(request, most_bytes(service), service.settings.body_timeout_s)
    speech = parse_speech(body, service.settings.max_input_chars)
    state, owner = request.state, owner_of(request, service.settings)
    speaking = await begin(service, speech, state.request_id, state.account, arrived, owner, whole=not speech.stream)
    return SpeechResponse(speaking, stream=speech.stream, as_events=speech.stream_format == "sse")


@routes.post(
    "/v1/audio/speech/batch",
    response_class=Response,
    summary="Speak several texts",
    responses=documented.BATCH,
    openapi_extra=documented.body(documented.batch_body()),
)
async def speak_batch(request: Request, service: Here) -> Response:
    """Up to 32 texts in, and for each its speech or its error; `Accept: application/zip` asks for files."""
    arrived = time.monotonic()
    body = await read_json_body(request, most_bytes(service), service.settings.body_timeout_s)
    items = parse_batch(body, service.settings.max_input_chars)

    owner = owner_of(request, service.settings)

    async def start(speech: SpeechRequest, request_id: str, account: Account) -> Speaking:
        return await begin(service, speech, request_id, account, arrived, owner, whole=True)

    as_zip = "application/zip" in request.headers.get("accept", "").lower()
    return BatchResponse(items, start, request.state.request_id, request.state.account, as_zip=as_zip)


@open_routes.websocket(PATH)
async def speak_text_as_it_is_written(websocket: WebSocket, service: Here) -> None:
    """Live text in, speech out; see docs/websocket.md. It looks at the key itself: browsers have another place."""
    await speak_live(websocket, service)


@routes.get(
    "/v1/models",
    summary="What is served",
    responses=documented.answer(documented.ModelList) | documented.errors(401, 503),
)
async def models(service: Here) -> dict[str, Any]:
    """OpenAI's list, of one model."""
    return {"object": "list", "data": [describe_model(service.pool.description)]}


@routes.get(
    "/v1/models/{name:path}",
    summary="One model, with its voices",
    responses=documented.answer(documented.ModelWithVoices) | documented.BY_NAME | documented.errors(503),
)
async def model(name: str, request: Request, service: Here) -> dict[str, Any]:
    """The served model, under any of its names."""
    description = service.pool.description
    check_model(name, description)
    added = service.cloning.visible(owner_of(request, service.settings))
    return {
        **describe_model(description),
        "voices": [*description.speakers, *(listed(stored, description) for stored in added)],
    }


@routes.get(
    "/v1/audio/models",
    summary="What is served, as some clients ask for it",
    responses=documented.answer(documented.AudioModelList) | documented.errors(401, 503),
)
async def audio_models(service: Here) -> dict[str, Any]:
    """The list of /v1/models, and again under `models`."""
    entry = describe_model(service.pool.description)
    return {"object": "list", "data": [entry], "models": [{"id": entry["id"]}]}


@open_routes.head("/health", include_in_schema=False)
@open_routes.get("/health", summary="Is it alive?", responses=documented.HEALTH)
async def health(service: Here) -> JSONResponse:
    """200 unless every Triton server is known dead."""
    alive = service.pool.alive
    return JSONResponse({"status": "ok" if alive else "engine lost"}, 200 if alive else 503)


@open_routes.head("/ready", include_in_schema=False)
@open_routes.get("/ready", summary="Would a request be spoken?", responses=documented.READINESS)
async def ready(service: Here) -> JSONResponse:
    """200 once a real utterance came through, while the engine's processes answer; else 503 with the reason."""
    try:
        service.pool.description  # noqa: B018 (which is not to be had before)
    except NotReady as error:
        return JSONResponse({"ready": False, "reason": error.message}, 503)
    return JSONResponse({"ready": True})


@open_routes.head("/metrics", include_in_schema=False)
@open_routes.get("/metrics", summary="For Prometheus", response_class=Response, responses=documented.METRICS)
async def metrics(service: Here) -> Response:
    """The proxy's meters; the engine's are on Triton's own /metrics."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def begin(
    service: Service,
    speech: SpeechRequest,
    request_id: str,
    account: Account,
    arrived: float,
    owner: str,
    *,
    whole: bool,
) -> Speaking:
    """Check what it names, find its voice, and choose the seed where none was given. Raises ServiceError."""
    check_model(speech.model, service.pool.description)
    try:
        voice = await service.cloning.voice_for(speech, owner)
    except ServiceError as error:
        raise speech.in_its_words(error) from error.__cause__
    if speech.seed is None:
        speech = speech.model_copy(update={"seed": secrets.randbelow(MAX_SEED + 1)})
    return Speaking(speech, request_id, service, arrived, account, voice, whole=whole)


def most_bytes(service: Service) -> int:
    """How large a body to speak may be: where voices are cloned, it may bring a sample in base64."""
    settings = service.settings
    return settings.max_body_bytes + (settings.max_sample_bytes * 4 // 3 if service.pool.clones else 0)


def describe_model(description: Description) -> dict[str, Any]:
    """A model as OpenAI's API lists it."""
    return {"id": description.model, "object": "model", "created": STARTED, "owned_by": OWNER}
