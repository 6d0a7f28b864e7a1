"""No proxy is its own policy server: a URL that leads to one of our own ports is refused before anything is asked."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from forge.storage.errors import BadInput


async def check_other(url: str, own_ports: Collection[int]) -> None:
    """``url`` as ``check_upstream`` gave it. Raises ``BadInput`` if it is an address of this machine with one of our
    ports."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    if port not in own_ports:
        return
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return  # it leads nowhere, which is said when it is waited for
    if any(_is_ours(str(address[0])) for _, _, _, _, address in found):
        raise BadInput(f"{url} is this proxy itself", "give the URL of a policy server")


def _is_ours(address: str) -> bool:
    """Whether this machine has the address: only then a socket can be bound to it."""
    plain = ipaddress.ip_address(address.partition("%")[0])
    if plain.is_loopback or plain.is_unspecified:
        return True
    with socket.socket(socket.AF_INET if plain.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
