"""Temporary folders: gone at the end, gone after kill -9, there for whoever was sent to look."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from forge.scratch import keep, scratch
from forge.storage.errors import BadInput

HOLDS = """
import time
from forge.scratch import scratch
with scratch("test") as folder:
    (folder / "secret").write_text("x")
    print(folder, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def _own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def holder(tmp: Path) -> tuple[subprocess.Popen[str], Path]:
    env = {**os.environ, "TMPDIR": str(tmp)}
    process = subprocess.Popen([sys.executable, "-c", HOLDS], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_gone_at_the_end_also_by_an_error(tmp_path: Path) -> None:
    for error in (BadInput("no", "do"), KeyboardInterrupt()):
        with pytest.raises(type(error)), scratch("test") as folder:  # noqa: PT012 - the folder is looked at inside
            assert folder.stat().st_mode & 0o777 == 0o700
            (folder / "closed").mkdir(mode=0)
            raise error
    assert not list(tmp_path.iterdir())


def test_what_a_person_shall_look_at_stays(tmp_path: Path) -> None:
    with scratch("test") as asked_for:
        keep(asked_for)
    with pytest.raises(BadInput), scratch("test") as named:
        raise BadInput("no", f"its log is {named}/log")
    with scratch("test"):  # and the next command does not take it away
        assert asked_for.exists()
        assert named.exists()


@pytest.mark.process
def test_what_a_killed_command_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    killed, left = holder(tmp_path)
    living, held = holder(tmp_path)
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.communicate()
        foreign = tmp_path / "forge-somebody"
        foreign.mkdir()
        link = tmp_path / "forge-link"
        link.symlink_to(left)
        assert left.exists()
        with scratch("test"):
            assert not left.exists()
            assert (held / "secret").exists()
            assert foreign.exists()
    finally:
        living.kill()
        living.communicate()
