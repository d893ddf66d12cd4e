"""Laws of what stands between Triton and an engine. Triton's module, which exists in its stub alone, is a fake."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_lib.adapter import Call, Port

PATIENCE_S = 120  # only a hang takes so long


class Gone(Exception):
    """What Triton raises for a client that left."""


TRITON = SimpleNamespace(
    MetricFamily=None,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    TritonModelException=Gone,
    Tensor=lambda name, array: (name, array),
    InferenceResponse=lambda tensors: tensors[0][0],
)


class Sender:
    """Takes answers, the first of them not before it is let; `gone` takes none."""

    def __init__(self, *, gone: bool = False) -> None:
        self.begun, self.let = threading.Event(), threading.Event()
        self.sent: list[str] = []
        self._gone = gone

    def send(self, response: str, flags: int) -> None:
        self.begun.set()
        assert self.let.wait(PATIENCE_S)
        if self._gone:
            raise Gone("the client has left")
        self.sent.append(response)


@pytest.fixture
def answer() -> Iterator[Callable[..., None]]:
    """Answers a call of the sender with a tensor of that name. At the end all is sent."""
    port = Port(TRITON, lambda call: None, [])

    def give(sender: Sender, name: str, **how: Any) -> None:
        Call(port, {}, sender).answer({name: np.zeros(1)}, **how)

    yield give
    port.close()


def test_patient_answers_let_others_pass_and_all_come_in_their_order(answer: Callable[..., None]) -> None:
    sender, done = Sender(), Sender()
    answer(sender, "first")
    assert sender.begun.wait(PATIENCE_S)
    for number in range(3):
        answer(sender, f"ack {number}", patient=True)
    for number in range(3):
        answer(sender, f"sound {number}")
    answer(done, "last", patient=True)
    sender.let.set()
    assert done.begun.wait(PATIENCE_S)
    done.let.set()
    assert sender.sent == ["first", "sound 0", "sound 1", "sound 2", "ack 0", "ack 1", "ack 2"]


def test_tensors_outlive_their_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton drops those that weren't asked for without the interpreter's lock: it must not be their last holder."""

    class Tensor:
        def __init__(self, name: str, array: Any) -> None:
            self.name = name

    class Pruning(Sender):
        def send(self, response: list[Tensor], flags: int) -> None:
            seen = [weakref.ref(tensor) for tensor in response]
            response.clear()
            self.sent = [tensor.name for tensor in (one() for one in seen) if tensor is not None]
            self.begun.set()

    monkeypatch.setattr(TRITON, "Tensor", Tensor)
    monkeypatch.setattr(TRITON, "InferenceResponse", list)
    port, sender = Port(TRITON, lambda call: None, []), Pruning()
    Call(port, {}, sender).answer({name: np.zeros(1) for name in ("PCM", "USAGE")})
    assert sender.begun.wait(PATIENCE_S)
    port.close()
    assert sender.sent == ["PCM", "USAGE"]


def test_a_client_that_left_thousands_of_calls_open_is_a_line_in_the_log(
    answer: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    gone, done = Sender(gone=True), Sender()
    gone.let.set()
    for _ in range(2000):
        answer(gone, "sound")
    answer(done, "last")
    done.let.set()
    assert done.begun.wait(PATIENCE_S)
    assert 1 <= len(caplog.records) <= 4
    assert "could not be sent; the last: the client has left" in caplog.text
