"""How an error looks over HTTP: one table from error classes to status codes, and OpenAI's envelope.

Adds to the tree of engine_lib.errors what only HTTP knows:

ServiceError
├── Unauthorized            no API key, or a wrong one
└── InvalidRequest
    ├── BodyTooLarge        over the limit of the settings
    ├── BodyTooSlow         not here in time
    ├── UnsupportedBody     not JSON by its Content-Type
    └── Backpressure        a WebSocket client that doesn't read
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import grpc
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from engine_lib.errors import (
    GenerationFailed,
    InvalidRequest,
    NotFound,
    NotReady,
    Overloaded,
    ServiceError,
)
from proxy.stream import TritonSaid

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1


class Unauthorized(ServiceError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"


class BodyTooLarge(InvalidRequest):
    """The request's body is over the limit."""

    code = "body_too_large"


class BodyTooSlow(InvalidRequest):
    """The request's body didn't arrive in time."""

    code = "body_too_slow"


class UnsupportedBody(InvalidRequest):
    """The request's body isn't what its route takes."""

    code = "unsupported_media_type"


class Backpressure(InvalidRequest):
    """The client doesn't read what it asked for."""

    code = "backpressure"


# The nearest class of an error's ancestry counts.
STATUS: dict[type[ServiceError], HTTPStatus] = {
    BodyTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    UnsupportedBody: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    Unauthorized: HTTPStatus.UNAUTHORIZED,
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    NotFound: HTTPStatus.NOT_FOUND,
    Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    NotReady: HTTPStatus.SERVICE_UNAVAILABLE,
    GenerationFailed: HTTPStatus.INTERNAL_SERVER_ERROR,
    ServiceError: HTTPStatus.INTERNAL_SERVER_ERROR,
}

# OpenAI's word for a kind of error; other statuses below 500 are invalid_request_error.
KINDS = {HTTPStatus.UNAUTHORIZED: "authentication_error", HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error"}


def status_of(error: ServiceError) -> HTTPStatus:
    """The status code that this error is answered with."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def envelope(error: ServiceError) -> dict[str, Any]:
    """OpenAI's error object, without the `error` key around it."""
    return _envelope(status_of(error), error.message, error.param, error.code)


def _envelope(status: int, message: str, param: str | None, code: str) -> dict[str, Any]:
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    return {"message": message, "type": KINDS.get(HTTPStatus(status), kind), "param": param, "code": code}


def for_log(error: ServiceError) -> str:
    """One line for the log: the message, and what gRPC or Triton said, which no client is told."""
    cause = error.__cause__
    if isinstance(cause, TritonSaid):
        return f"{error.message} ({' '.join(str(cause).split())})"
    if not isinstance(cause, grpc.aio.AioRpcError):
        return error.message
    return f"{error.message} ({cause.code().name}: {' '.join((cause.details() or '').split())})"


def answer(error: ServiceError) -> JSONResponse:
    """The response to a request that ended in `error`."""
    status = status_of(error)
    headers = {}
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": envelope(error)}, status, headers)


def install(app: FastAPI) -> None:
    """Answer every error of `app`'s routes and routing in the envelope; middleware.py does so for our own bugs."""

    @app.exception_handler(ServiceError)
    async def service_error(request: Request, error: ServiceError) -> JSONResponse:
        if status_of(error) >= HTTPStatus.INTERNAL_SERVER_ERROR:
            fields = {"id": request.state.request_id}
            log.warning("%s %s: %s", request.method, request.url.path, for_log(error), extra={"fields": fields})
        return answer(error)

    @app.exception_handler(HTTPException)
    async def routing_error(request: Request, error: HTTPException) -> JSONResponse:
        status = HTTPStatus(error.status_code)
        message = {
            HTTPStatus.NOT_FOUND: "There is nothing at this path.",
            HTTPStatus.METHOD_NOT_ALLOWED: f"{request.method} isn't allowed at this path.",
        }.get(status, f"{status.phrase}.")
        body = _envelope(status, message, None, status.phrase.lower().replace(" ", "_"))
        return JSONResponse({"error": body}, status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def parameter_error(request: Request, error: RequestValidationError) -> JSONResponse:
        place = error.errors()[0]["loc"]
        field = str(place[-1])
        return answer(InvalidRequest(f"Invalid value for '{field}'.", param=field))
