"""One utterance on one gRPC stream of Triton's: what is written to it, and what comes back, in order.

    caller -> inputs, cancel     -> _outgoing -> writer task -> gRPC
    caller <- chunks, events     <- _arrived  <- reader task <- gRPC

Two tasks of its own talk to gRPC, since cancelling a read or write cancels the call, and then there would be no way
left to tell the engine. They never wait for a slow caller: what is held here is bounded by the utterance's length
budget. live_stream.py adds text that is still being written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from engine_lib import wire
from engine_lib.errors import GenerationFailed, NotReady, ServiceError, from_wire
from proxy import tensors

log = logging.getLogger(__name__)

DEAD_PROCESS = "is not healthy"  # Triton's words for a request to a model whose process is gone
LEAVING_LIMIT_S = 0.8  # for the engine to confirm that a stream we leave has ended
CANCEL_AGAIN_S = 0.1
_SPEECH, _CANCEL, INPUT = "speech", "cancel", "input"  # request ids on one gRPC stream; inputs are numbered
_LOST = (grpc.aio.AioRpcError, asyncio.InvalidStateError)  # how gRPC says that a call is over


class TritonSaid(Exception):
    """What Triton answered instead, in its own words."""


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
    arrived: float  # time.monotonic(), however late the caller takes it

    @property
    def seconds(self) -> float:
        """How long it sounds."""
        return len(self.pcm) / wire.SAMPLE_RATE


@dataclass(frozen=True)
class Taken:
    """The engine has taken pieces of live text, or its end."""

    sequences: range  # of the pieces, as their writer counts them, and the end after the last
    text_tokens: int  # committed so far; above 0 there is something to speak


@dataclass(frozen=True)
class Limits:
    """How long the engine may be silent while it owes something, in seconds."""

    first_chunk_s: float
    chunk_s: float
    heartbeat_s: float


class Stream:
    """One utterance whose text is known from the start. `leave` it in any case."""

    def __init__(self, call: Any, start: Mapping[str, tensors.Value], stream_id: str, limits: Limits) -> None:
        self._call = call
        self._stream_id = stream_id
        self._limits = limits
        self._outgoing: asyncio.Queue[Any] = asyncio.Queue()  # requests; None: that was all
        self._arrived: asyncio.Queue[Chunk | Taken | ServiceError] = asyncio.Queue()
        self._next_index = 0
        self._started = asyncio.Event()
        self._over = asyncio.Event()  # the engine has ended it, well or not
        self._cancel_confirmed = asyncio.Event()
        self._ended = asyncio.Event()  # the gRPC call has
        self._failed = False
        self._refused = False
        self._patience: asyncio.TimerHandle | None = None
        self._tasks = {asyncio.create_task(self._write(start)), asyncio.create_task(self._read())}
        self._expect()

    @property
    def refused(self) -> bool:
        """Whether the engine didn't want to begin it."""
        return self._refused

    async def chunks(self) -> AsyncIterator[Chunk]:
        """Each chunk as it comes, up to the last."""
        async for event in self.events():
            if isinstance(event, Chunk):
                yield event

    async def events(self) -> AsyncIterator[Chunk | Taken]:
        """Whatever comes, up to the last chunk."""
        while True:
            arrived = await self._arrived.get()
            if isinstance(arrived, ServiceError):
                raise arrived
            yield arrived
            if isinstance(arrived, Chunk) and arrived.last:
                return

    def fail(self, error: ServiceError) -> None:
        """Tell the caller, once; what comes after is only waited for."""
        if not self._failed:
            self._failed = True
            self._arrived.put_nowait(error)
        self._stop_waiting()

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
            self._stop_waiting()
            for task in self._tasks:
                task.cancel()  # which cancels the call that it is in
            await asyncio.wait(self._tasks)
            self._call.cancel()

    async def _cancel(self) -> None:
        """Tell the talker, and wait until it has confirmed and the last chunk has freed the codec's slot.

        After a failure the last chunk may never come; then the codec sees that the call is cancelled.
        """
        await self._started.wait()
        self._drop_outgoing()
        while not self._over.is_set():
            # Said again when the stream goes on: the start takes a longer way, and a cancel may have overtaken it.
            self._send({wire.ACTION: wire.Action.CANCEL}, _CANCEL)
            await self._cancel_confirmed.wait()
            if self._failed:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_AGAIN_S):
                    await self._over.wait()

    def _send(self, inputs: Mapping[str, tensors.Value], id: str) -> None:
        """Queue a request to the talker about this stream."""
        self._outgoing.put_nowait(tensors.request(wire.TALKER, {**inputs, wire.STREAM_ID: self._stream_id}, id=id))

    def _drop_outgoing(self) -> None:
        while not self._outgoing.empty():
            self._outgoing.get_nowait()

    async def _write(self, start: Mapping[str, tensors.Value]) -> None:
        """Send the start and then what is queued."""
        try:
            await self._call.write(tensors.request(wire.TTS, start, id=_SPEECH))
            self._started.set()
            while (request := await self._outgoing.get()) is not None:
                await self._call.write(request)
            await self._call.done_writing()  # Triton closes the call once all is answered
        except _LOST:
            pass  # the reader finds the same and tells it
        finally:
            self._started.set()

    async def _read(self) -> None:
        """Take responses until the call ends. Raises nothing: what fails goes to the caller."""
        try:
            await self._started.wait()
            while (response := await self._call.read()) is not grpc.aio.EOF:
                self._take(response)
            self.fail(GenerationFailed("The speech engine ended the stream before its last chunk."))
        except asyncio.CancelledError:  # in `leave`, when nobody reads any more
            self.fail(GenerationFailed("The stream was left."))
        except _LOST as error:
            lost: ServiceError = NotReady("The speech engine can't be reached.")
            if self._begun:
                lost = GenerationFailed("The connection to the speech engine was lost.")
            lost.__cause__ = error  # for the log, see errors.for_log
            self.fail(lost)
        finally:
            self._set_over()
            self._cancel_confirmed.set()
            self._ended.set()

    def _take(self, response: Any) -> None:
        """Sort one response of the call."""
        self._stop_waiting()
        if response.infer_response.id == _CANCEL:
            self._cancel_confirmed.set()
        elif response.infer_response.id.startswith(INPUT):
            self._take_input(response)
        elif response.error_message:
            self._take_refusal(response.error_message)
        elif response.infer_response.outputs:  # else a bare final flag
            self._take_chunk(response)
        self._expect()

    def _take_input(self, response: Any) -> None:
        log.error("stream %s: an answer to what wasn't asked", self._stream_id)

    def _take_refusal(self, message: str) -> None:
        error = from_wire(message)
        if isinstance(error, GenerationFailed):
            add_words(error, message)
            if f"'{wire.TALKER}_" in message and DEAD_PROCESS in message:
                self._set_over()  # nobody is left to be told to stop
        else:
            self._refused = True
            self._set_over()  # nothing of it runs
        self.fail(error)

    def _take_chunk(self, response: Any) -> None:
        try:
            chunk = self._chunk(tensors.Outputs(response.infer_response))
        except (LookupError, ValueError, struct.error) as error:
            self._fail_contract(error)
            return
        if chunk.last:
            self._set_over()
        self._check(chunk)

    def _fail_contract(self, error: Exception) -> None:
        log.error("stream %s: a response outside the contract: %r", self._stream_id, error)
        self.fail(GenerationFailed("The speech engine's answer isn't understood."))

    def _chunk(self, outputs: tensors.Outputs) -> Chunk:
        reason = outputs.text(wire.FINISH_REASON)
        text_tokens, frames = outputs.numbers(wire.USAGE, "INT32")
        return Chunk(
            pcm=outputs.numbers(wire.PCM, "INT16"),
            index=int(outputs.numbers(wire.INDEX, "INT32")[0]),
            last=bool(outputs.numbers(wire.LAST, "BOOL")[0]),
            finish_reason=wire.FinishReason(reason) if reason else None,
            usage=Usage(int(text_tokens), int(frames)),
            arrived=time.monotonic(),
        )

    def _check(self, chunk: Chunk) -> None:
        """Hand on a chunk that follows the one before, and fail the stream on any other."""
        if self._failed:
            return  # the caller is told, and hears no more of it
        if chunk.index != self._next_index:
            log.error("stream %s: chunk %d came instead of %d", self._stream_id, chunk.index, self._next_index)
            self.fail(GenerationFailed("The speech engine lost a part of the sound."))
        elif chunk.finish_reason is wire.FinishReason.FAILED or chunk.last != (chunk.finish_reason is not None):
            self.fail(GenerationFailed("The speech engine failed on this request."))
        else:
            self._next_index += 1
            self._arrived.put_nowait(chunk)

    def _set_over(self) -> None:
        """Nothing more is asked of the engine."""
        if not self._over.is_set():
            self._over.set()
            self._outgoing.put_nowait(None)

    @property
    def _begun(self) -> bool:
        """Whether the engine has accepted it, for all that we know."""
        return self._next_index > 0

    @property
    def _owed(self) -> bool:
        """Whether the engine has something to say."""
        return True

    def _expect(self) -> None:
        """Limit the engine's silence from now on, unless that is done already or there's nothing to wait for."""
        if self._patience or self._failed or self._over.is_set() or not self._owed:
            return
        limit_s = self._limits.chunk_s if self._next_index else self._limits.first_chunk_s
        error = GenerationFailed(f"The speech engine sent nothing for {limit_s:g} s.")
        self._patience = asyncio.get_running_loop().call_later(limit_s, self.fail, error)

    def _stop_waiting(self) -> None:
        if self._patience:
            self._patience.cancel()
            self._patience = None


def add_words(error: ServiceError, message: str) -> None:
    """Note what Triton said, for the log (errors.for_log), unless it was this error in the engine's own words."""
    if error.message not in message:
        error.__cause__ = TritonSaid(message)
