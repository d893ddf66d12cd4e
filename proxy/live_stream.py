"""One utterance whose text comes piece by piece, as fast as its writer likes: the engine gets it at its own pace.

The first pieces go on as they come. Once the engine is behind, what is written meanwhile waits and goes as one message
when all before has been taken. So a flood of pieces costs Triton a bounded number of requests a second.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine_lib import wire
from engine_lib.errors import NotFound, from_wire
from proxy import tensors
from proxy.backlog import Backlog, Message
from proxy.stream import INPUT, Chunk, Limits, Stream, Taken, add_words

log = logging.getLogger(__name__)

MOST_IN_FLIGHT = 8  # messages that the engine hasn't taken yet, and the end
GATHERING_S = 0.02  # from one message to the next of a text that is written too fast; a frame sounds for 0.08


class LiveStream(Stream):
    """`events` also tells, in their order, which pieces the engine has taken."""

    def __init__(self, call: Any, start: Mapping[str, tensors.Value], stream_id: str, limits: Limits) -> None:
        self._backlog = Backlog()
        self._in_flight: dict[int, Message] = {}  # by number, which the engine checks
        self._sent = 0  # messages, which is the next one's number
        self._told = 0  # of them as taken
        self._taken: dict[int, Taken] = {}  # that wait for one before
        self._gathers = False  # the engine is behind
        self._pause: asyncio.TimerHandle | None = None
        self._last_sent = 0.0  # the loop's time
        self._end_sent = False
        self._ending: Chunk | None = None  # the last one, while something is in flight
        self._told_late = False
        super().__init__(call, start, stream_id, limits)

    def append(self, piece: str) -> None:
        """Send a piece of text, soon."""
        self._backlog.add(piece)
        self._forward()

    def end(self, rest: str = "") -> None:
        """Say that there's no more text after `rest`, which isn't a piece of its own."""
        self._backlog.end(rest)
        self._forward()

    async def leave(self) -> None:
        """Drop what waits, then as Stream.leave."""
        self._stop_forwarding()
        await super().leave()

    def _forward(self) -> None:
        """Send of what waits as much as may be sent now."""
        if self._over.is_set():
            self._backlog.clear()  # it ended by itself; its last chunk or error is on its way to the caller
        while self._backlog and self._pause is None:
            if len(self._in_flight) >= (1 if self._gathers else MOST_IN_FLIGHT) and not self._backlog.at_end:
                self._gathers = True
                return
            self._input(self._backlog.take())

    def _input(self, message: Message) -> None:
        number, self._sent = self._sent, self._sent + 1
        inputs: dict[str, tensors.Value] = {wire.SEQUENCE: np.array([number], np.int32)}
        if message.text is None:
            self._end_sent = True
            inputs[wire.ACTION] = wire.Action.END
        else:
            inputs |= {wire.ACTION: wire.Action.APPEND, wire.TEXT: message.text}
        self._in_flight[number] = message
        self._last_sent = asyncio.get_running_loop().time()
        self._send(inputs, f"{INPUT}{number}")
        self._expect()

    def _take_input(self, response: Any) -> None:
        if not (response.error_message or response.infer_response.outputs):
            return  # a bare final flag
        try:
            number = int(response.infer_response.id.removeprefix(INPUT))
            message = self._in_flight.pop(number)
            if response.error_message:
                self._take_no(response.error_message)
            else:
                usage = tensors.Outputs(response.infer_response).numbers(wire.USAGE, "INT32")
                self._taken[number] = Taken(message.sequences, int(usage[0]))
        except (LookupError, ValueError, struct.error) as error:
            self._fail_contract(error)
            return
        while self._told in self._taken:
            self._arrived.put_nowait(self._taken.pop(self._told))
            self._told += 1
        if not self._in_flight:
            self._catch_up()

    def _take_no(self, message: str) -> None:
        error = from_wire(message)
        if not isinstance(error, NotFound):
            add_words(error, message)
            self.fail(error)
        elif not self._told_late:
            self._told_late = True
            log.info("stream %s had ended when a piece of text came", self._stream_id)

    def _catch_up(self) -> None:
        """Go on, now that the engine has taken all that was sent."""
        if self._ending:
            super()._check(self._ending)
        elif not self._backlog:
            self._gathers = False
        elif self._pause is None:
            loop = asyncio.get_running_loop()
            self._pause = loop.call_at(self._last_sent + GATHERING_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._forward()

    def _check(self, chunk: Chunk) -> None:
        """Let the last chunk wait for the answers to what is in flight: what was taken is told as taken."""
        if chunk.last and self._in_flight:
            self._ending = chunk
        else:
            super()._check(chunk)

    def _set_over(self) -> None:
        super()._set_over()
        self._stop_forwarding()

    def _stop_forwarding(self) -> None:
        self._backlog.clear()
        if self._pause:
            self._pause.cancel()
            self._pause = None

    @property
    def _begun(self) -> bool:
        return super()._begun or self._told > 0

    @property
    def _owed(self) -> bool:
        return self._end_sent or bool(self._in_flight)
