"""A talker that does what its TEXT says, for tests of what stands before Triton. Keeps the contract of engine_lib.wire.

TEXT holds `key=value` words; all others are ignored. The values are numbers:
frames=10 chunk=1   how many frames, and how many in a chunk        pace_ms=0  wait before each chunk
mute=0              so many frames at the start decode to nothing   limit=0    1: the finish reason is length
refuse=0            1: overloaded, 2: not ready, 3: invalid         fail=-1    the chunk that fails in the codec
gap=-1              the chunk whose number is left out              stall=-1   the chunk that comes after a cancel only
bare=0              1: the end is a final flag without a response   room=0     above 0: so many may run at once

A live stream's TEXT is what it speaks, so its script is in OPTIONS.instructions (live.py).
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from engine_lib import errors, wire
from proxy.pool import TRIAL_TEXT
from tests.proxy.scripted import live

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
SCRIPT = dict(frames=10, chunk=1, pace_ms=0, mute=0, limit=0, refuse=0, fail=-1, gap=-1, stall=-1, bare=0, room=0)  # noqa: C408
SPEAKERS = ("ryan", "serena")
REFUSALS = {
    1: errors.Overloaded("Too many requests are waiting."),
    2: errors.NotReady("The engine is stopping."),
    3: errors.InvalidRequest("'instructions' takes too many positions.", param="instructions", code="input_too_large"),
}


class TritonPythonModel:
    def initialize(self, args):
        self.running = {}
        self.live = live.Inputs()
        self.trials = self.starts = self.inputs = 0

    def execute(self, requests):
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy()[0] for tensor in request.inputs()}
            inputs = {name: value.decode() if isinstance(value, bytes) else value for name, value in inputs.items()}
            sender = request.get_response_sender()
            try:
                self.answer(inputs.get(wire.ACTION, wire.Action.START), inputs, sender)
            except errors.ServiceError as error:
                refuse(sender, error)

    def answer(self, action, inputs, sender):
        stream_id = inputs.get(wire.STREAM_ID, "")
        if action == wire.Action.DESCRIBE:
            send(sender, "", 0, [], "", True, description=self.description().model_dump_json())
        elif action == wire.Action.CANCEL:
            if cancelled := self.running.get(stream_id):
                cancelled.set()
                self.live.wake(stream_id)
            send(sender, stream_id, 0, [], wire.FinishReason.CANCELLED, True)
        elif action in (wire.Action.APPEND, wire.Action.END):
            self.inputs += 1
            self.live.put(stream_id, live.Input(inputs[wire.SEQUENCE], inputs.get(wire.TEXT), sender))
        else:
            self.start(inputs, sender, is_live=action == wire.Action.START_LIVE)

    def start(self, inputs, sender, *, is_live):
        text, stream_id = inputs[wire.TEXT], inputs[wire.STREAM_ID]
        options = wire.parse_options(inputs.get(wire.OPTIONS, ""))
        if options.voice is not None and options.voice.lower() not in (*SPEAKERS, "alloy"):
            raise errors.InvalidRequest(f"Unknown voice. This model's voices: {', '.join(SPEAKERS)}.", param="voice")
        self.trials += text == TRIAL_TEXT
        told = (options.instructions or "") if is_live else text
        words = dict(word.split("=") for word in told.split() if "=" in word)
        script = (live.SCRIPT if is_live else SCRIPT) | {key: int(value) for key, value in words.items()}
        if refusal := REFUSALS.get(script["refuse"]):
            raise refusal
        if len(self.running) >= script.get("room", 0) > 0:
            raise REFUSALS[1]
        self.starts += 1
        self.running[stream_id] = threading.Event()
        thread = threading.Thread(target=self.speak, args=(script, stream_id, sender, is_live), daemon=True)
        thread.start()

    def speak(self, script, stream_id, sender, is_live):
        cancelled = self.running[stream_id]
        if is_live:
            live.follow(script, stream_id, sender, cancelled, self.live.of(stream_id), send, refuse)
            for late in self.live.close(stream_id):
                refuse(late.sender, live.GONE)
        else:
            follow(script, stream_id, sender, cancelled)
        del self.running[stream_id]

    def description(self):
        return wire.Description(
            model="makers/scripted",
            model_type="custom_voice",
            model_size="0b6",
            speakers=[{"id": name, "name": name.title(), "language": "english"} for name in SPEAKERS],
            voice_aliases={"alloy": "ryan"},
            model_aliases=["tts-1", "tts-1-hd", "gpt-4o-mini-tts"],
            languages=["auto", "english"],
            sampling_defaults={"trials": self.trials, "starts": self.starts, "inputs": self.inputs},
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


def refuse(sender, error):
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error.to_wire())), flags=FINAL)


def send(sender, stream_id, index, numbers, reason, last, description=None, text_tokens=7):
    codes = np.zeros((len(numbers), wire.CODEBOOKS), np.int32)
    codes[:, 0] = numbers
    reason = reason if last else ""
    tensors = [
        pb_utils.Tensor(wire.CODES, codes),
        text_tensor(wire.STREAM_ID, stream_id),
        pb_utils.Tensor(wire.INDEX, np.array([index], np.int32)),
        pb_utils.Tensor(wire.LAST, np.array([last])),
        text_tensor(wire.FINISH_REASON, reason),
        pb_utils.Tensor(wire.USAGE, np.array([text_tokens, max(numbers, default=0) + 1], np.int32)),
        pb_utils.Tensor(wire.PRIMER, np.zeros((0, wire.CODEBOOKS), np.int32)),
    ]
    if description is not None:
        tensors.append(text_tensor(wire.DESCRIPTION, description))
    sender.send(pb_utils.InferenceResponse(tensors), flags=FINAL if last else 0)


def text_tensor(name, text):
    return pb_utils.Tensor(name, np.array([str(text).encode()], dtype=object))
