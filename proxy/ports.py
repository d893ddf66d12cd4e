"""Take the ports a server will listen on before anything slow starts, so that a taken one is known at once."""

from __future__ import annotations

import socket

from engine_lib.errors import ConfigurationError


class PortTaken(ConfigurationError):
    """Someone listens there already."""


def reserve(host: str, port: int, purpose: str) -> socket.socket:
    """A bound socket on `host`:`port`; port 0 is any free one. Raises PortTaken or ConfigurationError naming it.

    Not listening, and with SO_REUSEADDR: so another process, Triton, can listen on the same address while this socket
    keeps the port from being handed to anyone who asks for a free one.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError):
        raise ConfigurationError(f"{host!r} is no address to listen on ({purpose}).", param="host") from None
    reserved = socket.socket(family, kind, protocol)
    try:
        # For a free port the option comes after bind: with it, the kernel may pick a port that someone reserved so.
        if port:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        reserved.close()
        raise PortTaken(f"Can't listen on {host} port {port} ({purpose}): {error.strerror}.", param="port") from None
    return reserved


def number(reserved: socket.socket) -> int:
    """The port of a bound socket."""
    port: int = reserved.getsockname()[1]
    return port


def url(reserved: socket.socket) -> str:
    """The HTTP address of a bound socket, as a client on this machine can use it."""
    host, port = reserved.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
