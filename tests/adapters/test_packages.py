"""The cache of installed programs: whole or not there, once however many ask."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forge.adapters.harnesses.packages import Package, PyPI, cache_folder
from forge.storage.errors import Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Package):
    fetched: list[Path] = field(default_factory=list)
    fails: bool = False

    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        self.fetched.append(into)
        (into / "half").write_text("x")
        if self.fails:
            raise Unavailable("the registry is gone")
        (into / self.program).write_text("y")


def package(**more: object) -> Counted:
    return Counted(name="tool", version="1", requirement="tool==1", program="run", **more)  # type: ignore[arg-type]


def test_it_appears_whole_and_once(tmp_path: Path) -> None:
    tool = package()
    said: list[str] = []
    assert not tool.installed(tmp_path)
    tool.install(tmp_path, said.append)
    tool.install(tmp_path, said.append)
    assert tool.installed(tmp_path)
    assert len(tool.fetched) == 1
    assert said[0] == "tool-1: installing tool==1"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tool-1.lock", "tool-1"]


def test_a_failed_install_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        package(fails=True).install(tmp_path, print)
    assert [path.name for path in tmp_path.iterdir()] == [".tool-1.lock"]
    package().install(tmp_path, print)
    assert (tmp_path / "tool-1" / "run").exists()


def test_what_a_killed_install_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left = [tmp_path / name for name in (".tool-1.new-abc", ".tool-2.new-abc", ".tool-1.5.new-abc")]
    for folder in left:
        folder.mkdir()
    package().install(tmp_path, print)
    assert [folder.exists() for folder in left] == [False, True, True]


def test_a_package_without_its_program_is_refused(tmp_path: Path) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Empty(Package):
        def fetch(self, into: Path, cache: Path, scratch: Path) -> None: ...

    with pytest.raises(Unavailable, match="has no run"):
        Empty(name="tool", version="1", requirement="tool==1", program="run").install(tmp_path, print)


def test_two_at_once_install_once(tmp_path: Path) -> None:
    tool = package()
    threads = [threading.Thread(target=tool.install, args=(tmp_path, lambda text: None)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tool.fetched) == 1


def test_a_registry_that_does_not_have_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    missing = PyPI(name="none", version="1", requirement="forge-no-such-package==1", program="x")
    with pytest.raises(Unavailable, match="forge-no-such-package==1") as caught:
        missing.install(tmp_path, print)
    assert "repeat" in caught.value.hint


def test_the_cache_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "harnesses"
