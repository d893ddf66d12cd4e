"""/v1/audio/voices: make, list and delete voices, in OpenAI's shape with `ref_text` added."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from engine_lib.errors import InvalidRequest, NotFound
from engine_lib.wire import AUTO, MAX_REF_CHARACTERS, Description, check_text
from proxy import documented
from proxy.bodies import read_body
from proxy.errors import BodyTooLarge, UnsupportedBody
from proxy.served import find_speaker
from proxy.service import Here, bearer, is_key, owner_of, require_key
from proxy.voice_store import MAX_CONSENT, StoredVoice, check_name

FORM_ROOM_BYTES = 64 << 10  # for all of a form but the sample
MAX_FIELDS = 16
SAMPLE = "audio_sample"  # the field of the file, and OpenAI's word for this way to make a voice

open_routes = APIRouter()
routes = APIRouter(dependencies=[Depends(require_key)])


@open_routes.get(
    "/v1/audio/voices",
    summary="Who can speak",
    responses=documented.answer(documented.VoiceList) | documented.errors(503),
)
async def voices(request: Request, service: Here) -> dict[str, Any]:
    """The speakers of the served model, and the voices that were added, for who may use them."""
    added = []
    if is_key(bearer(request), service.settings):
        added = service.cloning.visible(owner_of(request, service.settings))
    served = service.pool.description
    return {"voices": [*served.speakers, *(listed(stored, served) for stored in added)]}


@routes.post(
    "/v1/audio/voices",
    summary="Add a voice",
    responses=documented.answer(documented.AddedVoice) | documented.errors(*documented.SPEAKING_ERRORS),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "multipart/form-data": {
                    "schema": {
                        "type": "object",
                        "required": ["name", "audio_sample", "consent"],
                        "properties": {
                            "name": {"type": "string", "description": "What requests will call it by."},
                            "audio_sample": {"type": "string", "format": "binary", "description": "1 to 30 s of it."},
                            "consent": {"type": "string", "description": "A reference to the speaker's consent."},
                            "ref_text": {
                                "type": "string",
                                "description": "What is said in the sample, word for word: makes it more alike.",
                            },
                        },
                    }
                }
            },
        }
    },
)
async def add(request: Request, service: Here) -> dict[str, Any]:
    """A sample of someone's voice in, a voice to speak with out."""
    settings = service.settings
    form = await read_form(request, settings.max_sample_bytes, settings.body_timeout_s)
    if form.text("type", SAMPLE) != SAMPLE:
        raise InvalidRequest("'type' must be audio_sample: voices are made of samples here.", param="type")
    name = check_name(form.text("name"))
    consent = check_text(form.text("consent"), param="consent")
    if len(consent) > MAX_CONSENT:
        raise InvalidRequest(f"'consent' is over {MAX_CONSENT} characters.", param="consent")
    text = form.text("ref_text", "").strip()
    if text and len(check_text(text, param="ref_text")) > MAX_REF_CHARACTERS:
        raise InvalidRequest(
            f"'ref_text' is over {MAX_REF_CHARACTERS} characters.", param="ref_text", code="input_too_large"
        )
    if form.sample is None:
        raise InvalidRequest(f"'{SAMPLE}' must be a file.", param=SAMPLE)
    stored = await service.cloning.add(name, form.sample, text, consent, owner_of(request, settings))
    request.state.account.update(voice=stored.id, frames=len(stored.voice.codes))
    return listed(stored, service.pool.description)


@routes.get(
    "/v1/audio/voices/{voice_id}",
    summary="One voice",
    responses=documented.answer(documented.OneVoice) | documented.BY_NAME,
)
async def one(voice_id: str, request: Request, service: Here) -> dict[str, Any]:
    """A voice that was added, or a speaker of the served model."""
    served = service.pool.description
    for stored in service.cloning.visible(owner_of(request, service.settings)):
        if stored.id == voice_id:
            return listed(stored, served)
    if (speaker := find_speaker(voice_id, served)) is not None:
        return dict(speaker)
    raise _no_such_voice()


@routes.delete(
    "/v1/audio/voices/{voice_id}",
    summary="Delete a voice",
    responses=documented.answer(documented.DeletedVoice) | documented.BY_NAME,
)
async def delete(voice_id: str, request: Request, service: Here) -> dict[str, Any]:
    """Forget a voice that was added. What speaks in it speaks on."""
    if not service.cloning.delete(voice_id, owner_of(request, service.settings)):
        if find_speaker(voice_id, service.pool.description) is not None:
            raise InvalidRequest(
                "This voice is the model's own: only voices that were added can be deleted.",
                param="voice_id",
                code="voice_not_deletable",
            )
        raise _no_such_voice()
    return {"id": voice_id, "object": "audio.voice.deleted", "deleted": True}


@dataclass(frozen=True)
class Form:
    """What a form says, and the sample in it."""

    fields: Mapping[str, str]
    sample: bytes | None

    def text(self, name: str, default: str | None = None) -> str:
        """A field. Raises InvalidRequest when it's missing and has no default."""
        value = self.fields.get(name, default)
        if value is None:
            raise InvalidRequest(f"'{name}' must be given, as text.", param=name)
        return value


async def read_form(request: Request, most_bytes: int, limit_s: float) -> Form:
    """A form with a file of at most `most_bytes`, held in memory: nothing of an upload touches the disk.

    Raises UnsupportedBody, BodyTooLarge, BodyTooSlow or InvalidRequest.
    """
    kind, _, options = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "multipart/form-data" or not re.search(r"\bboundary=", options):
        raise UnsupportedBody("The body must be a form: 'Content-Type: multipart/form-data' with its boundary.")
    body = await read_body(request, most_bytes + FORM_ROOM_BYTES, limit_s)

    async def whole() -> AsyncGenerator[bytes]:
        yield body
        yield b""

    parser = _InMemory(request.headers, whole(), max_files=1, max_fields=MAX_FIELDS, max_part_size=FORM_ROOM_BYTES)
    try:
        form = await parser.parse()
    except MultiPartException:
        raise InvalidRequest("The form can't be read, or has too much in it.", code="invalid_form") from None
    try:
        upload = form.get(SAMPLE)
        sample = await upload.read() if isinstance(upload, UploadFile) else None
    finally:
        await form.close()
    if sample is not None and len(sample) > most_bytes:
        raise BodyTooLarge(f"'{SAMPLE}' is over {most_bytes} bytes.", param=SAMPLE)
    return Form({name: value for name, value in form.items() if isinstance(value, str)}, sample)


class _InMemory(MultiPartParser):
    spool_max_size = 1 << 62


def listed(stored: StoredVoice, served: Description) -> dict[str, Any]:
    """A voice as a client sees it: OpenAI's fields, and those of our list of speakers."""
    languages = [language for language in served.languages if language != AUTO]
    return {
        "object": "audio.voice",
        "id": stored.id,
        "name": stored.name,
        "created_at": stored.created_at,
        "type": "audio_sample",
        "language": languages[0] if len(languages) == 1 else "multilingual",
        "with_ref_text": bool(stored.voice.text),
    }


def _no_such_voice() -> NotFound:
    return NotFound("There is no such voice.", param="voice_id", code="voice_not_found")
