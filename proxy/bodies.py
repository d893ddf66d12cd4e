"""Read a request's body within bounds of size and time."""

from __future__ import annotations

import asyncio

from fastapi import Request

from proxy.errors import BodyTooLarge, BodyTooSlow, UnsupportedBody


async def read_json_body(request: Request, most_bytes: int, limit_s: float) -> bytes:
    """A JSON body. Raises UnsupportedBody, BodyTooLarge or BodyTooSlow."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedBody("The body must be JSON, with 'Content-Type: application/json'.")
    return await read_body(request, most_bytes, limit_s)


async def read_body(request: Request, most_bytes: int, limit_s: float) -> bytes:
    """Any body; one that says it is too large isn't read. Raises UnsupportedBody, BodyTooLarge or BodyTooSlow."""
    coding = request.headers.get("content-encoding", "").strip()
    if coding.lower() not in ("", "identity"):
        raise UnsupportedBody(f"The body must come as it is, without 'Content-Encoding: {coding}'.")
    too_large = BodyTooLarge(f"The body is over the limit of {most_bytes} bytes.")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for piece in request.stream():
                body += piece
                if len(body) > most_bytes:
                    raise too_large
    except TimeoutError:
        raise BodyTooSlow(f"The body took longer than {limit_s:g} s.") from None
    return bytes(body)
