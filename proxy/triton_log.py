"""What of Triton's output a person should see: loading, trouble, and whatever our models print."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable

KEPT_LINES = 25

_TRITONS_OWN = re.compile(r"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (?P<source>[\w.]+):\d+\] ?(?P<text>.*)")
_LOADED = re.compile(r"\"?successfully loaded '(?P<model>\w+)'")
_LOADING = re.compile(r"\"?loading: (?P<model>\w+):")
# A model's exception, then a literal \n and where it was raised. TritonModelException carries our own words.
_FAILED = re.compile(
    r"\"?failed to load '(?P<model>\w+)' version \d+: (?:Internal: )?(?:TritonModelException: )?(?P<reason>.*?)"
    r"(?:\\n\\nAt:.*)?\"?$"
)
_TABLE = re.compile(r"[+|].*[+|]$")
# Said at every start without a GPU or its management library, at every stop, or again after a failure that was told.
_IDLE = (
    "CudaDriverHelper has not been initialized",
    "unable to create stream for",
    "Failed to initialize NVML",
    "Signal (15) received",
    "Exit timeout expired",  # a client that left in the middle keeps its model from unloading; we end the stubs
    "ERROR: Failed to create instance:",
    "Invalid argument: ensemble 'tts' depends on",
    "error: creating server: Internal - failed to load all models",
)


class TritonLog:
    """Takes Triton's lines one by one and says those worth saying; all of them if `verbose`."""

    def __init__(self, say: Callable[[str], None], *, verbose: bool) -> None:
        self.recent: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)  # the last, without tables
        self._say = say
        self._verbose = verbose
        self._failures: set[str] = set()  # of models to load, in words

    @property
    def explained(self) -> bool:
        """Whether it was said why Triton can't start."""
        return bool(self._failures)

    def take(self, line: str) -> None:
        """Look at one line of output."""
        if not _TABLE.match(line):
            self.recent.append(line)
        shown = self._worth_saying(line)
        if self._verbose:
            shown = line
        if shown:
            self._say(shown)

    def _worth_saying(self, line: str) -> str:
        """`line` in words for a person, or nothing."""
        if any(text in line for text in _IDLE) or _TABLE.match(line):
            return ""
        if (own := _TRITONS_OWN.match(line)) is None:
            return line  # our models print this
        text = own["text"]
        if loading := _LOADING.match(text):
            return f"Loading {loading['model']} ..."
        if loaded := _LOADED.match(text):
            return f"Loaded {loaded['model']}."
        if failed := _FAILED.match(text):
            if failed["reason"] in self._failures:
                return ""  # talker and codec fail on the same checkpoint
            self._failures.add(failed["reason"])
            return f"Loading {failed['model']} failed: {failed['reason']}"
        if own["source"] == "model.py" or own["level"] in "EF":
            return text.strip('"')
        return ""
