"""The proxy's configuration and its named limits.

Everything is decided here before a socket is opened; nothing a data-plane request says changes it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, urlsplit

from forge.proxy.logs import LogFormat
from forge.proxy.sessions.spec import HistoryMode
from forge.storage.errors import BadInput
from forge.storage.names import check_name

TOKEN_FILE: Final = "control.token"
WRITERS_MAX: Final = 64
"""Journals of one data directory: what the order of calls has room for."""


class Record(StrEnum):
    STRICT = "strict"
    """Refuse to start against an engine whose calls could not train."""
    BEST_EFFORT = "best-effort"


class Durability(StrEnum):
    PROCESS = "process"
    """A reply waits for the write: it survives ``kill -9`` of the proxy."""
    DISK = "disk"
    """It waits for the disk flush too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Every wait and size, by name."""

    body_bytes: int = 64 << 20
    """Request body, as sent and when decompressed."""
    head_s: float = 30.0
    """For a request's headers to arrive, from their first byte."""
    body_s: float = 120.0
    """For a request body to arrive."""
    idle_s: float = 3600.0
    """A client's connection on which nothing is asked: longer than any reverse proxy before us keeps one."""
    answer_bytes: int = 256 << 20
    """An engine's whole body."""
    error_body_bytes: int = 1 << 20
    """Of an engine's error answer."""
    connect_s: float = 10.0
    silence_s: float = 900.0
    """Longest silence of an engine within a call: a long prefill is silent."""
    end_s: float = 5.0
    """From the answer's end mark to the end of the engine's body."""
    write_s: float = 300.0
    """For a client to take one piece."""
    keepalive_s: float = 10.0
    hold_s: float = 900.0
    """A call waits this long for a publication to end."""
    attempts: int = 3
    backoff_s: float = 0.25
    """Doubles with each attempt."""
    retry_after_s: float = 5.0
    """Longest wait we take over from an engine's Retry-After; longer ones are the client's."""
    data_frame_bytes: int = 256 << 10
    """Engine bytes that may wait in memory when no piece needs them in the journal."""
    cut_s: float = 5.0
    cut_bytes: int = 32 << 20
    sessions: int = 4096
    """Open sessions; more are refused with 429."""
    closed_sessions: int = 4096
    """Closed sessions in memory; older ones are read back when someone asks for them."""
    calls: int = 4096
    """Calls in flight."""
    implicit_idle_s: float = 1800.0
    start_s: float = 120.0
    """For the policy server to come up when the proxy starts."""
    health_s: float = 0.5
    """Between looks at a policy server that is down."""
    drain_s: float = 30.0
    """For running calls at SIGTERM."""
    decoder_s: float = 60.0
    """For the decoder to catch up at SIGTERM."""
    vitals_s: float = 2.0
    """Between looks at the decoder's progress."""
    disk_s: float = 10.0
    """Between measurements of the data directory; a large one is measured less often."""
    decoder_lag_s: float = 300.0
    """A decoder that is further behind is warned of: the journal grows meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    data: Path
    run_id: str
    writer: int = 0
    """Its journal in the data directory. Proxies that share one have each their own; one of their decoders works for
    all while the others stand by."""
    workers: int = 1
    """Processes that serve calls behind one port. Each has a journal of its own: ``writer`` and those after it."""
    upstreams: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8100
    public_url: str | None = None
    """Where harnesses reach the data plane, if not at ``host`` and ``port``: a name in a network of containers."""
    control_host: str = "127.0.0.1"
    control_port: int = 8101
    control_token_file: Path | None = None
    """Default: ``DATA/control.token``, made if it is not there."""
    upstream_key_file: Path | None = None
    engine: str = "auto"
    record: Record = Record.STRICT
    durability: Durability = Durability.PROCESS
    model: str | None = None
    """Name sent to the engine; default: the first one it serves."""
    sampling: dict[str, Any] | None = None
    history: HistoryMode = HistoryMode.AS_SENT
    """Of sessions that say nothing of it themselves."""
    implicit: bool = True
    end_sessions: bool = False
    """The run ends with this proxy: nobody comes back for its open sessions."""
    decoder: bool = True
    journal_keep: str | None = None
    disk_budget: int | None = None
    """Bytes of the data directory; reached, no new sessions are taken."""
    catalog: str | None = None
    """URL of the SQL index; None: a file beside the data."""
    log_format: LogFormat = LogFormat.TEXT
    """Of the decoder's process; who starts the proxy sets its own."""
    ready_file: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_name("the run", self.run_id)
        if not 0 <= self.writer < WRITERS_MAX:
            raise BadInput(f"there is no writer {self.writer}", f"give a number from 0 to {WRITERS_MAX - 1}")
        if self.workers < 1 or self.writer + self.workers > WRITERS_MAX:
            most = f"give a number from 1 to {WRITERS_MAX - self.writer}: each has a journal of its own"
            raise BadInput(f"there cannot be {self.workers} workers from writer {self.writer} on", most)
        for url in self.upstreams:
            check_upstream(url)
        if self.public_url is not None:
            check_public(self.public_url)
        if not is_loopback(self.control_host) and self.control_token_file is None:
            raise BadInput(
                f"the control plane may not listen on {self.control_host} without a token file of its own",
                "pass --control-token-file FILE, or leave --control-host at 127.0.0.1",
            )

    @property
    def implicit_allowed(self) -> bool:
        """Calls without a key of ours make sessions only where no other machine can reach us."""
        return self.implicit and is_loopback(self.host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_public(url: str) -> str:
    """``url`` without a trailing slash or ``/v1``; raises ``BadInput`` on what no harness could be pointed at."""
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise BadInput(f"not a URL for harnesses: {url[:200]!r}", "give one like http://proxy:8100")
    if parts.username or parts.query or parts.fragment:
        raise BadInput(f"not a URL for harnesses: {url!r}", "give one like http://proxy:8100")
    return url.rstrip("/").removesuffix("/v1")


UNIX: Final = "http+unix"
"""Of URLs whose host is the path of a unix socket, each slash of it written as ``%2F``; ``unix:PATH`` is one too."""


def check_upstream(url: str) -> str:
    """``url`` without a trailing slash or ``/v1``; raises ``BadInput`` on what cannot be a policy server."""
    if url.startswith("unix:/"):
        url = f"{UNIX}://{quote(url.removeprefix('unix:'), safe='')}"
    parts = _split(url)
    known = parts is not None and parts.scheme in ("http", "https", UNIX)
    if parts is None or not known or not parts.hostname or not url.isprintable():
        raise BadInput(f"not a policy server's URL: {url[:200]!r}", "give one like http://127.0.0.1:8000")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadInput(
            f"the URL of policy server {parts.hostname} may hold no user, query or fragment",
            "put the server's key in a file and pass --upstream-key-file FILE",
        )
    return url.rstrip("/").removesuffix("/v1")


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises on one that is none
    except ValueError:
        return None
    return parts
