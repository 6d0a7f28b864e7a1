"""Graders: what is a judgement, and what is no reward with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forge.graders import Grade, Graders
from forge.runners import find
from forge.storage.errors import BadInput
from forge.tasks import Grader, Task

pytestmark = pytest.mark.process

CODE = """
import sys, time
def half(workspace, output): return 0.5 if (workspace / "a").read_text() == "left" and output == "bye" else 0.0
def parts(**given): return {"reward": 1, "components": {"style": 0.25, "calls": len(given["calls"])}}
def told(task): return task["points"]
def yes(): return True
def crash(): raise RuntimeError("boom")
def hang(): time.sleep(1000)
def text(): return "good"
def nan(): return float("nan")
def nothing(): pass
def chatty():
    print('{"reward": 9}')
    return 0.5
def leave(): sys.exit(0)
def escape():
    import os
    os.system("echo 99 >&3; echo 99; touch /etc/x /opt/forge/x")
    return 0.0
class Rubric:
    @staticmethod
    def grade(): return 0.75
"""


async def _grade(folder: Path, grader: Grader, *, runner: str = "local") -> Grade:
    (folder / "rewards.py").write_text(CODE)
    left = folder / "left"
    left.mkdir()
    (left / "a").write_text("left")
    row: dict[str, Any] = {"id": "t", "prompt": "p", "points": 0.125}
    task = Task(id="t", prompt="p", grader=grader, row=row)
    graders = Graders(find(runner), folder / "code")
    graders.gather([task], folder)
    return await graders.grade(task, left, output="bye", calls=[{"call_id": "c1"}], root=folder / "grade", kept=folder)


@pytest.mark.parametrize("runner", ["local", "unconfined"])
@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("true", 1.0),
        ("grep -q left a", 1.0),
        ("grep -q right a", 0.0),
        ("echo checking; echo 0.25", 0.25),
        ("echo -3", -3.0),
        ("echo 0.25; exit 1", 0.0),
        ("echo 2 passed", 1.0),
        ("", 1.0),
    ],
)
async def test_a_command_judges(tmp_path: Path, command: str, reward: float, runner: str) -> None:
    assert await _grade(tmp_path, Grader(command=command), runner=runner) == Grade(reward=reward)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-command", "exit code 127"),
        ("./a", "exit code 126"),
        ("kill -9 $$", "exit code 137"),
        ("sleep 1000", "more than 0.5 s"),
        ("echo nan", "not a finite number"),
    ],
)
async def test_a_command_that_could_not_judge_gives_no_reward(tmp_path: Path, command: str, reason: str) -> None:
    grade = await _grade(tmp_path, Grader(command=command, timeout=0.5))
    assert grade.reward is None
    assert reason in (grade.reason or "")


@pytest.mark.parametrize("runner", ["local", "unconfined"])
@pytest.mark.parametrize(
    ("function", "grade"),
    [
        ("half", Grade(reward=0.5)),
        ("parts", Grade(reward=1.0, components={"style": 0.25, "calls": 1.0})),
        ("told", Grade(reward=0.125)),
        ("yes", Grade(reward=1.0)),
        ("chatty", Grade(reward=0.5)),
        ("Rubric.grade", Grade(reward=0.75)),
    ],
)
async def test_a_function_judges(tmp_path: Path, function: str, grade: Grade, runner: str) -> None:
    assert await _grade(tmp_path, Grader(python=f"rewards:{function}"), runner=runner) == grade


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("crash", "RuntimeError: boom"),
        ("hang", "more than 2 s"),
        ("text", "neither a number"),
        ("nan", "neither a number"),
        ("nothing", "neither a number"),
        ("leave", "neither a number"),
        ("missing", "no attribute 'missing'"),
    ],
)
async def test_a_function_that_could_not_judge_gives_no_reward(tmp_path: Path, function: str, reason: str) -> None:
    grade = await _grade(tmp_path, Grader(python=f"rewards:{function}", timeout=2))
    assert grade.reward is None
    assert reason in (grade.reason or "")


async def test_what_a_function_starts_cannot_speak_for_it(tmp_path: Path) -> None:
    assert await _grade(tmp_path, Grader(python="rewards:escape")) == Grade(reward=0.0)
    assert [path.name for path in (tmp_path / "code").iterdir()].count("x") == 0


async def test_a_grader_works_on_a_copy(tmp_path: Path) -> None:
    grade = await _grade(tmp_path, Grader(command="rm a && echo changed > b"))
    assert grade.reward == 1.0
    assert [path.name for path in (tmp_path / "left").iterdir()] == ["a"]


async def test_a_grader_sees_its_module_and_not_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=1")
    assert await _grade(tmp_path, Grader(command=f"cat {tmp_path}/.env /opt/forge/.env")) == Grade(reward=0.0)


def test_a_module_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    task = Task(id="t", prompt="p", grader=Grader(python="no_such_module_here:f"))
    with pytest.raises(BadInput, match="no_such_module_here"):
        Graders(find("unconfined"), tmp_path / "code").gather([task], None)
