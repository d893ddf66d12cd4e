"""A codec for the scripted talker: frame n is 80 ms of one steady tone, louder with n, so that order can be heard."""

import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import errors, wire
from tests.proxy.scripted import HERTZ, LOUDNESS, STEP

# A whole number of waves a frame, so the phase goes on.
TONE = np.sin(np.arange(wire.SAMPLES_PER_FRAME) * (2 * np.pi * HERTZ / wire.SAMPLE_RATE))
PAUSE_S = float(os.environ.get("SCRIPTED_CODEC_PAUSE_S", "0"))  # before each chunk
ECHOED = (wire.INDEX, wire.LAST, wire.FINISH_REASON, wire.USAGE)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            time.sleep(PAUSE_S)
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            if inputs[wire.FINISH_REASON][0] == wire.FinishReason.FAILED.encode():
                failed = errors.GenerationFailed("The talker failed on this stream.")
                response = pb_utils.InferenceResponse(error=pb_utils.TritonError(failed.to_wire()))
            else:
                frames = [TONE * (LOUDNESS + STEP * n) for n in inputs[wire.CODES][:, 0] if n >= 0]
                pcm = np.concatenate([np.zeros(0), *frames]).astype(np.int16)
                echoed = [pb_utils.Tensor(name, inputs[name]) for name in ECHOED]
                response = pb_utils.InferenceResponse([pb_utils.Tensor(wire.PCM, pcm), *echoed])
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
