"""Tasks files: what is read, and which line is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge import tasks
from forge.storage.errors import BadInput


def _file(folder: Path, *rows: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_a_task_with_everything(tmp_path: Path) -> None:
    row = {
        "id": "a",
        "prompt": "Fix it",
        "files": {"src/a.py": "x = 1\n", "b": ""},
        "grader": {"command": "true", "timeout": 5},
        "difficulty": "easy",
    }
    (task,) = tasks.read(_file(tmp_path, row, "", "  "))
    assert (task.id, task.prompt) == ("a", "Fix it")
    assert task.grader == tasks.Grader(command="true", timeout=5.0)
    assert task.row["difficulty"] == "easy"
    workspace = tmp_path / "w"
    workspace.mkdir()
    task.write_files(workspace)
    assert (workspace / "src/a.py").read_text() == "x = 1\n"
    assert (workspace / "b").read_text() == ""


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    """Editors and other languages' JSON leave U+2028 and the like as they are, and some put a mark at the begin."""
    prompt = "one\u2028two\x85three\u2029"
    row = json.dumps({"id": "a", "prompt": prompt}, ensure_ascii=False)
    (tmp_path / "tasks.jsonl").write_bytes(f"\ufeff{row}\r\n\r\n".encode())
    assert [task.prompt for task in tasks.read(tmp_path / "tasks.jsonl")] == [prompt]


GOOD = {"id": "a", "prompt": "p"}


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("{", "line 2"),
        ("[1]", "not a JSON object"),
        ({"id": "b"}, "prompt"),
        ({"id": 3, "prompt": "p"}, "id"),
        ({"id": "b", "prompt": " "}, "may not be empty"),
        ({"id": "b", "prompt": "a\0b"}, "NUL"),
        (GOOD, "'a' stands on an earlier line"),
        ({**GOOD, "files": {"../x": ""}}, "'../x'"),
        ({**GOOD, "files": {"/etc/x": ""}}, "'/etc/x'"),
        ({**GOOD, "files": {"a/../../x": ""}}, "not a path inside"),
        ({**GOOD, "files": {"": ""}}, "not a path inside"),
        ({**GOOD, "files": {"a/": ""}}, "not a path inside"),
        ({**GOOD, "files": {"a": "", "a/b": ""}}, "cannot be a file and the folder"),
        ({**GOOD, "files": {"a/b": "", "a//b": ""}}, "the same file"),
        ({**GOOD, "files": {"a": 1}}, "files"),
        ({**GOOD, "grader": {}}, "either"),
        ({**GOOD, "grader": {"command": "x", "python": "a:b"}}, "either"),
        ({**GOOD, "grader": {"python": "a.b"}}, "module:function"),
        ({**GOOD, "grader": {"python": "a:b; import os"}}, "module:function"),
        ({**GOOD, "grader": {"command": "x", "timeout": 0}}, "timeout"),
        ({**GOOD, "grader": {"comand": "x"}}, "comand"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, bad: object, said: str) -> None:
    path = _file(tmp_path, GOOD, bad)
    with pytest.raises(BadInput) as caught:
        tasks.read(path)
    assert f"{path}, line 2" in caught.value.message
    assert said in caught.value.message
    assert caught.value.hint


def test_a_missing_or_empty_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read the tasks"):
        tasks.read(tmp_path / "none.jsonl")
    with pytest.raises(BadInput, match="holds no task"):
        tasks.read(_file(tmp_path))
    with pytest.raises(BadInput):
        tasks.one(" ")


@given(st.text(alphabet=st.sampled_from("ab./\\ \0~"), max_size=12))
def test_no_accepted_path_leaves_the_workspace(name: str) -> None:
    root = Path("/srv/workspace")
    try:
        tasks._check_paths([name])
    except ValueError:
        return
    assert Path("/".join((str(root), name))).resolve().is_relative_to(root)
    assert Path("/".join((str(root), name))).resolve() != root


@given(st.binary(max_size=200))
def test_any_bytes_give_tasks_or_a_named_line(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(data)
        with pytest.raises(BadInput, match="t"):
            tasks.read(path)
