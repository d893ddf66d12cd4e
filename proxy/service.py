"""What routes share: the settings, the servers behind, the meters, and who may come in."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

from proxy.cloning import Cloning
from proxy.errors import Unauthorized
from proxy.metrics import Metrics
from proxy.pool import Pool
from proxy.settings import Settings


@dataclass(frozen=True)
class Service:
    """One app's parts."""

    settings: Settings
    pool: Pool
    metrics: Metrics
    cloning: Cloning
    draining: asyncio.Event  # set once only what has begun is finished


def service_of(connection: HTTPConnection) -> Service:
    """The Service of the app that a request came to; where a request must be quick, since dependencies aren't."""
    return cast(Service, connection.app.state.service)


# Coroutines, though they wait for nothing: FastAPI runs a plain function on another thread.
async def _service(connection: HTTPConnection) -> Service:
    return service_of(connection)


Here = Annotated[Service, Depends(_service)]  # the same


async def require_key(connection: HTTPConnection) -> None:
    """Raise Unauthorized unless the request carries the API key, where there is one."""
    if not is_key(bearer(connection), service_of(connection).settings):
        raise Unauthorized("The API key is missing or wrong.")


def bearer(connection: HTTPConnection) -> str:
    """The key in the Authorization header, or an empty string."""
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def is_key(given: str, settings: Settings) -> bool:
    """Whether `given` lets a client in."""
    matches = [hmac.compare_digest(given.encode(), key.encode()) for key in settings.keys]  # all, so that none is told
    return not settings.keys or any(matches)


def owner_of(connection: HTTPConnection, settings: Settings) -> str:
    """Who a request comes from, as kept voices name it; see `owner_of_key`."""
    return owner_of_key(bearer(connection), settings)


def owner_of_key(key: str, settings: Settings) -> str:
    """A name for whoever has `key`, that doesn't give it away; empty where no key is asked for."""
    return hashlib.sha256(b"voices of " + key.encode()).hexdigest() if settings.keys else ""
