"""How the proxy's log looks: one line a record, as text for people or as JSON for machines. Knows no HTTP.

A record's own fields come with `extra={"fields": {...}}`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

Account = dict[str, Any]  # what is logged of one request: id, voice, format, characters, frames, ...


class TextFormatter(logging.Formatter):
    """`2026-12-02 12:00:00 INFO message key=value ...`; a value with spaces in it is quoted."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, without a traceback."""
        pairs = [f" {name}={_shown(value)}" for name, value in _fields(record).items()]
        return super().formatMessage(record) + "".join(pairs)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, message, the fields, and a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def configure(form: str) -> None:
    """Send all records to standard error in one of FORMATTERS: ours from INFO on, all others from WARNING on."""
    handler = logging.StreamHandler()
    handler.setFormatter(FORMATTERS[form]())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("proxy").setLevel(logging.INFO)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = record.__dict__.get("fields", {})
    return {name: value for name, value in fields.items() if value is not None}


def _shown(value: Any) -> str:
    text = str(value)
    return text if text.isascii() and text.isprintable() and not {*' "='} & {*text} and text else json.dumps(text)
