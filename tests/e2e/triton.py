"""A plain Triton client, as people outside this project would write it."""

from __future__ import annotations

import json
import queue
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

PATIENCE_S = 180.0  # only a hang takes so long


def text(name: str, value: str) -> grpc.InferInput:
    tensor = grpc.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
    return tensor


@dataclass
class Answer:
    """All responses to one request, in order of arrival."""

    tensors: list[dict[str, np.ndarray]] = field(default_factory=list)
    ends: int = 0  # responses that Triton itself marked as final

    def all(self, name: str) -> list[Any]:
        return [response[name].item() for response in self.tensors]

    @property
    def indices(self) -> list[int]:
        return self.all("INDEX")

    @property
    def lasts(self) -> list[bool]:
        return self.all("LAST")

    @property
    def reason(self) -> str:
        return self.tensors[-1]["FINISH_REASON"].item().decode()

    @property
    def pcm(self) -> np.ndarray:
        return np.concatenate([response["PCM"] for response in self.tensors])

    @property
    def codes(self) -> np.ndarray:
        return np.concatenate([response["CODES"] for response in self.tensors])


class Session:
    """One gRPC stream to Triton with any number of requests on it. Use it with `with`."""

    def __init__(self, address: str) -> None:
        self._client = grpc.InferenceServerClient(address)
        self._arrived: queue.Queue[tuple[Any, InferenceServerException | None]] = queue.Queue()
        self._client.start_stream(lambda result, error: self._arrived.put((result, error)))
        self._answers: dict[str, Answer] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def drop(self) -> None:
        """Close the connection under the stream, as a client that dies does."""
        self._client.close()

    def send(
        self, model: str, words: str, request_id: str = "1", *, outputs: list[str] | None = None, **options: object
    ) -> None:
        """Ask `model` (tts, or talker for codes) to speak."""
        self.request(model, request_id, outputs, TEXT=words, OPTIONS=json.dumps(options))

    def start_live(self, model: str, stream_id: str, **options: object) -> None:
        """Open a text that is still to be written; what is said of it is the answer to the request `speech`."""
        self.request(
            model, "speech", None, TEXT="", OPTIONS=json.dumps(options), ACTION="start_live", STREAM_ID=stream_id
        )

    def send_codes(self, stream_id: str, index: int, codes: np.ndarray) -> None:
        """Send a chunk of codes to the codec, as only the talker should."""
        parts = {
            "CODES": ("INT32", codes),
            "INDEX": ("INT32", np.array([index], np.int32)),
            "LAST": ("BOOL", np.array([True])),
            "USAGE": ("INT32", np.zeros(2, np.int32)),
            "PRIMER": ("INT32", np.zeros((0, 16), np.int32)),
        }
        inputs = [grpc.InferInput(name, list(array.shape), kind) for name, (kind, array) in parts.items()]
        for tensor, (_, array) in zip(inputs, parts.values(), strict=True):
            tensor.set_data_from_numpy(array)
        self.request("codec", "codes", None, *inputs, STREAM_ID=stream_id, FINISH_REASON="stop")

    def act(self, action: str, stream_id: str, request_id: str = "action") -> None:
        """Send an action to the talker."""
        self.request("talker", request_id, None, ACTION=action, STREAM_ID=stream_id)

    def request(
        self, model: str, request_id: str, outputs: list[str] | None, *more: grpc.InferInput, **tensors: str
    ) -> None:
        self._answers[request_id] = Answer()
        self._client.async_stream_infer(
            model,
            [*more, *(text(name, value) for name, value in tensors.items())],
            request_id=request_id,
            outputs=[grpc.InferRequestedOutput(name) for name in outputs] if outputs else None,
            enable_empty_final_response=True,
        )

    def receive(self) -> tuple[str, dict[str, np.ndarray]]:
        """The next response of any request: its request's id and its tensors (none for a bare end)."""
        result, error = self._arrived.get(timeout=PATIENCE_S)
        if error is not None:
            raise error
        response = result.get_response()
        answer = self._answers[response.id]
        answer.ends += response.parameters["triton_final_response"].bool_param
        tensors = {output.name: result.as_numpy(output.name) for output in response.outputs}
        if tensors:
            answer.tensors.append(tensors)
        return response.id, tensors

    def finish(self) -> dict[str, Answer]:
        """Receive until every request has ended by LAST, or by Triton's own mark where LAST wasn't asked for."""
        while not all(_ended(answer) for answer in self._answers.values()):
            self.receive()
        return self._answers


def _ended(answer: Answer) -> bool:
    if answer.tensors and "X_VECTOR" in answer.tensors[-1]:
        return True
    if answer.tensors and "LAST" in answer.tensors[-1]:
        return bool(answer.tensors[-1]["LAST"].item())
    return answer.ends > 0


def ask(address: str, model: str, words: str, **options: object) -> Answer:
    """One request on a stream of its own, heard to its end."""
    with Session(address) as session:
        session.send(model, words, **options)
        return session.finish()["1"]
