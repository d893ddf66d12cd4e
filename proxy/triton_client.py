"""Speak through one Triton server: streams of chunks, the engine's description, a heartbeat. Knows nothing of HTTP.

Everything goes over ModelStreamInfer: decoupled models answer nothing else. One gRPC stream carries one utterance, the
request to `tts` and what is addressed to `talker` about it, so that a load balancer keeps them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from tritonclient.grpc import service_pb2_grpc

from engine_lib import wire
from engine_lib.errors import GenerationFailed, NotReady, ServiceError, from_wire
from proxy import tensors

log = logging.getLogger(__name__)

# A server that restarts is found again at once; a long chunk schedule makes messages beyond gRPC's 4 MiB.
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 << 20),
]
LEAVING_LIMIT_S = 0.8  # for the engine to confirm that a stream we leave has ended
_SPEECH, _CANCEL = "speech", "cancel"  # request ids on one gRPC stream


@dataclass(frozen=True)
class Usage:
    """What a stream has used so far."""

    text_tokens: int
    frames: int


@dataclass(frozen=True)
class Chunk:
    """A piece of one utterance's sound."""

    pcm: npt.NDArray[np.int16]  # [samples] at wire.SAMPLE_RATE; may be empty
    index: int
    last: bool
    finish_reason: wire.FinishReason | None  # of the last chunk only
    usage: Usage


@dataclass(frozen=True)
class Limits:
    """How long the engine may be silent, in seconds."""

    first_chunk_s: float
    chunk_s: float
    heartbeat_s: float


class TritonClient:
    """A connection to one server. Use it in one event loop, and `close` it."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.url = url
        self._limits = limits
        self._channel = grpc.aio.insecure_channel(url, options=CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._leaving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def speech(
        self, text: str, options: wire.StreamOptions, stream_id: str
    ) -> AsyncIterator[AsyncIterator[Chunk]]:
        """The chunks of one utterance. Leaving before the last one ends the stream in the engine, within a second.

        Iterating raises InvalidRequest, Overloaded or NotReady before the first chunk, GenerationFailed at any time.
        """
        stream = _Stream(self._stub.ModelStreamInfer(), text, options, stream_id, self._limits)
        try:
            yield stream.chunks()
        finally:
            leaving = asyncio.create_task(stream.leave())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            await asyncio.shield(leaving)  # whoever leaves because it is cancelled may be cancelled twice

    async def describe(self) -> wire.Description:
        """What the talker says of itself. Raises NotReady."""
        outputs = await self._ask(wire.TALKER, {wire.ACTION: wire.Action.DESCRIBE})
        try:
            return wire.Description.model_validate_json(outputs.text(wire.DESCRIPTION))
        except (KeyError, ValidationError) as error:
            log.error("%s: a description that this proxy doesn't understand: %s", self.url, error)
            raise NotReady("The speech engine is of another version.") from None

    async def heartbeat(self) -> wire.Description:
        """One small request through each of the two models' processes: their own loops answer. Raises NotReady."""
        nothing: dict[str, tensors.Value] = {
            wire.CODES: np.zeros((0, wire.CODEBOOKS), np.int32),
            wire.STREAM_ID: "",
            wire.INDEX: np.zeros(1, np.int32),
            wire.LAST: True,
            wire.FINISH_REASON: "",
            wire.USAGE: np.zeros(2, np.int32),
        }
        description, _ = await asyncio.gather(self.describe(), self._ask(wire.CODEC, nothing))
        return description

    async def close(self) -> None:
        """Let streams that are being left finish that, and close the connection."""
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._channel.close()

    async def _ask(self, model: str, inputs: Mapping[str, tensors.Value]) -> tensors.Outputs:
        """The one response to a request. Raises NotReady, whatever goes wrong."""
        call = self._stub.ModelStreamInfer()
        try:
            async with asyncio.timeout(self._limits.heartbeat_s):
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
            known = from_wire(response.error_message)
            raise known if isinstance(known, NotReady) else NotReady(f"The {model} isn't loaded, or has died.")
        return tensors.Outputs(response.infer_response)


