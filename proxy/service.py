"""What routes share: the settings, the servers behind, the meters, and who may come in."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from starlette.requests import HTTPConnection

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


def _service(connection: HTTPConnection) -> Service:
    return cast(Service, connection.app.state.service)


Here = Annotated[Service, Depends(_service)]  # the Service of the app that a request came to


def require_key(connection: HTTPConnection, service: Here) -> None:
    """Raise Unauthorized unless the request carries the API key, where there is one."""
    key = service.settings.api_key
    if key is None:
        return
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise Unauthorized("The API key is missing or wrong.")
