"""A request at the data plane's door: its head, and its body as that comes.

Owns how a target and its headers are read; the bytes are read by ``head`` and ``chunks``, and put here by the
connection. The one non-obvious fact: a request is served as soon as its head is whole, so whoever wants the body
waits for ``arrived``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from forge.proxy.door.outlet import Outlet
    from forge.proxy.door.routes import Route

T = TypeVar("T")
HTTP_11: Final = (1, 1)
HTTP_10: Final = (1, 0)


class HeadLike(Protocol):
    """What both planes look at of a head, whoever has read it."""

    @property
    def method(self) -> str: ...

    @property
    def version(self) -> tuple[int, int]: ...

    @property
    def headers(self) -> Mapping[str, str]: ...


class Headers(Mapping[str, str]):
    """By name, of any case; where a name came more than once its first value counts, and ``getall`` gives all."""

    __slots__ = ("_first", "_later")

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._later: list[tuple[str, str]] = []

    def add(self, name: str, value: str) -> bool:
        """``name`` in lower case. False: it was there already."""
        if name in self._first:
            self._later.append((name, value))
            return False
        self._first[name] = value
        return True

    def take(self, name: str) -> str | None:
        """The value of one that came once, which is no more among them. ``name`` in lower case."""
        return self._first.pop(name, None)

    def __getitem__(self, name: str) -> str:
        return self._first[name.lower()]

    @overload
    def get(self, key: str, /) -> str | None: ...

    @overload
    def get(self, key: str, /, default: str | T) -> str | T: ...

    def get(self, key: str, /, default: Any = None) -> Any:
        return self._first.get(key.lower(), default)

    def fields(self) -> int:
        """How many there are, each as often as it came."""
        return len(self._first) + len(self._later)

    def getall(self, name: str) -> list[str]:
        name = name.lower()
        found = [self._first[name]] if name in self._first else []
        return found + [value for other, value in self._later if other == name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._first

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)


class Head:
    """A request's head but for the length that it says: read once for all requests that begin so. And what those who
    looked at it found."""

    __slots__ = (
        "chunked",
        "headers",
        "keep_alive",
        "key",
        "method",
        "path",
        "plain",
        "query_string",
        "stored",
        "version",
        "where",
    )

    def __init__(
        self, method: str, target: tuple[str, str], version: tuple[int, int], headers: Headers, *, keep_alive: bool
    ) -> None:
        self.method = method
        self.path, self.query_string = target
        self.version = version
        self.headers = headers
        self.keep_alive = keep_alive
        self.chunked = "transfer-encoding" in headers
        self.plain = "content-encoding" not in headers and "expect" not in headers
        """Its body is what follows, as it comes."""
        self.key: str | None = None
        """Of a session, empty where it has none; None: nobody has looked."""
        self.where: Route | None = None
        """Of a call that may pass the door, as far as its head goes."""
        self.stored: dict[str, str] | None = None
        """The headers that a row keeps."""


class Request:
    """``outlet`` is the way back; ``length`` is 0 where no length was said."""

    __slots__ = (
        "_pieces",
        "_waiter",
        "broken",
        "complete",
        "head",
        "headers",
        "length",
        "limit",
        "outlet",
        "path",
        "size",
        "transport",
    )
    outlet: Outlet
    transport: asyncio.Transport

    def __init__(self, head: Head, length: int) -> None:
        self.head = head
        self.headers = head.headers
        self.path = head.path
        self.length = length
        self.limit = 0
        """Bytes of the body after which no more are kept."""
        self.size = 0
        """Of the body, as far as it came."""
        self.complete = False
        self.broken = False
        """What came is no body; where it ends cannot be told."""
        self._pieces: list[bytes | memoryview] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def method(self) -> str:
        return self.head.method

    @property
    def version(self) -> tuple[int, int]:
        return self.head.version

    @property
    def host(self) -> str:
        return self.headers.get("host", "")

    @property
    def remote(self) -> str | None:
        """The client's address; None on a unix socket."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else None

    def query(self) -> dict[str, list[str]]:
        return parse_qs(self.head.query_string, keep_blank_values=True) if self.head.query_string else {}

    # The body, for who serves

    @property
    def too_large(self) -> bool:
        return max(self.size, self.length) > self.limit

    async def arrived(self) -> None:
        """Until the body is whole, is broken, or is too large."""
        if self.complete or self.broken or self.too_large:
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """The body, once."""
        pieces, self._pieces = self._pieces, []
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    # The body, for the connection

    def feed(self, piece: bytes | memoryview) -> None:
        self.size += len(piece)
        if self.size <= self.limit:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
            self._wake()

    def come(self, body: bytes) -> None:
        """All of it at once."""
        self.size, self._pieces = len(body), [body]
        self.finish()

    def finish(self) -> None:
        self.complete = True
        self._wake()

    def spoil(self) -> None:
        self.broken = True
        self._wake()

    def refuse_body(self) -> None:
        """Nobody wants the rest: it is counted, and not kept."""
        self.limit = -1
        self._pieces.clear()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@lru_cache(maxsize=1024)
def split_target(method: str, target: str) -> tuple[str, str]:
    """Path and query as they came; of an absolute URL its own, whatever host it names. Raises ``ValueError`` on what is
    neither."""
    if target.startswith("/") or method == "CONNECT" or (method, target) == ("OPTIONS", "*"):
        path, _, query = target.partition("#")[0].partition("?")
        return path, query
    parts = urlsplit(target)
    if not parts.scheme or not parts.hostname or (parts.port is not None and parts.port < 0):
        raise ValueError("not a request target")
    return parts.path or "/", parts.query
