"""A talker without a network, for tests of what stands around it: starts in a second, speaks in real time.

It speaks `max_new_tokens` frames (5 without), one chunk each, 80 ms apart. It keeps the tensor contract of
engine_lib.wire, and knows start, cancel and describe.
"""

import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import wire

DESCRIPTION = wire.Description(
    model="stand-in",
    model_type="custom_voice",
    model_size="0b6",
    speakers=[{"id": "ryan", "name": "Ryan", "language": "english"}],
    voice_aliases={"alloy": "ryan"},
    languages=["auto", "english"],
    sampling_defaults={"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0},
    sample_rate=wire.SAMPLE_RATE,
    slot_positions=2048,
    max_active=32,
    max_waiting=256,
    active=0,
    waiting=0,
    device="cpu",
    path="plain",
    speaks=False,
)
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        if message := os.environ.get("STAND_IN_FAILS"):
            raise RuntimeError(message)
        self.cancelled = set()

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.answer, args=(Call(request),), daemon=True).start()

    def answer(self, call):
        if call.action == wire.Action.DESCRIBE:
            call.send(0, 0, True, "", wire.Description.model_dump_json(DESCRIPTION))
        elif call.action == wire.Action.CANCEL:
            self.cancelled.add(call.stream)
            call.send(0, 0, True, wire.FinishReason.CANCELLED)
        else:
            self.speak(call)

    def speak(self, call):
        frames = wire.parse_options(call.options).max_new_tokens or 5
        for index in range(frames):
            if call.stream in self.cancelled:
                call.send(0, index, True, wire.FinishReason.CANCELLED)
                return
            last = index == frames - 1
            call.send(1, index, last, wire.FinishReason.STOP if last else "")
            time.sleep(wire.FRAME_SECONDS)


class Call:
    def __init__(self, request):
        self.sender = request.get_response_sender()
        self.action = text_of(request, wire.ACTION) or wire.Action.START
        self.options = text_of(request, wire.OPTIONS)
        self.stream = text_of(request, wire.STREAM_ID) or request.request_id()

    def send(self, frames, index, last, reason, description=""):
        tensors = [
            pb_utils.Tensor(wire.CODES, np.zeros((frames, wire.CODEBOOKS), np.int32)),
            text_tensor(wire.STREAM_ID, self.stream),
            pb_utils.Tensor(wire.INDEX, np.array([index], np.int32)),
            pb_utils.Tensor(wire.LAST, np.array([last])),
            text_tensor(wire.FINISH_REASON, reason),
            pb_utils.Tensor(wire.USAGE, np.array([1, index + 1], np.int32)),
        ]
        if description:
            tensors.append(text_tensor(wire.DESCRIPTION, description))
        self.sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if last else 0)


def text_of(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return "" if tensor is None else tensor.as_numpy()[0].decode()


def text_tensor(name, text):
    return pb_utils.Tensor(name, np.array([str(text).encode()], dtype=object))
