"""Several texts in one request: each is spoken on its own, whole, and answered by its sound or its error.

All items are checked before the first is spoken. The status is 200 if any item was spoken; if none was, it is that of
the first item's error, and the body carries that error beside the results.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from engine_lib.errors import InvalidRequest, ServiceError
from proxy.errors import envelope, for_log, status_of
from proxy.logs import Account
from proxy.responses import unless_client_leaves
from proxy.schemas import SpeechRequest, parse_object, parse_speech_fields
from proxy.speaking import Speaking

log = logging.getLogger(__name__)

MAX_ITEMS = 32
AT_ONCE = 8  # items of one batch in the engine; the others leave it to other clients
ALIASES = (("voice", "speaker"), ("instructions", "instruct"))  # an item's name for a field beats a default's other one

Start = Callable[[SpeechRequest, str, Account], Awaitable[Speaking]]  # speech, stream id, where it is accounted


class BatchRequest(BaseModel):
    """The body of POST /v1/audio/speech/batch, as its documentation shows it."""

    items: list[dict[str, Any]] = Field(
        min_length=1,
        max_length=MAX_ITEMS,
        description="Each with the fields of /v1/audio/speech; fields beside `items` are defaults for all of them.",
    )


@dataclass(frozen=True)
class Spoken:
    """An item's sound."""

    sound: bytes
    form: str
    facts: Mapping[str, Any]


Result = Spoken | ServiceError


def parse_batch(body: bytes, max_input_chars: int) -> list[SpeechRequest | ServiceError]:
    """Each item checked for itself. Raises InvalidRequest when the batch as such is wrong."""
    common = parse_object(body)
    items = common.pop("items", None)
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_ITEMS:
        raise InvalidRequest(f"'items' must be a list of 1 to {MAX_ITEMS} objects.", param="items")
    return [_parse_item(item, common, max_input_chars) for item in items]


def _parse_item(item: Any, common: Mapping[str, Any], max_input_chars: int) -> SpeechRequest | ServiceError:
    if not isinstance(item, dict):
        return InvalidRequest("An item must be a JSON object.", param="items")
    own = {name: value for name, value in item.items() if value is not None}
    fields = {**common, **own}
    for names in ALIASES:
        if any(name in own for name in names):
            for name in names:
                if name not in own:
                    fields.pop(name, None)
    try:
        return parse_speech_fields(fields, max_input_chars)
    except InvalidRequest as error:
        return error


class BatchResponse(Response):
    """Speaks all items, then is sent."""

    def __init__(
        self,
        items: list[SpeechRequest | ServiceError],
        start: Start,
        request_id: str,
        account: Account,
        *,
        as_zip: bool,
    ) -> None:
        super().__init__()
        self._items = items
        self._start = start
        self._request_id = request_id
        self._account = account
        self._as_zip = as_zip
        self._free = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            response = await self._answer()
            await response(scope, receive, send)

        await unless_client_leaves(receive, answer())

    async def _answer(self) -> Response:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._speak(index, item)) for index, item in enumerate(self._items)]
        results = [task.result() for task in tasks]
        errors = [result for result in results if isinstance(result, ServiceError)]
        self._account.update(
            items=len(results),
            failed=len(errors),
            characters=sum(len(item.input) for item in self._items if isinstance(item, SpeechRequest)),
            audio_s=round(sum(result.facts["audio_seconds"] for result in results if isinstance(result, Spoken)), 3),
        )
        if len(errors) == len(results):
            listed = [_listed(index, result) for index, result in enumerate(results)]
            return JSONResponse({"error": envelope(errors[0]), "results": listed}, status_of(errors[0]))
        if self._as_zip:
            headers = {"content-disposition": 'attachment; filename="speech.zip"'}
            return Response(await asyncio.to_thread(_zip, results), 200, headers, "application/zip")
        return Response(await asyncio.to_thread(_json, results), media_type="application/json")

    async def _speak(self, index: int, item: SpeechRequest | ServiceError) -> Result:
        if isinstance(item, ServiceError):
            return item
        account: Account = {}
        async with self._free:
            try:
                speaking = await self._start(item, f"{self._request_id}-item-{index}", account)
                with speaking.accounted():
                    sound = b"".join([data async for data in speaking.sound()])
                    last = speaking.finished
                    speaking.outcome = last.finish_reason or ""
            except ServiceError as error:
                if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
                    log.warning("request %s: item %d failed: %s", self._request_id, index, for_log(error))
                return error
        if "text" in account:
            self._account.setdefault("text", []).append(account["text"])
        text, frames = last.usage.text_tokens, last.usage.frames
        facts = {
            "content_type": speaking.audio.content_type,
            "sample_rate": speaking.audio.sample_rate,
            "audio_seconds": round(speaking.audio.seconds, 3),
            "seed": speaking.seed,
            "finish_reason": speaking.outcome,
            "usage": {"input_tokens": text, "output_tokens": frames, "total_tokens": text + frames},
        }
        return Spoken(sound, item.response_format, facts)


def _listed(index: int, result: Result) -> dict[str, Any]:
    """A result without its sound."""
    if isinstance(result, ServiceError):
        return {"index": index, "status": status_of(result).value, "error": envelope(result)}
    return {"index": index, "status": 200, "format": result.form, **result.facts}


def _json(results: list[Result]) -> bytes:
    listed = [
        _listed(index, result)
        | ({"audio": base64.b64encode(result.sound).decode()} if isinstance(result, Spoken) else {})
        for index, result in enumerate(results)
    ]
    return json.dumps({"results": listed}).encode()


def _zip(results: list[Result]) -> bytes:
    """Files 000.mp3, 001.wav, ... and manifest.json, which names them; sound doesn't shrink, so it is stored."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        listed = []
        for index, result in enumerate(results):
            entry = _listed(index, result)
            if isinstance(result, Spoken):
                entry["file"] = f"{index:03d}.{result.form}"
                archive.writestr(entry["file"], result.sound)
            listed.append(entry)
        archive.writestr("manifest.json", json.dumps({"results": listed}, indent=2))
    return packed.getvalue()
