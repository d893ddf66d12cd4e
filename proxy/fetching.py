"""Fetch a sample from a host of the deployment's list. Off unless there is such a list.

Whoever names an address chooses whom this server talks to, so: only listed hosts, only public addresses, the address
that was checked is the one that is used (a name may change its address in between), no redirects, bounded size and
time.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import httpx

from engine_lib.errors import InvalidRequest
from proxy.errors import BodyTooLarge

LIMIT_S = 10.0
SCHEMES = ("http", "https")

# IPv4 behind a translator (RFC 6052), which may be the local network's own (RFC 8215).
TRANSLATED, TRANSLATED_AT_HOME = ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: Address) -> bool:
    """Whether an address is one of the internet's, wherever it is hidden inside another."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo and address.teredo[1])
        if address in TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address in TRANSLATED_AT_HOME or (inner and not is_public(inner)):
            return False
    return address.is_global and not address.is_multicast


class Fetcher:
    """Fetches files from `hosts`."""

    def __init__(
        self,
        hosts: tuple[str, ...],
        most: int,
        *,
        allowed: Callable[[Address], bool] = is_public,
        limit_s: float = LIMIT_S,
    ) -> None:
        """At most `most` bytes a file."""
        self._hosts = {host.lower().rstrip(".") for host in hosts}
        self._most = most
        self._allowed = allowed
        self._limit_s = limit_s

    async def fetch(self, url: str, param: str) -> bytes:
        """The file at `url`. Raises InvalidRequest that names `param`, or BodyTooLarge."""
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._fetch(url, param)
        except TimeoutError:
            raise InvalidRequest(f"'{param}' took longer than {self._limit_s:g} s to fetch.", param=param) from None
        except (httpx.HTTPError, OSError):
            raise InvalidRequest(f"'{param}' can't be fetched.", param=param) from None

    async def _fetch(self, url: str, param: str) -> bytes:
        target = self._checked(url, param)
        address = await self._resolve(target, param)
        named = target.host if target.port is None else f"{target.host}:{target.port}"
        async with (
            httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=self._limit_s) as client,
            client.stream(
                "GET",
                target.copy_with(host=str(address)),
                headers={"Host": named, "Accept-Encoding": "identity"},  # nothing that unpacks to more than it is
                extensions={"sni_hostname": target.host},
            ) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise InvalidRequest(f"'{param}' can't be fetched: its host answered otherwise.", param=param)
            data = bytearray()
            async for piece in answer.aiter_raw():
                data += piece
                if len(data) > self._most:
                    raise BodyTooLarge(f"'{param}' is over the limit of {self._most} bytes.", param=param)
            return bytes(data)

    def _checked(self, url: str, param: str) -> httpx.URL:
        try:
            target = httpx.URL(url)
        except httpx.InvalidURL:
            raise InvalidRequest(f"'{param}' is no address.", param=param) from None
        if target.scheme not in SCHEMES or target.userinfo or target.host.lower().rstrip(".") not in self._hosts:
            raise InvalidRequest(f"'{param}' names a host that nothing is fetched from; send the file.", param=param)
        return target

    async def _resolve(self, target: httpx.URL, param: str) -> Address:
        """An address of the host, of which every address must be allowed."""
        loop = asyncio.get_running_loop()
        port = target.port or (443 if target.scheme == "https" else 80)
        found = await loop.getaddrinfo(target.host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
        if not addresses or not all(map(self._allowed, addresses)):
            raise InvalidRequest(f"'{param}' names a host that nothing is fetched from; send the file.", param=param)
        return addresses[0]
