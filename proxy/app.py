"""Put the proxy together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from proxy import documented, errors, voice_routes
from proxy.cloning import Cloning
from proxy.metrics import Metrics
from proxy.middleware import RequestMiddleware
from proxy.pool import Pool
from proxy.routes import open_routes, routes
from proxy.service import Service
from proxy.settings import Settings
from proxy.website import website

EXPOSED_HEADERS = ["x-request-id", "x-seed", "x-sample-rate", "x-finish-reason", "x-audio-seconds", "retry-after"]


def create_app(settings: Settings) -> FastAPI:
    """The proxy as an ASGI app. It connects to Triton when it starts, and answers at once, though not ready."""
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        pool = Pool(settings)  # its connections belong to the running event loop
        metrics.watch(pool.servers)
        app.state.service = Service(settings, pool, metrics, Cloning(settings, pool), asyncio.Event())
        async with pool.watched():
            yield

    app = FastAPI(title="qwen3-tts-triton", summary="Text in, speech out, while it is made.", lifespan=lifespan)
    errors.install(app)
    app.add_middleware(RequestMiddleware, metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
            expose_headers=EXPOSED_HEADERS,
        )
    key = documented.KEY if settings.api_key else []
    app.include_router(routes, dependencies=key)  # first: a request is compared with route after route
    app.include_router(open_routes)
    app.include_router(voice_routes.open_routes)
    app.include_router(voice_routes.routes, dependencies=key)
    app.include_router(website)
    return app
