"""The rest of a messages request as chat's members: system, tools, format, limits, sampling, thinking.

Owns which members mean something to an engine; those that only steer the vendor's own service (``metadata``,
``context_management``, ``cache_control``, ``service_tier`` ...) are accepted and go no further. The one non-obvious
fact: a harness that sends no ``thinking`` leaves it to the model's template; only ``disabled`` turns it off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.dialects.asked import NULL, given, members_of, read
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.messages_input import History
from forge.proxy.dialects.messages_parts import Content
from forge.proxy.dialects.messages_tools import Choice, Tool, translate_tools
from forge.proxy.dialects.overlay import DISTRIBUTION
from forge.proxy.sessions.turns import Request

SAME_NAME: Final = DISTRIBUTION | {"max_tokens", "stop_token_ids", "ignore_eos"}
"""Members that chat knows by the same name."""
EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
"""Of ``output_config``; engines know them by the same words."""
HOSTED: Final = ("mcp_servers", "container")
"""What only the vendor's own service has."""
NO_THINKING: Final = b'{"enable_thinking":false}'
"""For the template."""


@dataclass(frozen=True, slots=True)
class Translated:
    members: Mapping[str, bytes | Raw]
    """The chat request."""
    notices: list[Mapping[str, Any]]
    stream: bool
    stops: tuple[str, ...]
    """The strings the harness wants the answer to stop at."""


class _Format(msgspec.Struct):
    type: str = ""
    schema: Raw = NULL


class _Output(msgspec.Struct):
    effort: str | None = None
    format: _Format | None = None


class _Thinking(msgspec.Struct):
    type: str = ""


def translate(body: Request) -> Translated:
    """Raises ``BadRequest``."""
    asked = members_of(body)
    if not given(asked, "messages"):
        raise BadRequest("messages: Field required", param="messages")
    history = History()
    history.add_system(read(asked, "system", Content))
    history.add(asked["messages"])
    tools = translate_tools(read(asked, "tools", list[Tool]) or [], read(asked, "tool_choice", Choice))
    stops = tuple(read(asked, "stop_sequences", list[str]) or ())
    stream = bool(read(asked, "stream", bool))
    made: dict[str, bytes | Raw] = {"model": asked["model"]} if "model" in asked else {}
    made["messages"] = msgspec.json.encode(history.messages)
    made.update(tools.members)
    made.update({name: asked[name] for name in sorted(SAME_NAME) if given(asked, name)})
    if stops:
        made["stop"] = msgspec.json.encode(stops)
    made.update(_steered(asked))
    if history.ends_open:
        made.update({"continue_final_message": b"true", "add_generation_prompt": b"false"})
    if stream:
        made["stream"] = b"true"
    hosted = [{"edit": "dropped_member", "name": name} for name in HOSTED if read(asked, name, Any)]
    return Translated(made, [*history.notices, *tools.notices, *hosted], stream, stops)


def _steered(asked: Mapping[str, Raw]) -> dict[str, bytes]:
    """How to think, and the form of the answer."""
    made: dict[str, bytes] = {}
    output: _Output = read(asked, "output_config", _Output) or _Output()
    thinking: _Thinking | None = read(asked, "thinking", _Thinking)
    if thinking is not None and thinking.type == "disabled":
        made["chat_template_kwargs"] = NO_THINKING
    elif output.effort in EFFORTS:
        made["reasoning_effort"] = msgspec.json.encode(output.effort)
    form: _Format | None = output.format or read(asked, "output_format", _Format)
    if form is not None and form.type == "json_schema":
        schema = {"name": "answer", "schema": form.schema}
        made["response_format"] = msgspec.json.encode({"type": "json_schema", "json_schema": schema})
    return made
