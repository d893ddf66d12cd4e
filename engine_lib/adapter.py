"""Between Triton's Python module and an engine: calls in, answers out. Knows neither talker nor codec.

Triton's module exists only inside its stub process, so a model passes it in. Two threads meet here: Triton's own hands
calls to the model in order, which puts them into its engine's inbox; the sender thread alone talks back, since a send
may block and must never hold up the thread that drives the device.
"""

from __future__ import annotations

import enum
import faulthandler
import itertools
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_lib.errors import GenerationFailed, InvalidRequest, NotFound, NotReady, Overloaded, ServiceError
from engine_lib.triton_metrics import Message, Metric, MetricsPage

log = logging.getLogger(__name__)

Tensors = Mapping[str, NDArray[Any]]

METRICS_PERIOD_S = 0.5
LOST_PERIOD_S = 10.0  # at least, between two lines about answers that nobody took
PARENT_PERIOD_S = 1.0
# This thread holds the interpreter's lock until Triton knows that we have its request: the engine's thread goes first.
YIELD_S = 1e-6
HANG_LIMIT_S = 20.0  # no call of ours holds the interpreter's lock for so long
MAX_STREAM_ID = 128  # characters
MAX_INPUT_BYTES = 1 << 20  # of one BYTES tensor: far beyond any text that can be spoken
# Triton's name for each kind of error; the nearest base decides.
STATUS: dict[type[ServiceError], str] = {
    InvalidRequest: "INVALID_ARG",
    NotFound: "NOT_FOUND",
    Overloaded: "UNAVAILABLE",
    NotReady: "UNAVAILABLE",
    ServiceError: "INTERNAL",
}


class _Lane(enum.IntEnum):
    """Which answers are sent first."""

    NEXT = 0
    PATIENT = 1
    STOP = 2  # when all are sent


@dataclass(order=True)
class _Answer:
    lane: _Lane
    number: int  # in the order in which they were given
    sender: Any = field(compare=False)
    content: Tensors | ServiceError = field(compare=False)
    final: bool = field(compare=False)


class Call:
    """One request: its input tensors, and the ways to answer it. Answers may come from any thread."""

    def __init__(self, port: Port, inputs: dict[str, NDArray[Any]], sender: Any) -> None:
        self._port = port
        self._inputs = inputs
        self._sender = sender

    def array(self, name: str) -> NDArray[Any]:
        """A tensor. Raises InvalidRequest when it's missing."""
        if name not in self._inputs:
            raise InvalidRequest(f"The input {name} is missing.", param=name)
        return self._inputs[name]

    def optional(self, name: str) -> NDArray[Any] | None:
        """A tensor, or None when it's missing."""
        return self._inputs.get(name)

    def text(self, name: str, default: str = "") -> str:
        """A BYTES tensor of one element as text. Raises InvalidRequest when it isn't UTF-8 or has another size."""
        if name not in self._inputs:
            return default
        value = bytes(self._one(name))
        if len(value) > MAX_INPUT_BYTES:
            raise InvalidRequest(
                f"The input {name} is over {MAX_INPUT_BYTES} bytes.", param=name, code="input_too_large"
            )
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest(f"The input {name} isn't UTF-8.", param=name, code="invalid_text") from None

    def whole(self, name: str, default: int = 0) -> int:
        """An integer or boolean tensor of one element."""
        return int(self._one(name)) if name in self._inputs else default

    def cancelled(self) -> bool:
        """Whether the client of this request is gone."""
        return bool(self._sender.is_cancelled())

    def answer(self, tensors: Tensors, *, final: bool = True, patient: bool = False) -> None:
        """Send one response; `final` ends the request. A `patient` one waits until no other does."""
        self._port.send(self._sender, tensors, final=final, patient=patient)

    def refuse(self, error: ServiceError, *, patient: bool = False) -> None:
        """Answer with an error, which ends the request. `patient` as for `answer`."""
        self._port.send(self._sender, error, final=True, patient=patient)

    def _one(self, name: str) -> Any:
        values = self._inputs[name].ravel()
        if len(values) != 1:
            raise InvalidRequest(f"The input {name} must have one element, not {len(values)}.", param=name)
        return values[0]


