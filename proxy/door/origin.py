"""Is a request from this machine? A browser's page says where it comes from, and which name it believes it talks to.

Programs send no Origin. A page of another origin, or of a name that was bent to this address (DNS rebinding), must
neither read here nor write into the record. The names under ``internal`` are those of container engines for their
host; nobody can own them in public DNS.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from forge.proxy.config import is_loopback
from forge.proxy.door.request import HeadLike

LOCAL_NAMES: Final = re.compile(r"(?:[a-z0-9-]+\.)*(?:localhost|internal)")


def known_host(request: HeadLike, bound: str) -> bool:
    """Whether the name that the client called is one of ours: anyone's where ``bound`` is no loopback address."""
    return _known(request.headers.get("Host", ""), bound)


@lru_cache(maxsize=256)
def _known(host: str, bound: str) -> bool:
    """Asked for every request, and nearly always of the same name."""
    if not is_loopback(bound):
        return True
    name = _name(f"//{host}")
    return name in ("", bound) or (name is not None and _local(name))


def known_origin(request: HeadLike) -> bool:
    """Whether no browser's page asks, or one of this machine."""
    origin = request.headers.get("Origin")
    return origin is None or _local(_name(origin) or "")


def from_here(request: web.BaseRequest) -> bool:
    """Both, for a server that knows its own address from the connection."""
    address = request.transport.get_extra_info("sockname") if request.transport is not None else None
    return known_origin(request) and known_host(request, address[0] if isinstance(address, tuple) else "localhost")


def _local(name: str) -> bool:
    return is_loopback(name) or LOCAL_NAMES.fullmatch(name) is not None


def _name(url: str) -> str | None:
    """The host of a URL; empty where it is empty, None where it is none."""
    try:
        parts = urlsplit(url)
        if parts.path or parts.query or parts.fragment or parts.username is not None or " " in url:
            return None
        parts.port  # noqa: B018  # raises on one that is no number
        return (parts.hostname or "").removesuffix(".")
    except ValueError:
        return None
