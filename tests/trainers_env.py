"""Runs the tests marked ``trainers`` beside the trainers themselves: ``python tests/trainers_env.py [pytest options]``.

verl, TRL and Tinker pin and pull in far more than Forge, so they live in an environment of their own
(``.venv-trainers``, made once; 2 GB, about five minutes). verl's agent loop imports what its wheel does not require:
that is named here. torch is installed first, so that nothing else chooses a build of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-trainers"
TORCH = os.environ.get("TORCH", "torch==2.13.0")
TRAINERS = ("verl==0.9.1", "trl==1.16.0", "tinker==0.38.0")
VERL_TOO = ("cachetools", "uvicorn", "fastapi", "aiohttp", "TransferQueue==0.1.11")
TESTS = ("pytest", "pytest-asyncio", "pytest-timeout", "hypothesis")


def environment() -> Path:
    """Its Python, made if it is not there."""
    python = VENV / "bin" / "python"
    ready = VENV / ".ready"
    if not ready.exists():
        print(f"making {VENV.name} with {', '.join(TRAINERS)}: about 2 GB, five minutes", flush=True)
        venv.create(VENV, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*install, TORCH], check=True)
        subprocess.run([*install, TORCH, *TRAINERS, *VERL_TOO, *TESTS, "--editable", str(ROOT)], check=True)
        ready.touch()
    return python


def main(args: list[str]) -> int:
    # Their warnings are not ours to mend; ours fail the other stages.
    command = [
        str(environment()),
        "-m",
        "pytest",
        "-m",
        "trainers",
        "tests/trainers/test_real.py",
        "tests/trainers/test_losses.py",
        "-W",
        "ignore",
        *args,
    ]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return subprocess.run(command, env=env, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
