"""The raw completions wire format, as a byte lane beside chat's: the harness's own prompt, no template.

Owns what differs from chat: the engine's route, how many choices there will be (each prompt of a list has its own,
each a row with its own prompt ids), and the limit of tokens, which here has a small default instead of all that fits.
The one non-obvious fact: so a limit is never taken out, and one that does not fit beside the prompt is the engine's
to refuse, as without us.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from forge.proxy import splice
from forge.proxy.dialects.asked import read_object, wants_stream
from forge.proxy.dialects.base import COMPLETIONS_PATH, NO_TARGET, Outgoing, Overrides, Target
from forge.proxy.dialects.chat import Chat, prepare
from forge.proxy.dialects.overlay import LIMITS
from forge.proxy.engines.base import Engine
from forge.proxy.sessions.turns import Request

DEFAULT_LIMIT: Final = b"16"
"""Tokens of an answer to a request that names no limit."""
_prompts: Final = msgspec.json.Decoder(list[Raw])


class Completions(Chat):
    name: str = "completions"

    def request(
        self, body: Request, *, engine: Engine, overrides: Overrides, call_id: str, target: Target = NO_TARGET
    ) -> Outgoing:
        asked = read_object(body)
        given = asked.members
        outgoing = prepare(
            asked,
            engine=engine,
            overrides=_limits(given, replace(overrides, context_len=None, unfit_limit=None)),
            stream=wants_stream(given),
        )
        return replace(outgoing, choices=outgoing.choices * _prompt_count(given), path=COMPLETIONS_PATH)


def _limits(asked: Mapping[str, Raw], overrides: Overrides) -> Overrides:
    """A cap that is above the default does not raise it."""
    if bytes(asked.get("max_tokens", b"null")) != b"null":
        return overrides
    run = overrides.sampling or {}
    caps = [cap for cap in (overrides.max_tokens_cap, *(run.get(limit) for limit in LIMITS)) if cap is not None]
    if min(caps, default=0) < int(DEFAULT_LIMIT):
        return overrides
    sampling = {name: value for name, value in run.items() if name not in LIMITS}
    return replace(overrides, max_tokens_cap=None, sampling=None if overrides.sampling is None else sampling)


def _prompt_count(asked: Mapping[str, Raw]) -> int:
    """What the engine would refuse is left to it."""
    prompt = bytes(asked.get("prompt", b""))
    try:
        entries = _prompts.decode(prompt) if prompt.startswith(b"[") else []
    except splice.UNREADABLE:
        return 1
    several = bool(entries) and bytes(entries[0])[:1] in (b'"', b"[")
    return len(entries) if several else 1
