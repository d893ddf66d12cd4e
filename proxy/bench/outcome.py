"""What became of one request."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from proxy.bench.listening import Heard


class Failure(enum.StrEnum):
    """The ways to fail; there is no other."""

    UNREACHABLE = "unreachable"  # no connection
    OVERLOADED = "overloaded"  # 429, or the code overloaded
    NOT_READY = "not_ready"  # 503, or the code not_ready
    REFUSED = "refused"  # any other 3xx or 4xx, or a complaint about what was sent
    SERVER_ERROR = "server_error"  # any other 5xx, or the code generation_failed
    BROKEN = "broken"  # the connection ended in the middle
    TIMEOUT = "timeout"  # not through within the client's limit
    EMPTY = "empty"  # it ended well, without a sample
    MALFORMED = "malformed"  # what came isn't the sound that was asked for


class Failed(Exception):
    """A request failed; `detail` is for people."""

    def __init__(self, kind: Failure, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


@dataclass(frozen=True)
class Outcome:
    """One request's course. Seconds; `heard` counts from time zero, the first byte of the request's body."""

    number: int
    measured: bool
    due_s: float  # since the level's begin, by the plan
    lag_s: float  # from due to time zero: the client's own lateness
    total_s: float  # from time zero to the end of the response
    heard: Heard
    failure: Failure | None
    detail: str  # of the failure


def by_status(status: int) -> Failure:
    """The kind of failure that an HTTP status means."""
    if status == 429:
        return Failure.OVERLOADED
    if status == 503:
        return Failure.NOT_READY
    return Failure.SERVER_ERROR if status >= 500 else Failure.REFUSED


def by_code(code: str) -> Failure:
    """The kind of failure that an error's code means of ours means (engine_lib/errors.py)."""
    known = {
        "overloaded": Failure.OVERLOADED,
        "not_ready": Failure.NOT_READY,
        "generation_failed": Failure.SERVER_ERROR,
        "server_error": Failure.SERVER_ERROR,
    }
    return known.get(code, Failure.REFUSED)
