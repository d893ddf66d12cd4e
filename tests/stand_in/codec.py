"""A codec without a network: each frame becomes 80 ms of a tone. Keeps the tensor contract of engine_lib.wire."""

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import wire

TONE = (8_000 * np.sin(np.arange(wire.SAMPLES_PER_FRAME) * (2 * np.pi * 250 / wire.SAMPLE_RATE))).astype(np.int16)
ECHOED = (wire.INDEX, wire.LAST, wire.FINISH_REASON, wire.USAGE)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            codes = pb_utils.get_input_tensor_by_name(request, wire.CODES).as_numpy()
            tensors = [pb_utils.Tensor(wire.PCM, np.tile(TONE, len(codes)))]
            for name in ECHOED:
                tensors.append(pb_utils.Tensor(name, pb_utils.get_input_tensor_by_name(request, name).as_numpy()))
            request.get_response_sender().send(
                pb_utils.InferenceResponse(tensors), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            )
