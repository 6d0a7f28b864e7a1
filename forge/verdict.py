"""How a session ended, read from what was recorded and not from the harness's exit code alone. Pure.

Exit codes are no verdict: some harnesses exit 0 after no served call at all, so 0 is one condition among others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from forge.runners.base import Ending
from forge.storage.records import Call, CallStatus, SessionStatus

UNREACHED_HTTP: Final = (502, 503, 504)
"""What the proxy answers when no policy server could serve a call."""


def verdict(ending: Ending, calls: Sequence[Call], *, said: str) -> tuple[SessionStatus, str | None]:
    """How a session ended and why; ``said``: the harness's own words for it."""
    served = any(call.status == CallStatus.OK for call in calls)
    last_error = next((call.error for call in reversed(calls) if call.error), None)
    if ending.not_started is not None:
        return SessionStatus.LAUNCH_FAILED, ending.not_started
    if not served and any(call.http_status in UNREACHED_HTTP for call in calls):
        return SessionStatus.POLICY_DOWN, last_error
    if ending.timed_out:
        return SessionStatus.TIMEOUT, f"it had not ended after {ending.seconds:.0f} s"
    how = f"exit code {ending.exit_code}" + (f", {said}" if said else "")
    if not calls:
        return SessionStatus.NO_CALLS, f"it made no call: {how}"
    if not served:
        return (
            SessionStatus.FAILED,
            f"none of its {len(calls)} calls was served: {last_error}; exit code {ending.exit_code}",
        )
    if ending.exit_code != 0:
        return SessionStatus.FAILED, how
    return SessionStatus.COMPLETED, None
