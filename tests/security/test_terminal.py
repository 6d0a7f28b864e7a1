"""What models, harnesses and engines said cannot command the terminal of whoever looks at it."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.table import Table

from forge.overview import Counts, sessions_table
from forge.proxy.logs import TextLines
from forge.proxy.redaction import harmless
from forge.session_tree import session_tree
from forge.storage.records import Call, Session
from forge.terminal import Terminal
from forge.top import frame
from tests.proxy.test_logs import record

COPIES = "\x1b]52;c;cm0gLXJmIH4=\x07"
CORPUS = (
    COPIES,
    "\x1b[2J",
    "\x9b31m",
    "\x1b]0;title\x07",
    "\r\x1b[A",
    "\x08" * 9,
    "\x1bP+q\x1b\\",
    "\u202egnp.exe",
    "\x00",
)
BAD = "".join(CORPUS)


def drawn(*renderables: Any) -> str:
    out = io.StringIO()
    terminal = Terminal(file=out, width=200, force_terminal=True, color_system=None)
    for each in renderables:
        terminal.print(each)
    return out.getvalue()


@pytest.mark.parametrize("text", CORPUS)
def test_no_control_reaches_a_terminal(text: str) -> None:
    table = Table(text)
    table.add_row(f"before{text}after")
    said = drawn(table, f"plain {text}")
    assert not [mark for mark in ("\x1b", "\x9b", "\x07", "\x08", "\r", "\x00", "\u202e") if mark in said], repr(said)
    assert "before" in said
    assert "after" in said


def test_what_a_model_and_a_harness_say_is_shown_and_not_obeyed() -> None:
    session = Session(session_id="s01", run_id="r", task_id=BAD, harness=BAD, error=BAD)
    ids = np.arange(3, dtype=np.int32)
    call = Call(
        **{"call_id": "c1", "run_id": "r", "session_id": "s01", "seq": 1, "prompt_ids": ids, "output_ids": ids},
        response=json.dumps({"role": "assistant", "content": f"hello {BAD}"}),
        error=BAD,
    )
    replica = {"url": BAD, "engine": BAD, "state": "down", "reason": BAD, "in_flight": 0, "policy_version": None}
    one = {"session_id": BAD, "run_id": BAD, "harness": BAD, "task_id": BAD, "calls": 1, "running": 0}
    state = {
        **{"version": "0", "run_id": BAD, "base_url": BAD, "up_s": 1.0, "unready": [BAD], "warnings": [BAD]},
        **{"sessions": [one | {"idle_s": 0.0, "open_s": 0.0}], "sessions_open": 1, "sessions_max": 2},
        **{"calls_running": 0, "calls_ended": 0, "calls_per_s": 0.0, "unrecorded": 0, "prompt_tokens": 0},
        **{"output_tokens": 0, "tokens_per_s": 0.0, "untrainable": {}, "flush_lag_s": 0.0, "replicas": [replica]},
        **{"decoder": {"up": True, "lag_s": 0.0, "lag_bytes": 0, "rows": 0}},
        **{"disk": {"used": {}, "free": None, "budget": None}},
    }
    said = drawn(session_tree(session, [call]), sessions_table([session], {"s01": Counts()}), frame(state, rows=5))
    assert "hello" in said
    assert not set(said) & {"\x1b", "\x9b", "\x07", "\x08", "\r", "\x00", "\u202e"}


def test_a_line_of_the_log_commands_nothing() -> None:
    line = TextLines().format(record("policy server left out: %s", BAD))
    assert harmless(line) == line
    assert "left out" in line


def test_words_stay_as_they_are() -> None:
    for text in ("tabs\tand\nlines", "Grüße, 你好, 🙂, עברית", "\u200d zero width"):
        assert harmless(text) == text
