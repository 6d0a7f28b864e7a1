"""Taking over files that a model has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forge import workspace


def test_links_stay_links_and_odd_files_are_left_out(tmp_path: Path) -> None:
    source, target, outside = tmp_path / "s", tmp_path / "t", tmp_path / "outside"
    for folder in (source / "deep", target, outside):
        folder.mkdir(parents=True)
    (outside / "secret").write_text("hunter2")
    (source / "deep" / "a").write_text("a")
    (source / "run").write_text("x")
    (source / "run").chmod(0o4755)
    (source / "shut").write_text("y")
    (source / "shut").chmod(0)
    (source / "link").symlink_to(outside / "secret")
    (source / "folder").symlink_to(outside)
    os.mkfifo(source / "pipe")

    workspace.copy(source, target)

    assert (target / "deep" / "a").read_text() == "a"
    assert os.readlink(target / "link") == str(outside / "secret")
    assert (target / "folder").is_symlink()
    assert not (target / "pipe").exists()
    assert (target / "run").stat().st_mode & 0o7777 == 0o755
    assert (target / "shut").read_text() == "y"


def test_too_large_a_workspace_is_refused_by_its_size(tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir()
    target.mkdir()
    with (source / "huge").open("wb") as file:
        file.truncate(workspace.COPY_BYTES_MAX + 1)
    with pytest.raises(workspace.TooLarge):
        workspace.copy(source, target)


def test_a_transcript_that_is_a_link_is_not_taken(tmp_path: Path) -> None:
    home, target = tmp_path / "home", tmp_path / "kept"
    sessions = home / ".codex/sessions/2026/11"
    sessions.mkdir(parents=True)
    (tmp_path / "id_rsa").write_text("key")
    (sessions / "real.jsonl").write_text("{}")
    (sessions / "link.jsonl").symlink_to(tmp_path / "id_rsa")
    (home / ".codex/sessions/away").symlink_to(tmp_path)
    (home / "other.jsonl").write_text("no")
    workspace.transcripts(home, (".codex/sessions/*.jsonl",), target)
    kept = [str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()]
    assert kept == [".codex/sessions/2026/11/real.jsonl"], "at the same path, so that an adapter finds it"


def test_anything_can_be_removed(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    deep = folder
    for _ in range(300):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (folder / "keep").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").write_text("still here")
    folder.chmod(0)
    workspace.remove(folder)
    assert not folder.exists()
    assert (tmp_path / "outside").read_text() == "still here"