class _Stream:
    """One utterance on one gRPC stream.

    A task of its own talks to gRPC, since cancelling a read cancels its call, and then there would be no way left to
    tell the engine. It also never waits for a slow reader: what it holds is bounded by the utterance's length budget.
    """

    def __init__(self, call: Any, text: str, options: wire.StreamOptions, stream_id: str, limits: Limits) -> None:
        self._call = call
        self._stream_id = stream_id
        self._limits = limits
        self._arrived: asyncio.Queue[Chunk | ServiceError] = asyncio.Queue()
        self._next_index = 0
        self._started = asyncio.Event()
        self._over = asyncio.Event()  # the engine has ended it, well or not
        self._cancel_confirmed = asyncio.Event()
        self._ended = asyncio.Event()  # the gRPC call has
        self._failed = False
        # Only what was asked for: the checkpoint's defaults are the engine's to know.
        asked = options.model_dump_json(include=set(wire.StreamOptions.model_fields), exclude_unset=True)
        start = {wire.TEXT: text, wire.OPTIONS: asked, wire.STREAM_ID: stream_id}
        self._reader = asyncio.create_task(self._read(start))

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Each chunk as it comes, up to the last."""
        limit_s = self._limits.first_chunk_s
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    arrived = await self._arrived.get()
            except TimeoutError:
                raise GenerationFailed(f"The speech engine sent nothing for {limit_s:g} s.") from None
            if isinstance(arrived, ServiceError):
                raise arrived
            yield arrived
            if arrived.last:
                return
            limit_s = self._limits.chunk_s

    async def leave(self) -> None:
        """End the stream in the engine if it still runs, and the gRPC call in any case.

        A call whose stream is over still gets the time to end by itself: cancelling it would reach the codec.
        """
        try:
            async with asyncio.timeout(LEAVING_LIMIT_S):
                if not self._over.is_set():
                    await self._cancel()
                if not self._failed:
                    await self._ended.wait()
        except TimeoutError:
            log.warning("stream %s: the engine didn't confirm its end", self._stream_id)
        finally:
            self._reader.cancel()  # which cancels the call that it is in
            await asyncio.wait({self._reader})
            self._call.cancel()

    async def _cancel(self) -> None:
        """Tell the talker, and wait until it has confirmed and the last chunk has freed the codec's slot.

        After a failure the last chunk may never come; then the codec sees that the call is cancelled.
        """
        await self._started.wait()
        action = {wire.ACTION: wire.Action.CANCEL, wire.STREAM_ID: self._stream_id}
        try:
            await self._call.write(tensors.request(wire.TALKER, action, id=_CANCEL))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the connection is gone; the codec sees that and ends the stream
        await self._cancel_confirmed.wait()
        if not self._failed:
            await self._over.wait()

    async def _read(self, start: Mapping[str, tensors.Value]) -> None:
        """Send the start, then take responses until the call ends. Raises nothing: what fails goes to the reader."""
        try:
            await self._call.write(tensors.request(wire.TTS, start, id=_SPEECH))
            self._started.set()
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
                if self._over.is_set():
                    await self._call.done_writing()  # Triton closes the call once all is answered
            self._fail(GenerationFailed("The speech engine ended the stream before its last chunk."))
        except asyncio.CancelledError:  # in `leave`, when nobody reads any more
            self._fail(GenerationFailed("The stream was left."))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            log.warning("stream %s: %s", self._stream_id, error)
            begun = self._next_index > 0
            lost = "The connection to the speech engine was lost."
            self._fail(GenerationFailed(lost) if begun else NotReady("The speech engine can't be reached."))
        finally:
            self._started.set()
            self._over.set()
            self._cancel_confirmed.set()
            self._ended.set()

    def _take(self, response: Any) -> None:
        """Sort one response of the call."""
        if response.infer_response.id == _CANCEL:
            self._cancel_confirmed.set()
        elif response.error_message:
            error = from_wire(response.error_message)
            if isinstance(error, GenerationFailed):
                log.warning("stream %s: %s", self._stream_id, response.error_message)
            else:
                self._over.set()  # refused: nothing of it runs
            self._fail(error)
        elif response.infer_response.outputs:  # else a bare final flag
            try:
                chunk = self._chunk(tensors.Outputs(response.infer_response))
            except (LookupError, ValueError, struct.error) as error:
                log.error("stream %s: a response outside the contract: %r", self._stream_id, error)
                self._fail(GenerationFailed("The speech engine's answer isn't understood."))
                return
            if chunk.last:
                self._over.set()
            self._check(chunk)

    def _chunk(self, outputs: tensors.Outputs) -> Chunk:
        reason = outputs.text(wire.FINISH_REASON)
        text_tokens, frames = outputs.numbers(wire.USAGE, "INT32")
        return Chunk(
            pcm=outputs.numbers(wire.PCM, "INT16"),
            index=int(outputs.numbers(wire.INDEX, "INT32")[0]),
            last=bool(outputs.numbers(wire.LAST, "BOOL")[0]),
            finish_reason=wire.FinishReason(reason) if reason else None,
            usage=Usage(int(text_tokens), int(frames)),
        )

    def _check(self, chunk: Chunk) -> None:
        """Hand on a chunk that follows the one before, and fail the stream on any other."""
        if chunk.index != self._next_index:
            log.error("stream %s: chunk %d came instead of %d", self._stream_id, chunk.index, self._next_index)
            self._fail(GenerationFailed("The speech engine lost a part of the sound."))
        elif chunk.finish_reason is wire.FinishReason.FAILED or chunk.last != (chunk.finish_reason is not None):
            self._fail(GenerationFailed("The speech engine failed on this request."))
        elif not self._failed:
            self._next_index += 1
            self._arrived.put_nowait(chunk)

    def _fail(self, error: ServiceError) -> None:
        """Tell the reader, once; what comes after is only waited for."""
        if not self._failed:
            self._failed = True
            self._arrived.put_nowait(error)
