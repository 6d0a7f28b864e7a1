"""R12: packets to the engine go nowhere: on a new connection, and in the middle of an answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.soak import rounds

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not (shutil.which("unshare") and shutil.which("iptables") and shutil.which("ip")),
        reason="needs network namespaces and iptables",
    ),
]

ALONE = """
import asyncio, subprocess, sys
from dataclasses import replace
from pathlib import Path
from tests.engine import Gate, Turn
from tests.proxy.serving import QUICK, calls, serving

def drop(port):
    for side in ("--dport", "--sport"):
        subprocess.run(["iptables", "-A", "INPUT", "-p", "tcp", side, str(port), "-j", "DROP"], check=True)

async def main():
    limits = replace(QUICK, connect_s=0.5, silence_s=0.7, attempts=2)
    gate = Gate(is_open=False)
    async with serving(Path(sys.argv[1]), limits=limits) as s:
        s.engine.script(Turn("one two three", gate=gate))
        async with s.chat(stream=True) as answer:
            gate.release(2)
            await answer.content.readany()
            drop(s.engine.port)
            gate.open()
            try:
                print("middle", b"[DONE]" in await answer.read())
            except Exception as error:
                print("middle", type(error).__name__)
        async def connect():
            async with s.chat() as answer:
                return answer.status, (await answer.json())["error"]["code"]
        print("connect", *set(await asyncio.gather(*(connect() for _ in range(int(sys.argv[2]))))))
        in_flight = s.proxy.deps.pool.all()[0].in_flight
        tasks = [task for task in asyncio.all_tasks() if "call" in repr(task.get_coro()).lower()]
    print("left", in_flight, len(tasks))
    for row in calls(s.data):
        print("row", row.status, row.trainable)

asyncio.run(main())
"""


def test_an_engine_that_vanishes_is_given_up_in_time(tmp_path: Path) -> None:
    """Within the limits that the proxy states: the answer that had begun is a truncated row, the other an error."""
    inside, side_by_side = 'ip link set lo up && exec "$0" -c "$1" "$2" "$3"', rounds(1, 100)
    command = ["unshare", "--net", "sh", "-c", inside, sys.executable, ALONE, str(tmp_path), str(side_by_side)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "not permitted" in done.stderr.lower() or "Permission denied" in done.stderr:
        pytest.skip("this machine allows no network namespace, or no rules in it")
    assert done.returncode == 0, done.stderr
    said = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert said[0][0] == "middle"
    assert said[0][1] != "True"
    assert said[1][0] == "connect"
    assert said[1][1].startswith(("(502", "(503"))
    assert said[1][1].count("(") == 1, "all are told the same"
    assert said[2] == ["left", "0 0"]
    assert [row for what, row in said if what == "row"] == ["truncated False", *["error False"] * side_by_side]
