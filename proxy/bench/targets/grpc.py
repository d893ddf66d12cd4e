"""Triton's ensemble `tts` over gRPC, without the proxy: what the proxy costs is the difference."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from engine_lib.errors import ConfigurationError, ServiceError
from engine_lib.wire import StreamOptions, invalid_field
from proxy.bench.listening import Listener
from proxy.bench.outcome import Failed, by_code
from proxy.bench.plan import Request
from proxy.bench.targets import Stopwatch
from proxy.bench.targets.http import fields_of
from proxy.stream import Limits
from proxy.triton_client import TritonClient


class GrpcTarget:
    """One connection, on which every utterance has a stream of its own."""

    def __init__(self, address: str, fields: Mapping[str, Any], *, limit_s: float, own_lengths: bool) -> None:
        """`fields` as over HTTP, but for those that the proxy alone knows. Raises ConfigurationError."""
        self.name = f"grpc://{address}/tts"
        self._fields = fields
        self._own_lengths = own_lengths
        self._client = TritonClient(address, Limits(first_chunk_s=limit_s, chunk_s=limit_s, heartbeat_s=limit_s))
        try:
            StreamOptions.model_validate(fields)
        except ValidationError as error:
            raise ConfigurationError(invalid_field(error).message) from None

    async def speak(self, request: Request, watch: Stopwatch, listener: Listener) -> None:
        """As Target says."""
        fields = {**self._fields, **fields_of(request, own_lengths=self._own_lengths)}
        options = StreamOptions.model_validate(fields)
        watch.start()
        try:
            async with self._client.speech(request.text, options, uuid.uuid4().hex) as chunks:
                async for chunk in chunks:
                    listener.feed(chunk.pcm.tobytes(), watch.elapsed_s)
        except ServiceError as error:
            raise Failed(by_code(error.code), error.message) from None

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()
