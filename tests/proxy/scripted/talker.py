"""A talker that does what its TEXT says, for tests of what stands before Triton. Keeps the contract of engine_lib.wire.

TEXT holds `key=value` words; all others are ignored. The values are numbers:
frames=10 chunk=1   how many frames, and how many in a chunk        pace_ms=0  wait before each chunk
mute=0              so many frames at the start decode to nothing   limit=0    1: the finish reason is length
refuse=0            1: overloaded, 2: not ready                     fail=-1    the chunk that fails in the codec
gap=-1              the chunk whose number is left out              stall=-1   the chunk that comes after a cancel only
bare=0              1: the end is a final flag without a response
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import errors, wire
from proxy.pool import TRIAL_TEXT

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SCRIPT = dict(frames=10, chunk=1, pace_ms=0, mute=0, limit=0, refuse=0, fail=-1, gap=-1, stall=-1, bare=0)  # noqa: C408
SPEAKERS = ("ryan", "serena")


class TritonPythonModel:
    def initialize(self, args):
        self.running = {}
        self.trials = 0

    def execute(self, requests):
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy()[0].decode() for tensor in request.inputs()}
            threading.Thread(target=self.answer, args=(inputs, request.get_response_sender()), daemon=True).start()

    def answer(self, inputs, sender):
        action = inputs.get(wire.ACTION, wire.Action.START)
        try:
            if action == wire.Action.DESCRIBE:
                send(sender, "", 0, [], "", True, description=self.description().model_dump_json())
            elif action == wire.Action.CANCEL:
                if cancelled := self.running.get(inputs[wire.STREAM_ID]):
                    cancelled.set()
                send(sender, inputs[wire.STREAM_ID], 0, [], wire.FinishReason.CANCELLED, True)
            else:
                self.speak(inputs, sender)
        except errors.ServiceError as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error.to_wire())), flags=FINAL)

    def speak(self, inputs, sender):
        text = inputs[wire.TEXT]
        options = wire.parse_options(inputs.get(wire.OPTIONS, ""))
        if options.voice is not None and options.voice not in SPEAKERS:
            raise errors.InvalidRequest(f"Unknown voice. This model's voices: {', '.join(SPEAKERS)}.", param="voice")
        self.trials += text == TRIAL_TEXT
        words = dict(word.split("=") for word in text.split() if "=" in word)
        script = SCRIPT | {key: int(value) for key, value in words.items()}
        if script["refuse"] == 1:
            raise errors.Overloaded("Too many requests are waiting.")
        if script["refuse"] == 2:
            raise errors.NotReady("The engine is stopping.")
        cancelled = self.running[inputs[wire.STREAM_ID]] = threading.Event()
        try:
            follow(script, inputs[wire.STREAM_ID], sender, cancelled)
        finally:
            del self.running[inputs[wire.STREAM_ID]]

    def description(self):
        return wire.Description(
            model="makers/scripted",
            model_type="custom_voice",
            model_size="0b6",
            speakers=[{"id": name, "name": name.title(), "language": "english"} for name in SPEAKERS],
            voice_aliases={},
            languages=["auto", "english"],
            sampling_defaults={"trials": self.trials},
            sample_rate=wire.SAMPLE_RATE,
            slot_positions=2048,
            max_active=32,
            max_waiting=256,
            active=len(self.running),
            waiting=0,
            device="cpu",
            path="plain",
            speaks=False,
        )


def follow(script, stream_id, sender, cancelled):
    frames, size = script["frames"], script["chunk"]
    for index, start in enumerate(range(0, frames, size)):
        if index == script["stall"]:
            cancelled.wait()
        time.sleep(script["pace_ms"] / 1000)
        last = start + size >= frames
        reason = (wire.FinishReason.LENGTH if script["limit"] else wire.FinishReason.STOP) if last else ""
        if cancelled.is_set():
            last, reason = True, wire.FinishReason.CANCELLED
        if index == script["fail"]:
            last, reason = True, wire.FinishReason.FAILED
        numbers = [-1 if n < script["mute"] else n for n in range(start, min(start + size, frames))]
        number = index + 1 if 0 <= script["gap"] <= index else index
        send(sender, stream_id, number, numbers, reason, last and not script["bare"])
        if last:
            break
    if script["bare"]:
        sender.send(flags=FINAL)


def send(sender, stream_id, index, numbers, reason, last, description=None):
    codes = np.zeros((len(numbers), wire.CODEBOOKS), np.int32)
    codes[:, 0] = numbers
    reason = reason if last else ""
    tensors = [
        pb_utils.Tensor(wire.CODES, codes),
        text_tensor(wire.STREAM_ID, stream_id),
        pb_utils.Tensor(wire.INDEX, np.array([index], np.int32)),
        pb_utils.Tensor(wire.LAST, np.array([last])),
        text_tensor(wire.FINISH_REASON, reason),
        pb_utils.Tensor(wire.USAGE, np.array([7, max(numbers, default=0) + 1], np.int32)),
    ]
    if description is not None:
        tensors.append(text_tensor(wire.DESCRIPTION, description))
    sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if last else 0)


def text_tensor(name, text):
    return pb_utils.Tensor(name, np.array([str(text).encode()], dtype=object))
