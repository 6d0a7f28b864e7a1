"""A request that is about to be a call: what is known of it, and its ``open`` frame.

Owns which of that the frame says. Decides nothing: whose the call is, what for, and who serves it was found before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from forge.proxy.deps import Deps
from forge.proxy.dialects.base import Dialect, Outgoing
from forge.proxy.door.request import Request
from forge.proxy.recording.recorder import Recording, wall_us
from forge.proxy.sessions.attribution import Signs, stored
from forge.proxy.sessions.history import Fingerprint
from forge.proxy.sessions.kinds import Seen, kind_of
from forge.proxy.sessions.live import Live
from forge.proxy.splice import Shared
from forge.proxy.upstreams.pool import Replica
from forge.storage.frames import Open
from forge.storage.media import Taken


@dataclass(slots=True)
class Arrival:
    """What is known of a call when it is accepted. The later fields are missing for one that comes late."""

    request: Request
    dialect: Dialect
    taken: Taken
    call_id: str
    live: Live
    rule: str
    replica: Replica | None = None
    outgoing: Outgoing | None = None
    said: Signs | None = None
    seen: Fingerprint | None = None
    retry_of: str | None = None
    agent_id: str | None = None
    began_us: int = 0
    """When it had a replica to be made ready for."""

    def open(self, deps: Deps) -> Recording:
        """Raises ``JournalFull``."""
        outgoing, shared = self.outgoing, None
        sent: tuple[bytes, ...] | None = None
        if outgoing is not None and outgoing.edited:
            shared = outgoing.shared if self.taken.whole else None
            sent = shared.rest(outgoing.body) if shared is not None else (outgoing.body,)
            sent = tuple(map(self.taken.again, sent))
            shared = shared._replace(at=len(sent[0])) if shared is not None else None
        return deps.recorder.open(self._frame(deps, sent, shared), self.taken.body, *(sent or ()))

    def _frame(self, deps: Deps, sent: Sequence[bytes] | None, shared: Shared | None) -> Open:
        return Open(
            call_id=self.call_id,
            session_id=self.live.id,
            run_id=self.live.record.run_id,
            boot=deps.recorder.journal.boot,
            mono_us=deps.recorder.now(),
            writer=deps.recorder.journal.writer,
            wall_us=wall_us(),
            dialect=self.dialect.name,
            path=self.request.path,
            request_len=len(self.taken.body),
            sent_len=-1 if sent is None else sum(map(len, sent)),
            sent_shared=shared,
            attribution=self.rule,
            headers=stored(self.request.headers),
            retry_of=self.retry_of,
            **self._who(),
            **self._what(),
            **self._where(),
        )

    def _who(self) -> dict[str, Any]:
        record, said = self.live.record, self.said
        who: dict[str, Any] = {"harness": record.harness, "harness_version": record.harness_version}
        if said is None or self.outgoing is None:
            return who
        kind, rule = kind_of(Seen(self.request.headers, self.outgoing.hints, said, self.agent_id))
        return {
            "harness": record.harness or said.harness,
            "harness_version": record.harness_version or said.harness_version,
            "agent_id": self.agent_id,
            "kind": kind.value,
            "kind_rule": rule,
        }

    def _what(self) -> dict[str, Any]:
        outgoing = self.outgoing
        if outgoing is None:
            return {"stream": False}
        return {
            "stream": outgoing.stream,
            "model_requested": outgoing.model_requested,
            "sampling_asked": outgoing.sampling_asked,
            "sampling_sent": outgoing.sampling_sent,
            "edits": outgoing.edits,
        }

    def _where(self) -> dict[str, Any]:
        replica = self.replica
        if replica is None:
            return {}
        return {
            "engine": replica.engine.name,
            "replica": replica.url,
            "policy_version": replica.policy.version,
            "policy_lineage": replica.policy.lineage,
            "weight_digest": replica.policy.digest,
            "version_source": replica.version_source.value,
            "logprobs_mode": replica.abilities.logprobs_mode,
            "sampling_defaults": _text(replica.abilities.sampling_defaults),
            "template_hash": replica.abilities.template_hash,
            "tokenizer_hash": replica.abilities.tokenizer_hash,
        }


def _text(defaults: Mapping[str, Any]) -> str | None:
    return msgspec.json.encode(defaults).decode() if defaults else None
