"""The exception tree, and how an error crosses Triton as text.

ServiceError                what a client or an operator is told; has a stable code
├── InvalidRequest          the request is wrong; names the field
├── NotFound                the model or stream that the request names isn't here
├── Overloaded              the waiting queue is full; try again later
├── NotReady                not serving (yet, or any more)
├── GenerationFailed        our fault, midway or before the first sound
└── ConfigurationError      a setting, profile or checkpoint is wrong; nothing is served

Triton carries an error as one line of text, so `ServiceError.to_wire` writes message, code and field into it and
`from_wire` reads them back on the other side.
"""

from __future__ import annotations

import re


class ServiceError(Exception):
    """An error with a stable `code`, a `message` fit for a client and, where one is at fault, the field `param`."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def to_wire(self) -> str:
        """The one line that a Triton error carries: `message [code]` or `message [code: param]`."""
        where = f"{self.code}: {self.param}" if self.param else self.code
        return f"{self.message} [{where}]"


class InvalidRequest(ServiceError):
    """The request is wrong; `param` names the field."""

    code = "invalid_value"


class NotFound(ServiceError):
    """What the request names isn't here."""

    code = "not_found"


class Overloaded(ServiceError):
    """The waiting queue is full; the same request may succeed later."""

    code = "overloaded"


class NotReady(ServiceError):
    """Not serving yet, or not any more."""

    code = "not_ready"


class GenerationFailed(ServiceError):
    """Our fault: the engine failed on this stream."""

    code = "generation_failed"


class ConfigurationError(ServiceError):
    """A setting, profile or checkpoint is wrong; nothing is served until it's mended."""

    code = "configuration_error"


# Codes that a constructor overrides still belong to a class, so that status codes follow from the class alone.
CODES: dict[str, type[ServiceError]] = {
    "invalid_value": InvalidRequest,
    "invalid_text": InvalidRequest,
    "empty_input": InvalidRequest,
    "input_too_large": InvalidRequest,
    "invalid_sequence": InvalidRequest,
    "too_many_input_events": InvalidRequest,
    "input_timeout": InvalidRequest,
    "not_found": NotFound,
    "model_not_found": NotFound,
    "overloaded": Overloaded,
    "not_ready": NotReady,
    "generation_failed": GenerationFailed,
    "configuration_error": ConfigurationError,
}

_WIRE = re.compile(r"(?:in ensemble '[^']*', )?(?P<message>.*) \[(?P<code>\w+)(?:: (?P<param>\w+))?\]\s*\Z", re.DOTALL)


_UNLOADED = re.compile(r"Request for unknown model: '(?P<model>\w+)'")


def not_loaded(model: str) -> NotReady:
    """A model was unloaded, or is still being loaded."""
    return NotReady(f"The model '{model}' isn't loaded.")


def from_wire(text: str) -> ServiceError:
    """The error that `to_wire` wrote, or NotReady for a model that Triton hasn't loaded.

    Any other text of Triton's becomes GenerationFailed without that text.
    """
    if unloaded := _UNLOADED.search(text):
        return not_loaded(unloaded["model"])
    match = _WIRE.match(text)
    if match is None or match["code"] not in CODES:
        return GenerationFailed("The speech engine failed on this request.")
    return CODES[match["code"]](match["message"], param=match["param"], code=match["code"])
