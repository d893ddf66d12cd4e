"""Speak through one Triton server: streams of chunks, the engine's description, a heartbeat. Knows nothing of HTTP.

Everything goes over ModelStreamInfer: decoupled models answer nothing else. One gRPC stream carries one utterance
(stream.py), the request to `tts` and what is addressed to `talker` about it, so that a load balancer keeps them
together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import grpc
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from tritonclient.grpc import service_pb2, service_pb2_grpc

from engine_lib import wire
from engine_lib.errors import GenerationFailed, NotReady, ServiceError, from_wire, not_loaded
from proxy import tensors
from proxy.live_stream import LiveStream
from proxy.stream import DEAD_PROCESS, Chunk, Limits, Stream

log = logging.getLogger(__name__)

# A server that restarts is found again at once; a long chunk schedule makes messages beyond gRPC's 4 MiB.
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # not a wait: how long one attempt may take on a busy machine
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 << 20),
]

_AnyStream = TypeVar("_AnyStream", bound=Stream)


class ModelDied(NotReady):
    """A model's process is gone, and none of the streams that it had will end by itself."""


class TritonClient:
    """A connection to one server. Use it in one event loop, and `close` it."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self._limits = limits
        self._channel = grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._running: set[Stream] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._spare: Any = None  # a call that is open already, for the next utterance; it may have ended meanwhile

    @contextlib.asynccontextmanager
    async def speech(
        self, text: str, options: wire.StreamOptions, stream_id: str, voice: wire.Voice | None = None
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """The chunks of one utterance. Leaving before the last one ends the stream in the engine, within a second.

        A cloned `voice` takes the place of one by name. Iterating raises InvalidRequest, Overloaded or NotReady before
        the first chunk, GenerationFailed at any time.
        """
        start = {wire.TEXT: text, wire.STREAM_ID: stream_id, **_asked(options, voice)}
        async with self._left(Stream(self._call(), start, stream_id, self._limits)) as stream:
            yield stream.chunks()

    @contextlib.asynccontextmanager
    async def live(
        self, options: wire.StreamOptions, stream_id: str, voice: wire.Voice | None = None
    ) -> AsyncIterator[LiveStream]:
        """An utterance whose text is appended. Leaving it, and what its `events` raise, are as with `speech`."""
        start = {
            wire.TEXT: "",
            wire.STREAM_ID: stream_id,
            wire.ACTION: wire.Action.START_LIVE,
            **_asked(options, voice),
        }
        async with self._left(LiveStream(self._call(), start, stream_id, self._limits)) as stream:
            yield stream

    @property
    def connected(self) -> bool:
        """Whether the connection stands. A server that dies loses it at once, before a heartbeat can fail."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    def fail_running(self) -> None:
        """End every stream as a failure, at once, since the engine won't."""
        for stream in self._running:
            stream.fail(GenerationFailed("The speech engine was lost."))

    async def describe(self) -> wire.Description:
        """What the talker says of itself. Raises NotReady."""
        outputs = await self._ask(wire.TALKER, {wire.ACTION: wire.Action.DESCRIBE})
        try:
            return wire.Description.model_validate_json(outputs.text(wire.DESCRIPTION))
        except (KeyError, ValidationError) as error:
            log.error("%s: a description that this proxy doesn't understand: %s", self.url, error)
            raise NotReady("The speech engine is of another version.") from None

    async def make_voice(self, samples: npt.NDArray[np.float32], text: str) -> wire.Voice:
        """The voice in float32 [samples] at wire.SAMPLE_RATE; `text` is what they say, or empty.

        Raises InvalidRequest, Overloaded, NotReady or GenerationFailed.
        """
        inputs: dict[str, tensors.Value] = {wire.AUDIO: samples, wire.REF_TEXT: text}
        outputs = await self._request(wire.VOICE, inputs, self._limits.first_chunk_s)
        try:
            codes = outputs.numbers(wire.REF_CODES, "INT32").reshape(-1, wire.CODEBOOKS)
            return wire.Voice(outputs.numbers(wire.X_VECTOR, "FP32"), codes, outputs.text(wire.REF_TEXT))
        except (LookupError, ValueError, struct.error) as error:
            log.error("%s: a voice outside the contract: %r", self.url, error)
            raise GenerationFailed("The speech engine's answer isn't understood.") from None

    async def heartbeat(self) -> wire.Description:
        """One small request through each of the models' processes: their own loops answer.

        The voice model is asked only where it has something to do.

        Raises ModelDied if one of them is gone, else NotReady.
        """
        nothing: dict[str, tensors.Value] = {
            wire.CODES: np.zeros((0, wire.CODEBOOKS), np.int32),
            wire.STREAM_ID: "",
            wire.INDEX: np.zeros(1, np.int32),
            wire.LAST: True,
            wire.FINISH_REASON: "",
            wire.USAGE: np.zeros(2, np.int32),
            wire.PRIMER: np.zeros((0, wire.CODEBOOKS), np.int32),
        }
        description, _, _ = await asyncio.gather(
            self.describe(), self._ask(wire.CODEC, nothing), self._check_ensemble()
        )
        if description.embedding_size:
            await self._ask(wire.VOICE, {wire.AUDIO: np.zeros(0, np.float32)})
        return description

    async def _check_ensemble(self) -> None:
        """Raise NotReady unless `tts` is loaded. It has no process that could be dead, so Triton's word counts."""
        try:
            answer = await self._stub.ModelReady(
                service_pb2.ModelReadyRequest(name=wire.TTS), timeout=self._limits.heartbeat_s
            )
        except grpc.aio.AioRpcError as error:
            raise NotReady("Triton can't be reached.") from error
        if not answer.ready:
            raise not_loaded(wire.TTS)

    async def close(self) -> None:
        """Let streams that are being left finish that, and close the connection."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._channel.close()

    @contextlib.asynccontextmanager
    async def _left(self, stream: _AnyStream) -> AsyncIterator[_AnyStream]:
        """`stream`, which is left at the end."""
        self._running.add(stream)
        try:
            yield stream
        finally:
            self._running.discard(stream)
            leaving = asyncio.create_task(stream.leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._note_left)
            await asyncio.shield(leaving)  # whoever leaves because it is cancelled may be cancelled twice

    def _note_left(self, leaving: asyncio.Task[None]) -> None:
        self._leaving.discard(leaving)
        if self._spare is None or self._spare.done():
            self._spare = self._stub.ModelStreamInfer()

    def _call(self) -> Any:
        """A call of an utterance's own. The spare one saves opening it, which takes longer than the request itself."""
        call, self._spare = self._spare, None
        return self._stub.ModelStreamInfer() if call is None or call.done() else call

    async def _ask(self, model: str, inputs: Mapping[str, tensors.Value]) -> tensors.Outputs:
        """The one response to a request. Raises NotReady, whatever goes wrong."""
        try:
            return await self._request(model, inputs, self._limits.heartbeat_s)
        except NotReady:
            raise
        except ServiceError:
            raise not_loaded(model) from None

    async def _request(self, model: str, inputs: Mapping[str, tensors.Value], limit_s: float) -> tensors.Outputs:
        """The one response to a request. Raises what the model answered, or NotReady when it didn't."""
        call = self._stub.ModelStreamInfer()
        try:
            async with asyncio.timeout(limit_s):
                await call.write(tensors.request(model, inputs))
                await call.done_writing()
                response = await call.read()
        except TimeoutError:
            raise NotReady(f"The {model} doesn't answer.") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise NotReady("Triton can't be reached.") from error
        finally:
            call.cancel()
        if response is grpc.aio.EOF:
            raise NotReady(f"The {model} gave no answer.")
        if response.error_message:
            log.debug("%s: %s: %s", self.url, model, response.error_message)
            if DEAD_PROCESS in response.error_message:
                raise ModelDied(f"The {model} has died.")
            raise from_wire(response.error_message)
        return tensors.Outputs(response.infer_response)


def _asked(options: wire.StreamOptions, voice: wire.Voice | None) -> dict[str, tensors.Value]:
    """Only what was asked for: the checkpoint's defaults are the engine's to know.

    A cloned voice goes without its name, which the engine would remember for anyone.
    """
    fields = set(wire.StreamOptions.model_fields)
    if voice is None:
        return {wire.OPTIONS: options.model_dump_json(include=fields, exclude_unset=True)}
    asked: dict[str, tensors.Value] = {
        wire.OPTIONS: options.model_dump_json(include=fields - {"voice"}, exclude_unset=True),
        wire.X_VECTOR: voice.x_vector,
    }
    if voice.text:
        asked |= {wire.REF_CODES: voice.codes, wire.REF_TEXT: voice.text}
    return asked
