"""The name server of a check: what a job asks for is written down, and nothing is found."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.harness_check.names import listening, question
from forge.runners import find
from forge.runners.base import Folders, Job

LABEL = st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True)


def query(labels: list[str]) -> bytes:
    name = b"".join(bytes([len(each)]) + each.encode() for each in labels) + b"\0"
    return struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + name + struct.pack("!2H", 1, 1)


@given(st.lists(LABEL, min_size=1, max_size=4), st.binary(max_size=30))
def test_a_question_is_read_whatever_follows(labels: list[str], more: bytes) -> None:
    data = query(labels)
    assert question(data + more) == (".".join(labels), len(data))
    assert question(data[:-1]) is None


@given(st.binary(max_size=80))
def test_anything_may_be_sent_to_it(data: bytes) -> None:
    found = question(data)
    assert found is None or found[1] <= len(data)


@pytest.mark.process
async def test_a_confined_jobs_look_ups_are_seen_and_lead_nowhere(tmp_path: Path) -> None:
    script = """
import socket
for name in ("api.example.com", "API.example.com", "telemetry.example.org", "localhost", "justaword"):
    try:
        socket.getaddrinfo(name, 443)
        print(name)
    except OSError:
        pass
"""
    async with listening(tmp_path) as names:
        if names is None:
            pytest.skip("port 53 cannot be bound here")
        job = Job(
            argv=("python3", "-c", script),
            env={},
            cwd="/workspace",
            seconds=60,
            folders=Folders.make(tmp_path / "job"),
            stdout=tmp_path / "stdout",
            stderr=tmp_path / "stderr",
            resolv=names.resolv,
        )
        ending = await find("local").run(job)
    assert ending.exit_code == 0, job.stderr.read_text()
    assert job.stdout.read_text() == "localhost\n"
    assert names.asked == ["api.example.com", "telemetry.example.org"]
