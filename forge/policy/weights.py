"""Weights on disk: their digest, and how a new version appears under ``DATA/policy/``.

Needs no torch: whoever has the weights gives a function that saves them into a directory. Not obvious: readers see
either the old CURRENT or the new one, whole, because both the directory and the pointer arrive by rename after a sync.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from forge.storage.errors import BadInput

POINTER = "CURRENT"
ADAPTER = "adapter"
"""Folder beside merged weights that holds the adapter alone, as peft and vLLM read it."""
READ_BYTES = 1 << 20


class Published(msgspec.Struct, frozen=True):
    """What ``policy/CURRENT`` says; in the file, ``path`` is relative to the folder that CURRENT lies in."""

    version: int
    path: Path
    digest: str
    lineage: str


def weight_digest(directory: Path) -> str:
    """sha256 over the safetensors files of a model directory, names and bytes, in name order."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise BadInput(f"{directory}: no *.safetensors file", "give a directory written by save_pretrained")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(READ_BYTES):
                digest.update(block)
    return digest.hexdigest()


def publish(data: Path, version: int, save: Callable[[Path], None], lineage: str) -> Path:
    """Save a version as ``DATA/policy/<version>/`` and point CURRENT at it; returns the directory."""
    policy = data / "policy"
    policy.mkdir(parents=True, exist_ok=True)
    final = policy / str(version)
    if (last := current(data)) is not None and last.version >= version:
        raise BadInput(
            f"version {last.version} is published in {policy}: {version} is no later one", "raise the version"
        )
    shutil.rmtree(final, ignore_errors=True)  # of a publisher that died before it moved the pointer
    building = policy / f".{version}.{os.getpid()}.tmp"
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        save(building)
        digest = weight_digest(building)
        sync_tree(building)
        building.rename(final)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    pointer = policy / f".{POINTER}.{os.getpid()}.tmp"
    pointer.write_bytes(msgspec.json.encode(Published(version, Path(final.name), digest, lineage), enc_hook=str))
    _sync(pointer)
    pointer.replace(policy / POINTER)
    _sync(policy)
    return final


def current(data: Path) -> Published | None:
    """The last published version, its path made whole; None if nothing was published."""
    pointer = data / "policy" / POINTER
    try:
        found = msgspec.json.decode(pointer.read_bytes(), type=Published, dec_hook=lambda kind, value: kind(value))
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise BadInput(f"{pointer}: not a policy pointer ({error})", "publish again, or remove the file") from error
    path = data / "policy" / found.path
    if not path.is_dir():
        raise BadInput(f"{pointer}: names {path}, which is not there", "publish again, or remove the file")
    return msgspec.structs.replace(found, path=path)


def sync_tree(folder: Path) -> None:
    """Everything in it is on the disk when this returns; before a rename makes it visible."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
