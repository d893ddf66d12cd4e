"""Bodies that don't arrive, and probes without a body, in one process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from proxy.app import create_app
from proxy.settings import Settings

SETTINGS = Settings(triton_urls=("127.0.0.1:1",), body_timeout_s=0.05)


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(SETTINGS)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://proxy") as http,
    ):
        yield http


async def test_a_body_that_stays_out_is_answered_with_408() -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b'{"input": '
        await asyncio.Event().wait()

    headers = {"Content-Type": "application/json"}
    async with client() as http:
        for path in ("/v1/audio/speech", "/v1/audio/speech/batch"):
            answer = await http.post(path, content=half(), headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (408, "body_too_slow")


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/ready", 503), ("/metrics", 200)])
async def test_probes_may_ask_by_head(path: str, status: int) -> None:
    async with client() as http:
        assert (await http.head(path)).status_code == (await http.get(path)).status_code == status


async def test_the_schema_can_be_made() -> None:
    async with client() as http:
        assert set((await http.get("/openapi.json")).json()["paths"]) >= {"/v1/audio/speech", "/health", "/ready"}
