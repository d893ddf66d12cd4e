"""Triton model `codec`: chunks of codes in, audio out. Thin over engine_lib.codec.Engine; see engine_lib/wire.py."""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import wire
from engine_lib.adapter import Call, Port, check_stream_id, end_with_parent, log_to_stderr, text_tensor
from engine_lib.codec.engine import CodecJob, Engine, PcmChunk
from engine_lib.errors import ConfigurationError, InvalidRequest, ServiceError
from engine_lib.profile import EngineSettings
from engine_lib.recent import RecentNames
from engine_lib.startup import prepare, settle, take_turns
from engine_lib.triton_metrics import ROWS, SECONDS, Metric
from engine_lib.turns import CodecTurns

log = logging.getLogger("codec")

KEEP_S = 30.0  # far longer than Triton takes to let go of an answer


class TritonPythonModel:
    """Decodes the chunks of every stream, and tells the talker when a client has gone."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the codec of the checkpoint that QWEN3_TTS_* names."""
        log_to_stderr()
        end_with_parent()
        try:
            settings = EngineSettings.from_environment()
            ready = prepare(settings)
            self._turns = take_turns(CodecTurns, settings, ready)
            self._engine = Engine.from_checkpoint(ready.directory, settings.profile, ready.device, self._turns)
        except ConfigurationError as error:
            raise pb_utils.TritonModelException(error.message) from error
        self._most_frames = settings.profile.slot_positions  # no stream of the talker's has more
        self._cancelled = RecentNames(4096)
        self._messenger = ThreadPoolExecutor(1, thread_name_prefix="tell-talker")
        self._told: deque[tuple[float, Any]] = deque()  # the messenger's
        self._port = Port(pb_utils, self._handle, _metrics(self._engine))
        settle()

    def execute(self, requests: list[Any]) -> None:
        """Only enqueue: answers come as they come."""
        self._port.accept(requests)

    def finalize(self) -> None:
        """Fail what is still to be decoded and stop."""
        self._engine.close()
        self._messenger.shutdown(cancel_futures=True)
        self._port.close()
        if self._turns is not None:
            self._turns.close()

    def _handle(self, call: Call) -> None:
        stream_id = check_stream_id(call.text(wire.STREAM_ID))
        index, codes, primer = call.whole(wire.INDEX), call.array(wire.CODES), call.array(wire.PRIMER)
        if index < 0 or max(len(codes), len(primer)) > self._most_frames:
            raise InvalidRequest(
                f"A chunk has an INDEX from 0 and at most {self._most_frames} frames.", param=wire.INDEX
            )
        # A client's going reaches Triton here alone: the talker's request runs on (tried, see docs/request.md).
        # Asking takes a round trip to Triton, for which no first chunk waits: the second one asks too.
        if stream_id and index > 0 and call.cancelled() and self._cancelled.add(stream_id):
            self._engine.cancel(stream_id)
            self._messenger.submit(_tell_talker, stream_id, self._told)
        self._engine.submit(
            CodecJob(
                stream_id=stream_id,
                index=index,
                codes=codes,
                last=bool(call.whole(wire.LAST)),
                finish_reason=call.text(wire.FINISH_REASON),
                usage=call.array(wire.USAGE),
                reply=lambda event: _reply(call, event),
                primer=primer,
            )
        )


def _metrics(engine: Engine) -> list[Metric]:
    meters = engine.metrics
    return [
        Metric("qwen3_tts_codec_active_streams", "Streams that hold a codec slot", lambda: engine.active),
        Metric("qwen3_tts_codec_frames_total", "Frames decoded", lambda: meters.frames, counter=True),
        Metric(
            "qwen3_tts_codec_failures_total", "Streams that ended in the codec", lambda: meters.failures, counter=True
        ),
        Metric(
            "qwen3_tts_codec_timeouts_total", "Streams whose chunks stayed out", lambda: meters.timeouts, counter=True
        ),
        Metric("qwen3_tts_codec_batch_rows", "Chunks decoded together", meters.batch_rows.drain, buckets=ROWS),
        Metric("qwen3_tts_codec_batch_seconds", "Time of a batch", meters.batch_s.drain, buckets=SECONDS),
    ]


def _reply(call: Call, event: PcmChunk | ServiceError) -> None:
    if isinstance(event, ServiceError):
        call.refuse(event)
        return
    call.answer(
        {
            wire.PCM: event.pcm,
            wire.INDEX: np.array([event.index], np.int32),
            wire.LAST: np.array([event.last]),
            wire.FINISH_REASON: text_tensor(event.finish_reason),
            wire.USAGE: event.usage,
        }
    )


def _tell_talker(stream_id: str, told: deque[tuple[float, Any]]) -> None:
    """Cancel a stream in the talker.

    Triton lets go of the answers in a thread that doesn't hold the interpreter's lock. If that freed them, it would end
    the process (Python 3.12: PyObject_Free without a thread state) or corrupt its memory. So `told` keeps them a while.
    """
    request = pb_utils.InferenceRequest(
        model_name=wire.TALKER,
        requested_output_names=[wire.LAST],
        inputs=[
            pb_utils.Tensor(wire.ACTION, text_tensor(wire.Action.CANCEL)),
            pb_utils.Tensor(wire.STREAM_ID, text_tensor(stream_id)),
        ],
    )
    while told and time.monotonic() - told[0][0] > KEEP_S:
        told.popleft()
    responses = request.exec(decoupled=True)
    told.append((time.monotonic(), responses))
    for response in responses:
        if response.has_error():
            log.error("the talker did not take the cancel of stream %s: %s", stream_id, response.error().message())
