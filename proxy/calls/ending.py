"""How a call ended, and the ``close`` frame that says so. Pure but for the recorder's clock."""

from __future__ import annotations

from typing import Any

import msgspec

from forge.proxy.calls.asking import Asking
from forge.proxy.dialects.base import ABORT, BROKEN_OFF, UNREADABLE_ANSWER, Answer
from forge.proxy.redaction import redact
from forge.storage.frames import Close
from forge.storage.records import CallStatus


def close_frame(asking: Asking, delivered: tuple[int, str], *, error: str | None, **told: Any) -> Close:
    """``delivered``: bytes and their sha256; ``told``: the frame's other members, as the call knows them."""
    size, sha256 = delivered
    replica, attempts = asking.replica, asking.attempts
    policy = asking.ended if replica else None
    return Close(
        call_id=asking.recording.call_id,
        error=redact(error) if error is not None else None,
        attempt=asking.recording.attempt,
        attempts=msgspec.json.encode(attempts).decode() if len(attempts) > 1 else None,
        delivered=size,
        delivered_sha256=sha256,
        first_byte_us=asking.recording.first_byte_us,
        end_us=asking.recording.recorder.now() - asking.recording.opened_us,
        replica=replica.url if replica and len(attempts) > 1 else None,
        policy_version_start=asking.policy.version if len(attempts) > 1 else None,
        policy_version=policy.version if policy else None,
        weight_digest=policy.digest if policy else None,
        **told,
    )


def ended(answer: Answer, broken: str | None) -> tuple[CallStatus, str | None]:
    """``broken``: how the engine's body broke off, if it did."""
    if answer.finish_reason == ABORT:
        return CallStatus.ABORTED, "the policy server aborted the generation"
    if answer.complete:
        return CallStatus.OK, None
    if broken is None and answer.error is not None and not answer.error.startswith((BROKEN_OFF, UNREADABLE_ANSWER)):
        return CallStatus.ERROR, answer.error
    return CallStatus.TRUNCATED, broken or answer.error or "the answer has no end mark"
