"""How a call ended, and the ``close`` frame that says so. Pure but for the recorder's clock."""

from __future__ import annotations

import msgspec

from forge.proxy.calls.asking import Asking
from forge.proxy.dialects.base import ABORT, BROKEN_OFF, UNREADABLE_ANSWER, Answer
from forge.proxy.redaction import redact
from forge.storage.frames import Close
from forge.storage.records import CallStatus


def close_frame(
    asking: Asking,
    delivered: tuple[int, str],
    *,
    status: CallStatus,
    error: str | None,
    http_status: int | None,
    engine_status: int | None,
    content_type: str,
    version_spans: str | None,
) -> Close:
    """``delivered``: bytes and their sha256."""
    size, sha256 = delivered
    recording, replica, attempts = asking.recording, asking.replica, asking.attempts
    policy = asking.ended if replica else None
    again = len(attempts) > 1
    return Close(
        call_id=recording.call_id,
        status=str(status),
        http_status=http_status,
        engine_status=engine_status,
        content_type=content_type,
        error=redact(error) if error is not None else None,
        attempt=recording.attempt,
        attempts=msgspec.json.encode(attempts).decode() if again else None,
        delivered=size,
        delivered_sha256=sha256,
        first_byte_us=recording.first_byte_us,
        end_us=recording.recorder.now() - recording.opened_us,
        replica=replica.url if replica and again else None,
        policy_version_start=asking.policy.version if again else None,
        policy_version=policy.version if policy else None,
        weight_digest=policy.digest if policy else None,
        version_spans=version_spans,
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
