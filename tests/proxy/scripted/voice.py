"""A voice model for the scripted talker, which clones nobody."""

import triton_python_backend_utils as pb_utils

from engine_lib import errors, wire


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            refused = errors.InvalidRequest("This model doesn't clone voices.", param=wire.AUDIO)
            response = pb_utils.InferenceResponse(error=pb_utils.TritonError(refused.to_wire()))
            request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
