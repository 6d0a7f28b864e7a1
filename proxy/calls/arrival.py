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

MAIN: Final = CallKind.MAIN.value
NO_POLICY: Final = Policy()
NO_ABILITIES: Final = Abilities()
NOTHING: Final = Outgoing((), False, False, Ask(), None, None, None, None)
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
            sent = tuple(map(self.taken.again, shared.rest(outgoing.pieces) if shared else (outgoing.body,)))
            shared = shared._replace(at=len(sent[0])) if shared is not None else None
        return deps.recorder.open(self._frame(deps, sent, shared), self.taken.body, *(sent or ()))

    def _frame(self, deps: Deps, sent: Sequence[bytes] | None, shared: Shared | None) -> Open:
        outgoing, sender = self.outgoing or NOTHING, self.sender
        return msgspec.structs.replace(
            self._alike(deps),
            call_id=self.call_id,
            mono_us=deps.recorder.now(),
            wall_us=wall_us(),
            request_len=len(self.taken.body),
            sent_len=-1 if sent is None else sum(map(len, sent)),
            sent_shared=shared,
            retry_of=self.retry_of,
            agent_id=self.agent_id,
            kind=sender.kind if sender else MAIN,
            kind_rule=sender.rule if sender else DEFAULT_RULE,
            stream=outgoing.stream,
            model_requested=outgoing.model_requested,
            sampling_asked=outgoing.sampling_asked,
            sampling_sent=outgoing.sampling_sent,
            edits=outgoing.edits,
        )

    def _alike(self, deps: Deps) -> Open:
        """What the session's last call said and this one says again, as long as nothing of that has changed."""
        live, replica, dialect = self.live, self.replica, self.dialect
        policy, abilities = (replica.policy, replica.abilities) if replica else (NO_POLICY, NO_ABILITIES)
        said = self.sender.signs if self.sender else None
        told_by = (live.record, replica, policy, abilities, dialect, self.rule, self.request.head, said)
        if live.last_open is not None and live.last_open[0] == told_by:
            return live.last_open[1]
        record, journal = live.record, deps.recorder.journal
        frame = Open(
            call_id="",
            session_id=record.session_id,
            run_id=record.run_id,
            boot=journal.boot,
            mono_us=0,
            writer=journal.writer,
            wall_us=0,
            dialect=dialect.name,
            path=self.request.path,
            stream=False,
            request_len=0,
            attribution=self.rule,
            headers=self.headers,
            harness=record.harness or (said.harness if said else None),
            harness_version=record.harness_version or (said.harness_version if said else None),
            engine=replica.engine.name if replica else "",
            replica=replica.url if replica else "",
            policy_version=policy.version,
            policy_lineage=policy.lineage,
            weight_digest=policy.digest,
            version_source=str(replica.version_source if replica else VersionSource.UNKNOWN),
            logprobs_mode=abilities.logprobs_mode,
            sampling_defaults=_text(abilities.sampling_defaults),
            template_hash=abilities.template_hash,
            tokenizer_hash=abilities.tokenizer_hash,
        )
        live.last_open = told_by, frame
        return frame


def _text(defaults: Mapping[str, Any]) -> str | None:
    return msgspec.json.encode(defaults).decode() if defaults else None