class Port:
    """A model's connection to Triton. Close it after the engine, so that every last answer gets out."""

    def __init__(self, pb_utils: Any, handle: Callable[[Call], None], metrics: list[Metric]) -> None:
        """`handle` gets each call on Triton's thread, where it mustn't wait for the device.

        A ServiceError that it raises becomes the call's answer.
        """
        self._pb = pb_utils
        self._handle = handle
        self._page = MetricsPage(pb_utils, metrics)
        self._answers: queue.PriorityQueue[_Answer] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._lost = 0  # answers, of which the log doesn't know yet
        self._lost_told = -math.inf  # time.monotonic()
        self._sender = threading.Thread(target=self._send_out, name="sender", daemon=True)
        self._sender.start()

    def accept(self, requests: list[Any]) -> None:
        """Hand on Triton's requests. Their tensors are copied: the originals end with `execute`."""
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
            self._hand_on(Call(self, inputs, request.get_response_sender()))
        time.sleep(YIELD_S)

    def send(self, sender: Any, content: Tensors | ServiceError, *, final: bool, patient: bool) -> None:
        """Queue a response for the sender thread, where a `patient` one lets all others pass."""
        self._put(_Lane.PATIENT if patient else _Lane.NEXT, sender, content, final=final)

    def close(self) -> None:
        """Send what is queued, then stop."""
        self._put(_Lane.STOP, None, {}, final=True)
        self._sender.join()

    def _put(self, lane: _Lane, sender: Any, content: Tensors | ServiceError, *, final: bool) -> None:
        self._answers.put(_Answer(lane, next(self._numbers), sender, content, final))

    def _hand_on(self, call: Call) -> None:
        try:
            self._handle(call)
        except ServiceError as error:
            call.refuse(error)
        # Raised, it would fail every call that came with this one.
        except Exception:
            log.exception("a call failed")
            call.refuse(GenerationFailed("The speech engine failed on this request."))

    def _send_out(self) -> None:
        # A message about a metric is slow, so between two answers there is one at most.
        for tell in self._metrics():
            if tell:
                tell()
            try:
                answer = self._answers.get(timeout=0 if tell else METRICS_PERIOD_S)
            except queue.Empty:
                continue  # nothing to send, but time to look at the metrics
            if answer.lane is _Lane.STOP:
                return
            self._send(answer.sender, answer.content, final=answer.final)

    def _metrics(self) -> Iterator[Message | None]:
        """Messages about metrics as they become due, without end; None where there's none yet."""
        while True:
            due = time.monotonic() + METRICS_PERIOD_S
            yield from self._page.news()
            while time.monotonic() < due:
                yield None

    def _send(self, sender: Any, content: Tensors | ServiceError, *, final: bool) -> None:
        # Triton drops what a request didn't ask for without the interpreter's lock. If that freed it, it would end the
        # process (Python 3.12: PyObject_Free without a thread state) or corrupt its memory. So this holds them too.
        tensors: list[Any] = []
        if isinstance(content, ServiceError):
            status = next(STATUS[kind] for kind in type(content).__mro__ if kind in STATUS)
            failure = self._pb.TritonError(content.to_wire(), getattr(self._pb.TritonError, status))
            response = self._pb.InferenceResponse(error=failure)
        else:
            tensors += [self._pb.Tensor(name, array) for name, array in content.items()]
            response = self._pb.InferenceResponse(tensors)
        try:
            sender.send(response, flags=self._pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)
        # A client that went away, or a server that stops: this answer is lost, the next one isn't.
        except self._pb.TritonModelException as error:
            self._lost += 1
            if time.monotonic() - self._lost_told >= LOST_PERIOD_S:  # one client may have left with thousands open
                log.warning("%d responses could not be sent; the last: %s", self._lost, error)
                self._lost, self._lost_told = 0, time.monotonic()


def end_with_parent() -> None:
    """End this process soon after Triton has ended, or when its interpreter hangs.

    Left to itself a stub outlives a Triton that was killed, memory and all: a message to it, about a metric say,
    waits for ever and holds the interpreter's lock meanwhile (seen with gdb). So the watch itself is watched by
    faulthandler, whose timer needs no lock.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            faulthandler.dump_traceback_later(HANG_LIMIT_S, exit=True)
            time.sleep(PARENT_PERIOD_S)
        os._exit(1)  # nothing can be tidied up: Triton's library hangs

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def check_stream_id(stream_id: str) -> str:
    """`stream_id`, or InvalidRequest unless it's short and printable: it stands in logs as it is."""
    if len(stream_id) > MAX_STREAM_ID or not stream_id.isprintable():
        raise InvalidRequest(f"STREAM_ID must be at most {MAX_STREAM_ID} printable characters.", param="STREAM_ID")
    return stream_id


def text_tensor(text: str) -> NDArray[np.object_]:
    """A BYTES tensor of one element."""
    return np.array([text.encode("utf-8")], dtype=np.object_)


def log_to_stderr() -> None:
    """Send this process's log to the server's standard error, one line each."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
