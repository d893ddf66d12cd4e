"""Run a command that ends when its parent does, and its process group with it, however either dies.

`python -I -S tether.py PARENT_PID COMMAND ...`, as a script by path so that it imports nothing of the package, asks the
kernel to kill this process when its parent dies, leaves a guard in the process group that it leads, and then becomes
COMMAND. A shim instead of a function run between fork and exec: that is unsafe with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import NoReturn

PR_SET_PDEATHSIG = 1
GUARD_PERIOD_S = 0.2


def main(parent: int, command: list[str]) -> None:
    """Become `command`, tied to the process `parent`. Raises OSError if the kernel or the command won't."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        sys.exit("The parent is gone already.")
    leader = os.getpid()
    if os.fork() == 0:
        guard(leader)
    os.execv(command[0], command)


def guard(leader: int) -> NoReturn:
    """Wait until this process's parent `leader` is gone, and kill what is left of its group, this process too.

    Triton's stubs notice by themselves that Triton was killed, but sometimes hang while they end, or are stopped.
    """
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a socket that COMMAND closes must be closed
    while os.getppid() == leader:
        time.sleep(GUARD_PERIOD_S)
    os.killpg(leader, signal.SIGKILL)  # the group's number isn't another's: this process is still in it
    sys.exit()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
