"""R3: each system call of a small workload fails once, one after the other, until a run passes that none reached."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.soak import LONG, SOAK, rounds
from tests.faults.writing import held, reopen, said, write
from tests.storage.frames_kit import Kit, story
from tests.storage.test_decoder import check

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to make system calls fail"),
]

FRAMES = 10
ERRORS = ("EIO", "ENOSPC", "EINTR")
DURABILITY = ["disk", "process"] if SOAK else ["disk"]
CALLS = {"pwritev2": 40, "pwrite64": 20, "fdatasync": 40, "ftruncate": 20, "rename": 20, "fsync": 20}
"""And more times than it is made."""


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("durability", DURABILITY)
@pytest.mark.parametrize("call", CALLS)
def test_every_system_call_fails_once(tmp_path: Path, call: str, durability: str) -> None:
    """What was promised is there whatever fails; the writer hangs nowhere, and what was refused may be tried again."""
    for nth in range(1, CALLS[call]):
        for error in ERRORS if SOAK else ERRORS[nth % 3 : nth % 3 + 1]:
            if not _fails(tmp_path / f"{nth}{error}", call, nth, error, durability):
                assert nth > 1, f"{call} is never made"
                return
    pytest.fail(f"{call} is made more than {CALLS[call]} times: the sweep must go on")


def _fails(data: Path, call: str, nth: int, error: str, durability: str) -> bool:
    """False once the workload makes the call fewer times."""
    log = data.with_suffix(".trace")
    inject = f"inject={call}:error={error}:when={nth}"
    strace = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", inject]
    done = write(data, 0, FRAMES, wrapper=strace, durability=durability)
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


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("call", ["rename", "fsync", "pwrite64"])
def test_the_decoder_goes_on_where_a_system_call_failed(tmp_path: Path, call: str) -> None:
    """Whatever part, checkpoint or catalog it was: the next run makes of it what it should have been."""
    log, calls = tmp_path / "trace", 0
    for nth in range(1, 60, rounds(20, 1)):
        kit = Kit(tmp_path / str(nth), segment_bytes=20_000)
        story(kit, sessions=2, turns=2)
        kit.close()
        decode = [sys.executable, "-m", "forge", "decode", "--data", str(kit.data), "--once"]
        inject = f"inject={call}:error={ERRORS[nth % 2]}:when={nth}"
        strace = ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={call}", "-e", inject]
        failed = subprocess.run([*strace, *decode], capture_output=True, text=True, timeout=120, check=False)
        if "ptrace" in failed.stderr and "not permitted" in failed.stderr:
            pytest.skip("this machine does not allow ptrace")
        done = "(INJECTED)" not in log.read_text()
        calls += not done
        again = subprocess.run(decode, capture_output=True, text=True, timeout=120, check=False)
        assert again.returncode == 0, again.stderr
        check(kit)
        if done:
            break
    assert calls >= 1
