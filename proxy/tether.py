"""Run a command that ends when its parent does. Started as a script by path, so it imports nothing of the package.

`python -I -S tether.py PARENT_PID COMMAND ...` asks the kernel to kill this process when its parent dies, however it
dies, and then becomes COMMAND. A shim instead of a function run between fork and exec: that is unsafe with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Become `command`, tied to the process `parent`. Raises OSError if the kernel or the command won't."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        sys.exit("The parent is gone already.")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
