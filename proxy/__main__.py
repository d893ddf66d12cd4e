"""`python -m proxy`, which is `qwen3-tts-triton`. Ctrl-C ends it without a traceback, also while it still imports."""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # what shells call 128 + SIGINT


def main() -> int:
    """Run the command line; its exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # which a shell asks for what it starts in the background
        # An import holds nothing to give back, and what it makes of a KeyboardInterrupt is anyone's guess.
        signal.signal(signal.SIGINT, _end_now)
    from proxy import cli

    try:
        signal.signal(signal.SIGINT, before)
        return cli.main()
    except KeyboardInterrupt:
        _end_now()


def _end_now(*_: int | FrameType | None) -> NoReturn:
    """End with INTERRUPTED, whatever the interpreter would do.

    Once a KeyboardInterrupt has passed through an `exec` of text, such as a dataclass makes, `python -m` ends by SIGINT
    although somebody caught it (`unhandled_keyboard_interrupt` in CPython's pythonrun.c and main.c).
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: it was closed from the start
        with contextlib.suppress(BrokenPipeError):  # nobody reads it any more
            stream.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
