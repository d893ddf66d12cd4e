"""Triton model `talker`: text in, chunks of codes out. Thin over engine_lib.talker.Engine; see engine_lib/wire.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import wire
from engine_lib.adapter import Call, Port, check_stream_id, end_with_parent, log_to_stderr, text_tensor
from engine_lib.errors import ConfigurationError, InvalidRequest, ServiceError
from engine_lib.profile import EngineSettings
from engine_lib.startup import prepare, settle, take_turns
from engine_lib.talker.engine import Engine
from engine_lib.talker.stream import Chunk
from engine_lib.triton_metrics import ROWS, SECONDS, Metric
from engine_lib.turns import TalkerTurns


class TritonPythonModel:
    """Starts streams and acts on them."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the checkpoint that QWEN3_TTS_* names."""
        log_to_stderr()
        end_with_parent()
        try:
            settings = EngineSettings.from_environment()
            ready = prepare(settings)
            self._turns = take_turns(TalkerTurns, settings, ready)
            self._engine = Engine.from_checkpoint(
                ready.directory,
                settings.profile,
                ready.device,
                model=ready.model,
                speaks=ready.speaks,
                turns=self._turns,
            )
        except ConfigurationError as error:
            raise pb_utils.TritonModelException(error.message) from error
        self._port = Port(pb_utils, self._handle, _metrics(self._engine))
        settle()

    def execute(self, requests: list[Any]) -> None:
        """Only enqueue: answers come as they come."""
        self._port.accept(requests)

    def finalize(self) -> None:
        """Fail what still speaks and stop."""
        self._engine.close()
        self._port.close()
        if self._turns is not None:
            self._turns.close()

    def _handle(self, call: Call) -> None:
        name = call.text(wire.ACTION, wire.Action.START)
        stream_id = check_stream_id(call.text(wire.STREAM_ID))
        text, sequence = call.text(wire.TEXT), call.whole(wire.SEQUENCE)
        match name:
            case wire.Action.START | wire.Action.START_LIVE:
                start = self._engine.start if name == wire.Action.START else self._engine.start_live
                options = wire.parse_options(call.text(wire.OPTIONS))
                start(text, options, stream_id, lambda event: _deliver(call, event), _voice(call))
            case wire.Action.APPEND:
                self._engine.append(stream_id, sequence, text, lambda result: _acknowledge(call, stream_id, result))
            case wire.Action.END:
                self._engine.end(stream_id, sequence, lambda result: _acknowledge(call, stream_id, result))
            case wire.Action.CANCEL:
                self._engine.cancel(stream_id, lambda: call.answer(_acknowledgement(stream_id)))
            case wire.Action.DESCRIBE:
                self._engine.describe(
                    lambda description: call.answer(
                        _acknowledgement(stream_id) | {wire.DESCRIPTION: text_tensor(description.model_dump_json())}
                    )
                )
            case _:
                raise InvalidRequest(f"Unknown ACTION {name!r}.", param=wire.ACTION)


def _metrics(engine: Engine) -> list[Metric]:
    meters = engine.metrics
    finished = [
        Metric(
            "qwen3_tts_streams_total",
            "Streams that ended, by why",
            lambda reason=reason: meters.finished[reason],
            counter=True,
            labels={"finish_reason": reason},
        )
        for reason in wire.FinishReason
    ]
    return [
        *finished,
        Metric("qwen3_tts_active_streams", "Streams that hold a talker slot", lambda: engine.active),
        Metric("qwen3_tts_waiting_streams", "Streams that wait for a talker slot", lambda: engine.waiting),
        Metric("qwen3_tts_frames_total", "Frames of 80 ms spoken", lambda: meters.frames, counter=True),
        Metric("qwen3_tts_failed_steps_total", "Steps that broke", lambda: meters.failed_steps, counter=True),
        Metric(
            "qwen3_tts_flushed_texts_total",
            "Live texts spoken before they were known to be final",
            lambda: engine.flushes,
            counter=True,
        ),
        Metric("qwen3_tts_step_seconds", "Time of a step", meters.step_s.drain, buckets=SECONDS),
        Metric("qwen3_tts_step_rows", "Streams that a step served", meters.step_rows.drain, buckets=ROWS),
        Metric(
            "qwen3_tts_first_chunk_seconds",
            "Time from a stream's arrival to its first chunk of codes",
            meters.first_chunk_s.drain,
            buckets=SECONDS,
        ),
    ]


def _voice(call: Call) -> wire.Voice | None:
    """The cloned voice that came with a start. Raises InvalidRequest when a part of it is missing."""
    codes = call.optional(wire.REF_CODES)
    if codes is None and call.optional(wire.X_VECTOR) is None:
        return None
    x_vector = call.array(wire.X_VECTOR)
    return wire.Voice(x_vector) if codes is None else wire.Voice(x_vector, codes, call.text(wire.REF_TEXT))


def _deliver(call: Call, event: Chunk | ServiceError) -> None:
    if isinstance(event, ServiceError):
        call.refuse(event)
    else:
        call.answer(_tensors(event), final=event.last)


def _acknowledge(call: Call, stream_id: str, result: int | ServiceError) -> None:
    """Say what became of a piece of text. A flood of them holds up neither sound nor heartbeats."""
    if isinstance(result, ServiceError):
        call.refuse(result, patient=True)
    else:
        call.answer(_acknowledgement(stream_id, result), patient=True)


def _tensors(chunk: Chunk) -> dict[str, Any]:
    return {
        wire.CODES: chunk.codes,
        wire.STREAM_ID: text_tensor(chunk.stream_id),
        wire.INDEX: np.array([chunk.index], np.int32),
        wire.LAST: np.array([chunk.last]),
        wire.FINISH_REASON: text_tensor(chunk.finish_reason or ""),
        wire.USAGE: np.array([chunk.text_tokens, chunk.frames], np.int32),
        wire.PRIMER: chunk.primer,
    }


def _acknowledgement(stream_id: str, text_tokens: int = 0) -> dict[str, Any]:
    """A real response, since a bare end of request may not arrive."""
    return _tensors(dataclasses.replace(Chunk.ending(stream_id, wire.FinishReason.STOP), text_tokens=text_tokens))
