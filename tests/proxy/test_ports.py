"""Laws of reserved ports: another process may listen there, and nobody gets the same one by asking for a free one."""

from __future__ import annotations

import socket

import pytest

from proxy import ports


def test_someone_else_can_listen_on_a_reserved_port() -> None:
    with ports.reserve("127.0.0.1", 0, "a test") as reserved, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", ports.number(reserved)))
        other.listen()
        with socket.create_connection(("127.0.0.1", ports.number(reserved)), timeout=5):
            pass


def test_free_ports_are_all_different() -> None:
    reserved = [ports.reserve("127.0.0.1", 0, "a test") for _ in range(200)]
    try:
        assert len({ports.number(one) for one in reserved}) == 200
    finally:
        for one in reserved:
            one.close()


def test_a_port_that_someone_listens_on_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ports.PortTaken, match=rf"127\.0\.0\.1 port {port} \(a test\)"):
            ports.reserve("127.0.0.1", port, "a test")
