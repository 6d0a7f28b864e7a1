"""R3: each system call of a small workload fails once, one after the other, until a run passes that none reached."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.faults.soak import SOAK
from tests.faults.writing import held, reopen, said, write

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to make system calls fail"),
]

FRAMES = 10
ERRORS = ("EIO", "ENOSPC", "EINTR")
CALLS = {"pwritev2": 40, "pwrite64": 20, "fdatasync": 40, "ftruncate": 20, "rename": 20, "fsync": 20}
"""And more times than it is made."""


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("call", CALLS)
def test_every_system_call_fails_once(tmp_path: Path, call: str) -> None:
    """What was promised is there whatever fails; the writer hangs nowhere, and what was refused may be tried again."""
    for nth in range(1, CALLS[call]):
        for error in ERRORS if SOAK else ERRORS[nth % 3 : nth % 3 + 1]:
            if not _fails(tmp_path / f"{nth}{error}", call, nth, error):
                assert nth > 1, f"{call} is never made"
                return
    pytest.fail(f"{call} is made more than {CALLS[call]} times: the sweep must go on")


def _fails(data: Path, call: str, nth: int, error: str) -> bool:
    """False once the workload makes the call fewer times."""
    log = data.with_suffix(".trace")
    inject = f"inject={call}:error={error}:when={nth}"
    done = write(data, 0, FRAMES, wrapper=["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", inject])
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine does not allow ptrace")
    if not re.search(r"\(INJECTED\)", log.read_text()):
        return False
    promised = said(done.stdout)
    if done.returncode:
        assert "Unavailable" in done.stderr or "JournalFull" in done.stderr, done.stderr
        assert promised == [], "it could not even begin"
    reopen(data)
    found = held(data)
    assert found == sorted(set(found))
    assert [number for number in promised if number not in found and number >= min(found)] == []
    return True
