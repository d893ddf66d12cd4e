"""Around every HTTP request: its id, its count, its line in the log, and what the client sees of a bug."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine_lib.errors import ServiceError
from proxy.errors import answer
from proxy.logs import Account
from proxy.metrics import Metrics

log = logging.getLogger(__name__)

LOGGED = ("/v1/audio/speech", "/v1/audio/speech/batch", "/v1/audio/voices")  # the routes whose requests get a line each


class RequestMiddleware:
    """Gives each HTTP request an id (`request.state.request_id`, x-request-id), counts and logs how it was answered.

    What the log's line says of a request to speak, its route puts into `request.state.account`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrived = time.monotonic()
        request_id = uuid.uuid4().hex
        account: Account = {"id": request_id}
        scope.setdefault("state", {}).update(request_id=request_id, account=account)
        status: int | None = None

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except ClientDisconnect:
            pass  # it left while it was sending its body; there is nobody to answer
        except Exception:
            if status is not None:
                raise  # the server breaks the connection, which is all that is left to say
            log.exception("request %s: a bug", request_id)
            await answer(ServiceError("The server failed on this request."))(scope, receive, send_marked)
        finally:
            route = scope.get("route")
            path = route.path if route else "unmatched"
            answered = "left" if status is None else str(status)
            self._metrics.requests.labels(path, answered).inc()
            if path in LOGGED and scope["method"] == "POST":
                seconds = round(time.monotonic() - arrived, 3)
                log.info("%s", path, extra={"fields": {**account, "status": answered, "seconds": seconds}})
