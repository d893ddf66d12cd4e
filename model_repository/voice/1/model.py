"""Triton model `voice`: samples in, voices out. Thin over engine_lib.cloning.engine; see engine_lib/wire.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import wire
from engine_lib.adapter import Call, Port, end_with_parent, log_to_stderr, text_tensor
from engine_lib.cloning.sample import Sample
from engine_lib.cloning.start import start
from engine_lib.errors import ConfigurationError, InvalidRequest, ServiceError
from engine_lib.profile import EngineSettings
from engine_lib.triton_metrics import SECONDS, Metric
from engine_lib.wire import Voice


class TritonPythonModel:
    """Makes voices where the served checkpoint is a Base one, and refuses elsewhere."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the encoders of the checkpoint that QWEN3_TTS_* names, if it has any."""
        log_to_stderr()
        end_with_parent()
        try:
            self._engine = start(EngineSettings.from_environment())
        except ConfigurationError as error:
            raise pb_utils.TritonModelException(error.message) from error
        self._port = Port(pb_utils, self._handle, _metrics(self._engine) if self._engine else [])

    def execute(self, requests: list[Any]) -> None:
        """Only enqueue: answers come as they come."""
        self._port.accept(requests)

    def finalize(self) -> None:
        """Fail what still waits and stop."""
        if self._engine:
            self._engine.close()
        self._port.close()

    def _handle(self, call: Call) -> None:
        audio, text = call.array(wire.AUDIO), call.text(wire.REF_TEXT)
        if not len(audio):  # a heartbeat, answered beside the samples that are being encoded
            _reply(call, Voice(np.empty(0, np.float32)))
        elif self._engine is None:
            raise InvalidRequest("This model doesn't clone voices; a Base model does.", param=wire.AUDIO)
        else:
            self._engine.submit(Sample(audio, text, lambda answer: _reply(call, answer)))


def _metrics(engine: Any) -> list[Metric]:
    meters = engine.metrics
    return [
        Metric("qwen3_tts_voices_total", "Voices made of samples", lambda: meters.voices, counter=True),
        Metric("qwen3_tts_voice_failures_total", "Samples that broke", lambda: meters.failures, counter=True),
        Metric("qwen3_tts_voice_seconds", "Time to make a voice", meters.encode_s.drain, buckets=SECONDS),
    ]


def _reply(call: Call, answer: Voice | ServiceError) -> None:
    if isinstance(answer, ServiceError):
        call.refuse(answer)
    else:
        call.answer(
            {
                wire.X_VECTOR: answer.x_vector,
                wire.REF_CODES: answer.codes,
                wire.REF_TEXT: text_tensor(answer.text),
            }
        )
