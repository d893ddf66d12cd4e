"""What of Triton's output a person should see: loading, trouble, and whatever our models print."""

from __future__ import annotations

import re
from collections.abc import Callable

_TRITONS_OWN = re.compile(r"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (?P<source>[\w.]+):\d+\] ?(?P<text>.*)")
_LOADED = re.compile(r"\"?successfully loaded '(?P<model>\w+)'")
_LOADING = re.compile(r"\"?loading: (?P<model>\w+):")
_TABLE = re.compile(r"[+|].*[+|]$")
# Said at every start without a GPU or its management library, and at every stop. It means nothing to us.
_IDLE = (
    "Signal (15) received",
    "CudaDriverHelper has not been initialized",
    "unable to create stream for",
    "Failed to initialize NVML",
)


class TritonLog:
    """Takes Triton's lines one by one and says those worth saying; all of them if `verbose`."""

    def __init__(self, say: Callable[[str], None], *, verbose: bool) -> None:
        self._say = say
        self._verbose = verbose

    def take(self, line: str) -> None:
        """Look at one line of output."""
        shown = line if self._verbose else _worth_saying(line)
        if shown:
            self._say(shown)


def _worth_saying(line: str) -> str:
    """`line` in words for a person, or nothing."""
    if any(text in line for text in _IDLE) or _TABLE.match(line):
        return ""
    if (own := _TRITONS_OWN.match(line)) is None:
        return line  # our models print this
    if loading := _LOADING.match(own["text"]):
        return f"Loading {loading['model']} ..."
    if loaded := _LOADED.match(own["text"]):
        return f"Loaded {loaded['model']}."
    if own["source"] == "model.py" or own["level"] in "EF":
        return own["text"].strip('"')
    return ""
