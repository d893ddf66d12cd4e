"""The proxy's process, which `serve` starts: the app on an inherited socket, until SIGTERM and its responses' end.

`python -m proxy.web DESCRIPTOR DRAIN_TIMEOUT_S`
"""

from __future__ import annotations

import socket
import sys

import uvicorn

from proxy.app import create_app
from proxy.settings import Settings


def main(descriptor: int, drain_timeout_s: float) -> None:
    """Serve on the listening socket `descriptor`. After SIGTERM running responses get `drain_timeout_s`."""
    config = uvicorn.Config(
        create_app(Settings.from_environment()),
        log_level="warning",
        timeout_graceful_shutdown=max(1, round(drain_timeout_s)),
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
