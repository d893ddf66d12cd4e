"""A child process with its whole process group: start, read, end. Knows nothing of Triton or HTTP.

Triton's Python stubs are children of Triton, and outlive it for seconds when it is killed. So a child leads a process
group of its own, `Child.end` kills that group, and `adopt_orphans` makes this process the parent of what is left, so
that it can wait until all of it is really gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
_LINE_END = re.compile(r"[\r\n]+")


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parent dies. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


class Child:
    """A running command that leads its own process group and dies with this process."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, on_line: Callable[[str], None] | None) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._on_line = on_line
        self._reader = asyncio.create_task(self._read())
        self.exited = asyncio.create_task(process.wait())  # its exit code, negative for a signal

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        on_line: Callable[[str], None] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> Child:
        """Start `command` (an absolute path first). With `on_line` its output comes here, else it shares ours."""
        captured = asyncio.subprocess.PIPE if on_line else None
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")), str(os.getpid()), *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=captured,
            stderr=asyncio.subprocess.STDOUT if on_line else None,
            env=dict(environment),
            pass_fds=pass_fds,
            start_new_session=True,  # the terminal's Ctrl-C reaches us alone; we end the others in order
        )  # fmt: skip
        return cls(name, process, on_line)

    async def _read(self) -> None:
        """Hand on what the child prints, line by line; a progress bar's carriage return ends a line too."""
        if self._process.stdout is None:
            return
        rest = ""
        while data := await self._process.stdout.read(65_536):
            *lines, rest = _LINE_END.split(rest + data.decode(errors="replace"))
            for line in lines:
                self._take(line)
        self._take(rest)

    def _take(self, line: str) -> None:
        if line and self._on_line:
            self._on_line(line)

    def how_it_ended(self, *, while_starting: bool) -> str:
        """In words, once it has exited."""
        status = self.exited.result()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"
        return f"{self.name} {how}{' while starting' if while_starting else ''}."

    @property
    def was_killed(self) -> bool:
        """Whether a signal has ended it."""
        return self.exited.done() and self.exited.result() < 0

    async def end(self, grace_s: float) -> bool:
        """SIGTERM, and SIGKILL to the whole group after `grace_s`. False if the grace didn't suffice."""
        in_time = True
        if not self.exited.done():
            self._process.terminate()
            finished, _ = await asyncio.wait({self.exited}, timeout=grace_s)
            in_time = bool(finished)
        await self.kill()
        return in_time

    async def kill(self) -> None:
        """SIGKILL to every process of the group, and wait until none is left."""
        with contextlib.suppress(ProcessLookupError):  # none is left already
            os.killpg(self.pid, signal.SIGKILL)
        await self.exited
        await asyncio.to_thread(_reap_group, self.pid)
        await self._reader


def _reap_group(group: int) -> None:
    """Wait for each killed process of `group` that became ours by adoption."""
    with contextlib.suppress(ChildProcessError):  # none is left
        while True:
            os.waitpid(-group, 0)
