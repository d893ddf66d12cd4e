"""Fetching samples by address: only from the list, only from the internet, never more than allowed. Real sockets."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from engine_lib.errors import InvalidRequest
from proxy.errors import BodyTooLarge
from proxy.fetching import Address, Fetcher, is_public

SOUND = b"sound" * 100


class Host(BaseHTTPRequestHandler):
    """Answers by path."""

    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(f"{self.headers['Host']} {self.path}")
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/sound")
            self.end_headers()
            return
        if self.path == "/never":
            threading.Event().wait(5)
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        self.wfile.write(SOUND if self.path == "/sound" else bytes(100_000))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def host() -> Iterator[str]:
    Host.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def anyone(address: Address) -> bool:
    return True


async def test_a_listed_host_is_asked_by_its_name(host: str) -> None:
    fetcher = Fetcher(("localhost",), 1000, allowed=anyone)
    assert await fetcher.fetch(f"{host}/sound", "ref_audio") == SOUND
    assert Host.asked == [f"{host.removeprefix('http://')} /sound"]


async def refused(fetcher: Fetcher, url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await fetcher.fetch(url, "ref_audio")
    assert caught.value.param == "ref_audio"


async def test_without_a_list_nothing_is_asked(host: str) -> None:
    await refused(Fetcher((), 1000, allowed=anyone), f"{host}/sound")
    assert Host.asked == []


async def test_a_listed_host_at_a_private_address_is_not_asked(host: str) -> None:
    await refused(Fetcher(("localhost",), 1000), f"{host}/sound")
    assert Host.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost.evil.example/x",
        "http://evil.example/localhost",
        "http://localhost@evil.example/x",
        "http://user:word@localhost/x",
        "http://127.0.0.1/x",
        "http://[::1]/x",
        "http://2130706433/x",
        "ftp://localhost/x",
        "file://localhost/etc/passwd",
        "gopher://localhost/x",
        "http:///x",
        "http://\x00/",
    ],
)
async def test_other_hosts_and_schemes_are_refused(url: str) -> None:
    await refused(Fetcher(("localhost",), 1000, allowed=anyone), url)


async def test_redirects_are_not_followed(host: str) -> None:
    await refused(Fetcher(("localhost",), 1000, allowed=anyone), f"{host}/moved")
    assert len(Host.asked) == 1


async def test_what_is_missing_or_unreachable_is_refused(host: str) -> None:
    fetcher = Fetcher(("localhost", "no.such.host.invalid"), 1000, allowed=anyone)
    await refused(fetcher, f"{host}/missing")
    await refused(fetcher, "http://localhost:9/sound")
    await refused(fetcher, "http://no.such.host.invalid/sound")


async def test_more_than_allowed_is_not_read(host: str) -> None:
    with pytest.raises(BodyTooLarge):
        await Fetcher(("localhost",), 1000, allowed=anyone).fetch(f"{host}/large", "ref_audio")


async def test_a_host_that_is_slow_is_given_up(host: str) -> None:
    await refused(Fetcher(("localhost",), 1000, allowed=anyone, limit_s=0.05), f"{host}/never")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "198.18.0.1", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
        "::ffff:10.0.0.1", "2002:7f00:1::", "2002:a9fe:a9fe::", "64:ff9b:1::1",
        "64:ff9b::10.0.0.1", "64:ff9b::7f00:1",
    ],
)  # fmt: skip
def test_addresses_inside_are_told(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are_told(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
