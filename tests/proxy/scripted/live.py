"""The live streams of the scripted talker: they speak the text that is appended, a word a token, a token a frame.

A word is committed once white space or the end has followed it. `number_of` says which frame speaks it. The script:
pace_ms=0   wait before each frame        fail, gap, stall   as in talker.py
frames=0    above 0: it ends after so many, as too long
choke=-1    the piece of text that is refused as too large
mum=-1      the piece that isn't acknowledged
"""

import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from engine_lib import errors, wire
from tests.proxy.scripted import number_of

SCRIPT = dict(pace_ms=0, fail=-1, gap=-1, stall=-1, refuse=0, frames=0, choke=-1, mum=-1)  # noqa: C408
GONE = errors.NotFound("There is no such stream.")


@dataclass
class Input:
    """An append, or the end, which has no text."""

    sequence: int
    text: str | None
    sender: Any


class Inputs:
    """What was sent to each live stream, also before its start, which takes a longer way."""

    def __init__(self):
        self.lock = threading.Lock()
        self.queues = {}
        self.gone = set()

    def of(self, stream_id):
        with self.lock:
            return self.queues.setdefault(stream_id, queue.SimpleQueue())

    def put(self, stream_id, given):
        with self.lock:
            if stream_id in self.gone:
                raise GONE
            self.queues.setdefault(stream_id, queue.SimpleQueue()).put(given)

    def wake(self, stream_id):
        with self.lock:
            if stream_id in self.queues:
                self.queues[stream_id].put(None)

    def close(self, stream_id):
        """What nobody has taken."""
        with self.lock:
            self.gone.add(stream_id)
            left = self.queues.pop(stream_id)
        given = []
        while not left.empty():
            given.append(left.get())
        return [one for one in given if one is not None]


def follow(script, stream_id, sender, cancelled, inputs, send, refuse):
    words, open_word, ended, index = [], "", False, 0
    while True:
        has_to_wait = (index == len(words) and not ended) or index == script["stall"]
        try:
            given = inputs.get(block=has_to_wait)
        except queue.Empty:
            given = None
        if cancelled.is_set():
            send(sender, stream_id, index, [], wire.FinishReason.CANCELLED, True)
            return
        if given is not None:
            if given.sequence == script["choke"]:
                refuse(given.sender, errors.InvalidRequest("Too many tokens.", code="input_too_large"))
                continue
            ended = given.text is None
            *whole, open_word = [*(open_word + (given.text or "")).replace("\n", " ").split(" "), *[""] * ended]
            words += [word for word in whole if word]
            if given.sequence != script["mum"]:
                send(given.sender, stream_id, 0, [], wire.FinishReason.STOP, True, text_tokens=len(words))
            continue
        if has_to_wait:
            continue
        time.sleep(script["pace_ms"] / 1000)
        number = index + 1 if 0 <= script["gap"] <= index else index
        if index == script["fail"]:
            send(sender, stream_id, number, [], wire.FinishReason.FAILED, True)
            return
        if index == script["frames"] > 0:
            send(sender, stream_id, number, [], wire.FinishReason.LENGTH, True)
            return
        if index == len(words):
            send(sender, stream_id, number, [], wire.FinishReason.STOP, True)
            return
        send(sender, stream_id, number, [number_of(words[index])], "", False)
        index += 1
