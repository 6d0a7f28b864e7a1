"""A version appears whole or not at all, and its digest is of what is on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.policy.weights import current, publish, weight_digest
from forge.storage.errors import BadInput


def save_one(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"one")


def save_two(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"two")


def save_nothing(directory: Path) -> None:
    (directory / "half").write_bytes(b"x")


def fail(directory: Path) -> None:
    save_one(directory)
    raise OSError("disk full")


def test_the_digest_sees_every_byte_and_name(tmp_path: Path) -> None:
    for name, files in {
        "a": {"m.safetensors": b"ab"},
        "b": {"m.safetensors": b"ac"},
        "c": {"n.safetensors": b"ab"},
        "d": {"m.safetensors": b"a", "n.safetensors": b"b"},
    }.items():
        (tmp_path / name).mkdir()
        for file, content in files.items():
            (tmp_path / name / file).write_bytes(content)
    digests = [weight_digest(tmp_path / name) for name in "abcd"]
    assert len(set(digests)) == 4
    (tmp_path / "a" / "config.json").write_text("{}")
    assert weight_digest(tmp_path / "a") == digests[0], "only weights count"


def test_no_weights_no_digest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="safetensors"):
        weight_digest(tmp_path)


def test_publish_points_current_at_it(tmp_path: Path) -> None:
    assert current(tmp_path) is None
    first = publish(tmp_path, 1, save_one, "main")
    found = current(tmp_path)
    assert found is not None
    assert (found.version, found.path, found.digest, found.lineage) == (1, first, weight_digest(first), "main")
    publish(tmp_path, 2, save_two, "main")
    found = current(tmp_path)
    assert found is not None
    assert found.version == 2
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == ["1", "2", "CURRENT"]


@pytest.mark.parametrize(("save", "error"), [(fail, OSError), (save_nothing, BadInput)])
def test_a_failed_save_leaves_nothing(tmp_path: Path, save: object, error: type[Exception]) -> None:
    publish(tmp_path, 1, save_one, "main")
    with pytest.raises(error):
        publish(tmp_path, 2, save, "main")  # type: ignore[arg-type]
    found = current(tmp_path)
    assert found is not None
    assert found.version == 1
    assert sorted(p.name for p in (tmp_path / "policy").iterdir()) == ["1", "CURRENT"]


def test_a_version_is_never_overwritten(tmp_path: Path) -> None:
    publish(tmp_path, 1, save_one, "main")
    with pytest.raises(BadInput, match="is published"):
        publish(tmp_path, 1, save_two, "main")


def test_a_publisher_that_died_before_the_pointer_can_start_over(tmp_path: Path) -> None:
    publish(tmp_path, 1, save_one, "main")
    (tmp_path / "policy" / "2").mkdir()
    assert (publish(tmp_path, 2, save_two, "main") / "model.safetensors").read_bytes() == b"two"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": "x"}'])
def test_a_broken_pointer_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "CURRENT").write_text(text)
    with pytest.raises(BadInput, match="CURRENT"):
        current(tmp_path)


def test_a_pointer_to_nowhere_is_named(tmp_path: Path) -> None:
    publish(tmp_path, 1, save_one, "main").rename(tmp_path / "gone")
    with pytest.raises(BadInput, match="not there"):
        current(tmp_path)
