"""Who asks and what for, as a request shows it: what the last request with the same around its history showed holds for
this one, where nothing of that has changed.

Owns only the remembering; what shows what is ``attribution``'s and ``kinds``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from forge.proxy.sessions.attribution import Signs, signs
from forge.proxy.sessions.kinds import Seen, kind_of, wordings_in
from forge.proxy.sessions.turns import Around


class Sender(NamedTuple):
    """Of one request."""

    headers: Mapping[str, str]
    first_user: str | None
    signs: Signs
    shown: tuple[Any, ...] = ()
    """What its kind was told by."""
    kind: str = ""
    rule: str = ""


def sender_of(around: Around, headers: Mapping[str, str], hints: Mapping[str, Any]) -> Sender:
    """``headers``: those of it that are stored."""
    first, known = hints.get("first_user"), around.sender
    if isinstance(known, Sender) and known.headers == headers and known.first_user == first:
        return known
    around.sender = found = Sender(headers, first, signs(headers, hints))
    return found


def with_kind(around: Around, sender: Sender, hints: Mapping[str, Any], agent_id: str | None) -> Sender:
    """``agent_id``: the sub-agent whose history it is, where the harness does not say so itself."""
    last = hints.get("last_user")
    shown = (agent_id, hints.get("first_system"), wordings_in(last) if isinstance(last, str) else ())
    if sender.shown == shown:
        return sender
    kind, rule = kind_of(Seen(sender.headers, hints, sender.signs, agent_id))
    around.sender = found = sender._replace(shown=shown, kind=kind.value, rule=rule)
    return found
