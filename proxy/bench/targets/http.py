"""POST /v1/audio/speech, as OpenAI's clients send it: works with any server that keeps to that API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from proxy.bench.listening import Listener
from proxy.bench.outcome import Failed, Failure, by_status
from proxy.bench.plan import Request
from proxy.bench.targets import Stopwatch

PATH = "/v1/audio/speech"
DETAIL_LIMIT = 300  # characters of a server's complaint


class HttpTarget:
    """Connections that stay open, each a client of its own: httpx' pool looks at all of them for every request."""

    def __init__(self, url: str, fields: Mapping[str, Any], *, api_key: str | None, own_lengths: bool) -> None:
        """`fields` go into every body. Without `own_lengths` the text's length says how long the speech gets."""
        self.name = f"{url}{PATH}"
        self._fields = fields
        self._own_lengths = own_lengths
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._trust = httpx.create_ssl_context(trust_env=False)  # making one takes longer than speaking
        self._idle: list[httpx.AsyncClient] = []

    async def speak(self, request: Request, watch: Stopwatch, listener: Listener) -> None:
        """As Target says."""
        body = json.dumps({"input": request.text, **self._fields, **fields_of(request, own_lengths=self._own_lengths)})
        data = body.encode()
        client = self._idle.pop() if self._idle else self._connection()
        try:
            async with client.stream(
                "POST", PATH, content=_sent(data, watch), headers={"Content-Length": str(len(data))}
            ) as response:
                await _check(response)
                async for piece in response.aiter_raw():
                    listener.feed(piece, watch.elapsed_s)
        except httpx.ConnectError as error:
            raise Failed(Failure.UNREACHABLE, str(error)) from None
        except httpx.TransportError as error:
            raise Failed(Failure.BROKEN, str(error) or type(error).__name__) from None
        finally:
            self._idle.append(client)

    async def close(self) -> None:
        """Close the connections."""
        for client in self._idle:
            await client.aclose()

    def _connection(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url,
            headers=self._headers,
            timeout=None,  # the run has a limit of its own
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None),
            verify=self._trust,
            trust_env=False,
        )


def fields_of(request: Request, *, own_lengths: bool) -> dict[str, Any]:
    """What makes a request's speech the same length everywhere; nothing if the model is to find its own."""
    if own_lengths:
        return {}
    # The last token that is sampled gets no frame.
    return {"seed": request.seed, "ignore_eos": True, "max_new_tokens": request.frames + 1}


async def _sent(data: bytes, watch: Stopwatch) -> AsyncIterator[bytes]:
    watch.start()
    yield data


async def _check(response: httpx.Response) -> None:
    """Raise Failed unless sound follows."""
    kind = response.headers.get("content-type", "")
    if response.status_code != httpx.codes.OK:
        detail = (await response.aread()).decode(errors="replace")
        raise Failed(by_status(response.status_code), f"{response.status_code}: {detail[:DETAIL_LIMIT]}")
    if kind.startswith(("application/json", "text/")):
        raise Failed(Failure.MALFORMED, f"{kind} and not sound")
