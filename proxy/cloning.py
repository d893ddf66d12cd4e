"""Which cloned voice a request speaks in: one that was kept, one of a sample that came along, or a bare x-vector."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict

import numpy as np

from engine_lib.errors import GenerationFailed, InvalidRequest, ServiceError
from engine_lib.wire import AUDIO, REF_TEXT, Voice, unknown_clone, unknown_voice
from proxy.fetching import Fetcher
from proxy.pool import Pool
from proxy.samples import Decoder, from_text
from proxy.schemas import LiveRequest, SpeechRequest
from proxy.settings import Settings
from proxy.voice_store import StoredVoice, VoiceStore, new_id

log = logging.getLogger(__name__)

REMEMBERED = 128  # voices of samples that came along with requests
MOST_EMBEDDED = 1e6  # far beyond any x-vector, far within float32
MOST_NAMED = 20  # voices that a refusal lists


class Cloning:
    """All that makes and keeps cloned voices."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._pool = pool
        self._store = VoiceStore(settings.voice_dir, settings.max_voices)
        self._private = settings.private_voices and len(settings.keys) > 1
        self._most_bytes = settings.max_sample_bytes
        self._decoder = Decoder()
        self._fetcher = Fetcher(settings.ref_audio_hosts, settings.max_sample_bytes)
        self._recent: OrderedDict[bytes, Voice] = OrderedDict()

    async def voice_for(self, request: SpeechRequest | LiveRequest, owner: str) -> Voice | None:
        """The voice that `request` asks for; None: the model has voices of its own, and knows whether it has this one.

        `owner` is who asks. Raises InvalidRequest naming the field at fault.
        """
        served = self._pool.description
        embedding = request.speaker_embedding
        sample = request.ref_audio if isinstance(request, SpeechRequest) else None
        if not served.embedding_size:
            if sample is not None or embedding is not None:
                field = "ref_audio" if sample is not None else "speaker_embedding"
                raise InvalidRequest(f"This model doesn't clone voices, so '{field}' means nothing.", param=field)
            return None
        if embedding is not None:
            if len(embedding) != served.embedding_size:
                raise InvalidRequest(
                    f"'speaker_embedding' must have {served.embedding_size} numbers, not {len(embedding)}.",
                    param="speaker_embedding",
                )
            if max(map(abs, embedding)) > MOST_EMBEDDED:
                raise InvalidRequest(
                    "'speaker_embedding' holds numbers that are no x-vector's.", param="speaker_embedding"
                )
            return Voice(np.array(embedding, np.float32))
        if sample is not None and isinstance(request, SpeechRequest):
            return await self._of_sample(sample, request.ref_text or "")
        stored = self._store.find(request.voice, self._scope(owner), served.model) if request.voice else None
        if stored is None:
            raise self._unknown(owner)
        return stored.voice

    def visible(self, owner: str) -> list[StoredVoice]:
        """The kept voices that `owner` may use with what is served. Raises NotReady."""
        served = self._pool.description
        return self._store.visible(self._scope(owner), served.model) if served.embedding_size else []

    async def add(self, name: str, data: bytes, text: str, consent: str, owner: str) -> StoredVoice:
        """Make a voice of the file `data` and keep it. Raises ServiceError; InvalidRequest names the field at fault."""
        served, scope = self._pool.description, self._scope(owner)
        if not served.embedding_size:
            raise InvalidRequest("This model doesn't clone voices; a Base model does.", code="cloning_unsupported")
        self._store.check_room(name, scope, served.model)
        voice = await self._make(data, text, "audio_sample")
        stored = StoredVoice(new_id(), name, owner, served.model, int(time.time()), consent, voice)
        try:
            await asyncio.to_thread(self._store.add, stored, scope)
        except OSError as error:
            log.error("a voice could not be kept: %s", error.strerror)
            raise GenerationFailed("The voice could not be kept.") from None
        return stored

    def delete(self, voice_id: str, owner: str) -> bool:
        """Forget a kept voice. False when `owner` has none of that id. Raises OSError."""
        return self._store.delete(voice_id, self._scope(owner), self._pool.description.model)

    def _scope(self, owner: str) -> str | None:
        """Whose voices are looked at: None is everyone's."""
        return owner if self._private else None

    async def _make(self, data: bytes, text: str, param: str) -> Voice:
        """The voice in a file of sound. Raises ServiceError; InvalidRequest names `param` or 'ref_text'."""
        samples = await self._decoder.decode(data, param)
        try:
            return await self._pool.pick().client.make_voice(samples, text)
        except InvalidRequest as error:
            fields = {AUDIO: param, REF_TEXT: "ref_text"}
            raise renamed(error, fields) from None

    async def _of_sample(self, sample: str, text: str) -> Voice:
        """The voice of a sample that came along, known from before if it did so lately."""
        if sample[:7].lower() == "http://" or sample[:8].lower() == "https://":
            data = await self._fetcher.fetch(sample, "ref_audio")
        else:
            data = await asyncio.to_thread(from_text, sample, self._most_bytes, "ref_audio")
        key = hashlib.sha256(data).digest() + f"{self._pool.description.model}\0{text}".encode()
        voice = self._recent.get(key) or await self._make(data, text, "ref_audio")
        self._recent[key] = voice
        self._recent.move_to_end(key)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return voice

    def _unknown(self, owner: str) -> InvalidRequest:
        known = [stored.name for stored in self.visible(owner)]
        if not known:
            return unknown_clone()
        more = [f"and {len(known) - MOST_NAMED} more"] if len(known) > MOST_NAMED else []
        return unknown_voice([*known[:MOST_NAMED], *more])


def renamed(error: InvalidRequest, fields: dict[str, str]) -> ServiceError:
    """An error of the engine's in the words of our own fields."""
    if error.param not in fields:
        return error
    field = fields[error.param]
    return InvalidRequest(error.message.replace(error.param, f"'{field}'"), param=field, code=error.code)
