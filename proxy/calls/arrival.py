"""A request that is about to be a call: what is known of it, and its ``open`` frame.

Owns which of that the frame says. Decides nothing: whose the call is, what for, and who serves it was found before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from forge.proxy.deps import Deps
from forge.proxy.dialects.base import Dialect, Outgoing
from forge.proxy.door.request import Request
from forge.proxy.engines.base import Abilities, Ask
from forge.proxy.recording.recorder import Recording, wall_us
from forge.proxy.sessions.history import Fingerprint
from forge.proxy.sessions.kinds import DEFAULT_RULE
from forge.proxy.sessions.live import Live
from forge.proxy.sessions.sender import Sender
from forge.proxy.sessions.spec import Policy
from forge.proxy.splice import Shared
from forge.proxy.upstreams.pool import Replica
from forge.storage.frames import Open
from forge.storage.media import Taken
from forge.storage.records import CallKind, VersionSource

NO_POLICY: Final = Policy()
NO_ABILITIES: Final = Abilities()
NOTHING: Final = Outgoing(b"", False, False, Ask(), None, None, None, None)
"""What is sent for a call that comes late."""


@dataclass(slots=True)
class Arrival:
    """What is known of a call when it is accepted. The later fields are missing for one that comes late."""

    request: Request
    headers: dict[str, str]
    """Those that are stored."""
    dialect: Dialect
    taken: Taken
    call_id: str
    live: Live
    rule: str
    replica: Replica | None = None
    outgoing: Outgoing | None = None
    sender: Sender | None = None
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
        record, journal = self.live.record, deps.recorder.journal
        outgoing, sender, replica = self.outgoing or NOTHING, self.sender, self.replica
        policy, abilities = (replica.policy, replica.abilities) if replica else (NO_POLICY, NO_ABILITIES)
        said = sender.signs if sender else None
        return Open(
            call_id=self.call_id,
            session_id=record.session_id,
            run_id=record.run_id,
            boot=journal.boot,
            mono_us=deps.recorder.now(),
            writer=journal.writer,
            wall_us=wall_us(),
            dialect=self.dialect.name,
            path=self.request.path,
            request_len=len(self.taken.body),
            sent_len=-1 if sent is None else sum(map(len, sent)),
            sent_shared=shared,
            attribution=self.rule,
            headers=self.headers,
            retry_of=self.retry_of,
            harness=record.harness or (said.harness if said else None),
            harness_version=record.harness_version or (said.harness_version if said else None),
            agent_id=self.agent_id,
            kind=sender.kind if sender else CallKind.MAIN.value,
            kind_rule=sender.rule if sender else DEFAULT_RULE,
            stream=outgoing.stream,
            model_requested=outgoing.model_requested,
            sampling_asked=outgoing.sampling_asked,
            sampling_sent=outgoing.sampling_sent,
            edits=outgoing.edits,
            engine=replica.engine.name if replica else "",
            replica=replica.url if replica else "",
            policy_version=policy.version,
            policy_lineage=policy.lineage,
            weight_digest=policy.digest,
            version_source=replica.version_source.value if replica else VersionSource.UNKNOWN.value,
            logprobs_mode=abilities.logprobs_mode,
            sampling_defaults=_text(abilities.sampling_defaults),
            template_hash=abilities.template_hash,
            tokenizer_hash=abilities.tokenizer_hash,
        )


def _text(defaults: Mapping[str, Any]) -> str | None:
    return msgspec.json.encode(defaults).decode() if defaults else None
