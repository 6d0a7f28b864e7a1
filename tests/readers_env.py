"""Runs a command beside readers of Parquet nobody here wrote: ``python tests/readers_env.py -- pytest -m readers``.

They are large and no business of ours, so they live in an environment of their own (``.venv-readers``, made once). The
command sees ``FORGE_TEST_READERS``, the Python that has them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-readers"
REQUIREMENTS = ("polars==2.1.0", "pandas==3.1.1", "datasets==5.2.0", "ray==2.60.0", "daft==0.7.26")


def environment() -> Path:
    """Its Python; made anew where another list made it."""
    python = VENV / "bin" / "python"
    ready = VENV / ".ready"
    wanted = "\n".join(REQUIREMENTS)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making {VENV.name}: {', '.join(REQUIREMENTS)}; about 300 MB, a minute", flush=True)
        venv.create(VENV, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", *REQUIREMENTS], check=True)
        ready.write_text(wanted)
    return python


def main(args: list[str]) -> int:
    if args[:1] != ["--"] or not args[1:]:
        sys.exit(f"usage: {sys.argv[0]} -- COMMAND")
    env = {**os.environ, "FORGE_TEST_READERS": str(environment())}
    return subprocess.run(args[1:], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
