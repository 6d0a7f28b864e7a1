"""The tool task: the right call is the only one of the four that the grader takes, and held-out names are new."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from forge.learn.tasks import NONE, RIGHT, Instance, Request, Tool, asked, call, habit, instances


def do(said: str, workspace: Path) -> None:
    """What pi's tools make of a call."""
    body: dict[str, Any] = json.loads(said.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    arguments = body["arguments"]
    match Tool(body["name"]):
        case Tool.WRITE:
            (workspace / arguments["path"]).write_text(arguments["content"])
        case Tool.EDIT:
            path, (edit,) = workspace / arguments["path"], arguments["edits"]
            if path.exists() and edit["oldText"] in path.read_text():
                path.write_text(path.read_text().replace(edit["oldText"], edit["newText"]))
        case Tool.BASH:
            subprocess.run(["/bin/sh", "-c", arguments["command"]], cwd=workspace, capture_output=True, check=False)
        case Tool.READ:
            pass


def named(prompt: str) -> Instance:
    found = asked(prompt)
    assert found is not None
    return found


@pytest.mark.parametrize("tool", list(Tool))
@pytest.mark.parametrize("request_", list(Request))
def test_one_call_is_right(tmp_path: Path, request_: Request, tool: Tool) -> None:
    instance = Instance(request_, "lake-one.txt", "kite", "drum")
    task = instance.task("t")
    task.write_files(tmp_path)
    do(call(tool, named(instance.prompt)), tmp_path)
    assert task.grader is not None
    judged = subprocess.run(["/bin/sh", "-c", str(task.grader.command)], cwd=tmp_path, capture_output=True, check=False)
    assert (judged.returncode == 0) is (tool is RIGHT[request_])


def test_a_request_is_read_back() -> None:
    for instance in islice(instances(3, held_out=False), 30):
        found = named(instance.prompt)
        assert (found.request, found.file) == (instance.request, instance.file)
        assert found.old == (instance.old if instance.request is Request.REPLACE else NONE)
        assert found.new == (NONE if instance.request is Request.DELETE else instance.new)
    assert asked("How are you?") is None


def test_held_out_names_occur_in_no_training_instance() -> None:
    trained = {each.file for seed in range(5) for each in islice(instances(seed, held_out=False), 300)}
    held_out = {each.file for each in islice(instances(0, held_out=True), 300)}
    assert held_out
    assert not trained & held_out


def test_requests_take_turns_and_a_seed_tells_them_all() -> None:
    one, two = (list(islice(instances(7, held_out=True), 9)) for _ in range(2))
    assert one == two
    assert [each.request for each in one] == [*Request] * 3


@pytest.mark.parametrize("request_", list(Request))
def test_a_habit_is_as_often_as_it_is_said_to_be(request_: Request) -> None:
    draws = random.Random(0)
    looking = Counter(habit(draws, request_, right=0.2, looks=0.5) for _ in range(4000))
    assert looking[Tool.READ] == pytest.approx(2000, rel=0.1)
    assert looking[RIGHT[request_]] == pytest.approx(800, rel=0.15)
    plain = Counter(habit(draws, request_, right=0.7) for _ in range(4000))
    assert {tool: plain[tool] for tool in Tool if tool is not RIGHT[request_]} == {
        tool: pytest.approx(400, rel=0.25) for tool in Tool if tool is not RIGHT[request_]
    }
