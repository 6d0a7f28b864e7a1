"""The control plane as an async Python client: what ``forge run`` and a trainer that owns its loop use.

``async with ControlClient(url, token) as control: ticket = await control.open_session(task_id="t")``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import aiohttp
import msgspec

from forge.proxy.control import wire
from forge.proxy.upstreams.plan import Adapter
from forge.proxy.upstreams.publish import Published
from forge.storage.errors import BadInput, ForgeError, Unavailable
from forge.storage.records import Call, Sample, Selection, Session

TIMEOUT_S: Final = 60.0
CLOSE_S: Final = 600.0
"""Reading a long session back takes a while, and its grace is waited for."""
PUBLISH_S: Final = 3600.0


class NoCapacity(Unavailable):
    """The proxy has no room for another session now."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a harness needs to run in a session."""

    session_id: str
    base_url: str
    """Ends with ``/v1``; adapters cut that off where a harness wants it so."""
    api_key: str
    policy_version: int | None


@dataclass(frozen=True, slots=True)
class CallSummary:
    calls: int
    statuses: Mapping[str, int]
    untrainable: Mapping[str, int]
    """Reason to rows."""
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Closed:
    session: Session
    samples: list[Sample]
    calls: CallSummary


class ControlClient:
    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http: aiohttp.ClientSession | None = None

    @classmethod
    def from_token_file(cls, url: str, path: Path) -> Self:
        try:
            return cls(url, path.read_text().strip())
        except OSError as error:
            raise BadInput(
                f"cannot read the control token {path}: {error.strerror}", "pass the proxy's token file"
            ) from error

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def open_session(self, **spec: Any) -> Ticket:
        """``spec``: fields of ``forge.proxy.sessions.spec.SessionSpec``. Raises ``NoCapacity`` if the proxy is full."""
        return Ticket(**await self._ask("POST", "/sessions", spec))

    async def session(self, session_id: str) -> Session:
        return _session((await self._ask("GET", f"/sessions/{session_id}"))["session"])

    async def close_session(self, session_id: str, **outcome: Any) -> Closed:
        """``outcome``: fields of ``forge.proxy.sessions.spec.Outcome``; ``reward=None`` declares that there is none."""
        answer = await self._ask("POST", f"/sessions/{session_id}/close", outcome, timeout_s=CLOSE_S)
        samples = [wire.sample(values) for values in answer["samples"]]
        return Closed(_session(answer["session"]), samples, CallSummary(**answer["calls"]))

    async def set_reward(
        self,
        session_id: str,
        reward: float | None,
        *,
        components: Mapping[str, float] | None = None,
        author: str | None = None,
    ) -> Session:
        body = {"reward": reward, "reward_components": components, "reward_author": author}
        return _session((await self._ask("PUT", f"/sessions/{session_id}/reward", body))["session"])

    async def select(self, session_id: str, selection: Selection | None) -> Session:
        """Says of a closed session that it was not chosen for its group; None takes that back."""
        return _session(
            (await self._ask("PUT", f"/sessions/{session_id}/selection", {"selection": selection}))["session"]
        )

    async def media(self, sha256: str) -> bytes:
        """What stands behind a ``forge-media:`` reference."""
        status, body = await self._send("GET", f"/media/{sha256}")
        if status != 200:
            raise BadInput(f"{self._url} has no media {sha256}", "see the column media of its calls")
        return body

    async def calls(self, session_id: str) -> list[Call]:
        answer = await self._ask("GET", f"/sessions/{session_id}/calls", timeout_s=CLOSE_S)
        return [wire.call(values) for values in answer["calls"]]

    async def finished(self, cursor: str = "", wait_s: float = 0.0) -> tuple[list[Session], str]:
        """Sessions closed after ``cursor``, and the next cursor; waits up to ``wait_s`` for one."""
        answer = await self._ask("GET", f"/finished?cursor={cursor}&wait={wait_s}", timeout_s=wait_s + TIMEOUT_S)
        return [_session(values) for values in answer["sessions"]], answer["cursor"]

    async def publish(
        self,
        *,
        version: int,
        path: Path | str | None = None,
        adapter: Adapter | None = None,
        digest: str | None = None,
        lineage: str | None = None,
        mode: Literal["wait", "abort", "keep"] = "wait",
        rolling: bool = False,
        by_trainer: bool = False,
    ) -> Published:
        body = {
            "version": version,
            "path": str(path) if path is not None else None,
            "adapter": msgspec.to_builtins(adapter),
            "digest": digest,
            "lineage": lineage,
            "mode": mode,
            "rolling": rolling,
            "by_trainer": by_trainer,
        }
        answer = await self._ask("POST", "/policy/publish", body, timeout_s=PUBLISH_S)
        return msgspec.convert(answer, Published)

    async def pause(self) -> None:
        await self._ask("POST", "/pause", {})

    async def resume(self) -> None:
        await self._ask("POST", "/resume", {})

    async def upstreams(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._ask("GET", "/upstreams"))["upstreams"]
        return found

    async def add_upstream(self, url: str, *, wait_s: float = 30.0) -> dict[str, Any]:
        return await self._ask("POST", "/upstreams", {"url": url, "wait": wait_s}, timeout_s=wait_s + TIMEOUT_S)

    async def drain_upstream(self, url: str) -> dict[str, Any]:
        return await self._ask("POST", "/upstreams/drain", {"url": url})

    async def remove_upstream(self, url: str, *, drain_s: float = 0.0) -> dict[str, Any]:
        return await self._ask("DELETE", "/upstreams", {"url": url, "drain": drain_s}, timeout_s=drain_s + TIMEOUT_S)

    async def capacity(self) -> dict[str, int]:
        return await self._ask("GET", "/capacity")

    async def status(self) -> dict[str, Any]:
        """What ``forge top`` shows: sessions, speeds, lag, replicas."""
        return await self._ask("GET", "/status")

    async def health(self) -> bool:
        """The proxy answers."""
        try:
            return (await self._ask("GET", "/healthz")).get("status") == "ok"
        except Unavailable:
            return False

    async def base_url(self) -> str:
        """Of the data plane, with ``/v1``."""
        return str((await self._ask("GET", "/healthz"))["base_url"])

    async def ready(self) -> bool:
        """It serves calls now."""
        try:
            return bool((await self._ask("GET", "/readyz")).get("ready"))
        except Unavailable:
            return False

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        status, text = await self._send(method, path, body, timeout_s=timeout_s)
        try:
            found = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise Unavailable(f"{self._url} is no control plane of forge", "check the URL and port") from error
        if status >= 400 and "error" in found:
            raise _problem(status, found["error"])
        return found

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> tuple[int, bytes]:
        if self._http is None:
            raise RuntimeError("use ControlClient as an async context manager")
        data = msgspec.json.encode(body) if body is not None else None
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._http.request(method, self._url + path, data=data, timeout=timeout) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(
                f"the control plane {self._url} does not answer: {why}", "is forge proxy running?"
            ) from error


def _session(values: Mapping[str, Any]) -> Session:
    return msgspec.convert(values, Session)


def _problem(status: int, error: Mapping[str, str]) -> ForgeError:
    message, hint = error.get("message", ""), error.get("hint", "")
    if status == 429:
        return NoCapacity(message, hint)
    if status >= 500:
        return Unavailable(message, hint)
    if status == 401:
        return BadInput(message, "it is in the file control.token in the data directory of that proxy")
    return BadInput(message, hint or "see the control routes in the docs")
