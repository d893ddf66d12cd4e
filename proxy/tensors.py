"""Triton's inference messages from and to plain values. Knows data types and shapes; knows nothing of our models."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

# BYTES [1], BOOL [1], INT32 or FP32 of the array's shape
Value: TypeAlias = "str | bool | npt.NDArray[np.int32] | npt.NDArray[np.float32]"

_LENGTH = struct.Struct("<I")  # before each string of a BYTES tensor
_NUMBERS: dict[str, np.dtype[Any]] = {
    "INT32": np.dtype("<i4"),
    "INT16": np.dtype("<i2"),
    "FP32": np.dtype("<f4"),
    "BOOL": np.dtype("?"),
}


def request(model: str, inputs: Mapping[str, Value], *, id: str = "") -> Any:
    """A ModelInferRequest, which its response names by `id`."""
    message = service_pb2.ModelInferRequest(model_name=model, id=id)
    for name, value in inputs.items():
        datatype, shape, raw = _encode(value)
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(raw)
    return message


def _encode(value: Value) -> tuple[str, list[int], bytes]:
    if isinstance(value, str):
        data = value.encode()
        return "BYTES", [1], _LENGTH.pack(len(data)) + data
    if isinstance(value, bool):
        return "BOOL", [1], bytes([value])
    if value.dtype == np.float32:
        return "FP32", list(value.shape), value.astype("<f4").tobytes()
    return "INT32", list(value.shape), value.astype("<i4").tobytes()


class Outputs:
    """The tensors of one ModelInferResponse. A tensor that is missing or of another type raises KeyError."""

    def __init__(self, response: Any) -> None:
        described = zip(response.outputs, response.raw_output_contents, strict=True)
        self._raw: dict[tuple[str, str], bytes] = {(out.name, out.datatype): raw for out, raw in described}

    def text(self, name: str) -> str:
        """The first string of a BYTES tensor."""
        raw = self._raw[name, "BYTES"]
        return raw[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(raw)[0]].decode()

    def numbers(self, name: str, datatype: str) -> npt.NDArray[Any]:
        """A flat, read-only array."""
        array: npt.NDArray[Any] = np.frombuffer(self._raw[name, datatype], _NUMBERS[datatype])
        return array
