"""How many tokens a request has: asked of a policy server's own tokenizer and template, and never a row.

Owns the question to the server (``POST /tokenize``, by messages and tools) and what is said where it has no answer:
a number is never estimated, for a harness shortens its history by it.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.calls.asking import UNKNOWN_TO_IT
from forge.proxy.deps import Deps
from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import Dialect, Overrides
from forge.proxy.dialects.engine_errors import read_error
from forge.proxy.door.refusal import Refused
from forge.proxy.door.routes import Route
from forge.proxy.sessions.live import Live
from forge.proxy.upstreams.client import BrokeOff, NotBegun
from forge.proxy.upstreams.pool import Replica

PATH: Final = "/tokenize"
RENDERED: Final = ("messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")
"""The members of a chat request that its prompt is made of."""


@runtime_checkable
class Counts(Dialect, Protocol):
    """A dialect that has a way to ask for a count: with the request whose tokens are meant."""

    def counted(self, tokens: int) -> bytes:
        """The answer's body."""


class _Tokenized(msgspec.Struct):
    tokens: Raw = Raw(b"[]")
    count: int | None = None


async def count(deps: Deps, where: Route, body: bytes, live: Live | None) -> bytes:
    """The answer's body. Raises ``Refused`` and ``BadRequest``."""
    dialect = DIALECTS[where.dialect]
    if not isinstance(dialect, Counts):
        raise Refused(404, "unknown_path", f"{where.dialect} has no way to count tokens")
    replica = deps.pool.pick(live.replica if live else None)
    if replica is None:
        raise Refused(503, "policy_unavailable", "no policy server is up to count the tokens")
    asked = dialect.request(body, engine=replica.engine, overrides=Overrides(), call_id="", target=where.target)
    chat = splice.members(asked.body)
    question = splice.rebuild({name: chat[name] for name in RENDERED if name in chat})
    tokens = _read(await _ask(deps, replica, question))
    return dialect.counted(tokens)


async def _ask(deps: Deps, replica: Replica, question: bytes) -> bytes:
    try:
        reply = await deps.client.send("POST", replica.url + PATH, question)
    except (NotBegun, BrokeOff) as error:
        raise Refused(502, "upstream_broke_off", f"the tokens cannot be counted: {error}") from error
    try:
        answer = deps.client.redact(await reply.body(deps.config.limits.answer_bytes))
    finally:
        reply.close()
    if reply.status in (404, 405, 501):
        raise Refused(404, "not_supported", f"the policy server has no {PATH}, so its tokens cannot be counted")
    if reply.status in UNKNOWN_TO_IT:
        message = f"the policy server does not take the proxy's own key ({reply.status}); see --upstream-key-file"
        raise Refused(502, "upstream_unauthorized", message)
    if reply.status != 200:
        said = read_error(reply.status, answer).message
        raise Refused(max(reply.status, 400), "count_failed", f"the policy server cannot count the tokens: {said}")
    return answer


def _read(answer: bytes) -> int:
    try:
        said = msgspec.json.decode(answer, type=_Tokenized)
        ids: list[Any] = [] if said.count is not None else msgspec.json.decode(said.tokens, type=list[Any])
    except splice.UNREADABLE as error:
        raise Refused(502, "upstream_not_an_engine", f"{PATH} did not answer with tokens: {error}") from error
    return said.count if said.count is not None else len(ids)
