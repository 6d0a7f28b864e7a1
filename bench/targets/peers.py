"""Other proxies, each in an environment of its own: two routers that record nothing, a recording gateway, LiteLLM.

Owns their pins, their installation and how each is started. LiteLLM 1.107 was taken from the index as compromised: the
pin goes around it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import process, wire
from bench.setting import CACHE, Missing, Setting, answers, free_port, started
from bench.targets.base import Running

PINS: Final = {
    "vllm-router": "vllm-router==0.1.17",
    "sglang-router": "sglang-router==0.3.2",
    "rllm-model-gateway": "rllm-model-gateway==0.1.0",
    "litellm": "litellm[proxy]==1.100.5",
}
START_S: Final = 120.0


def installed(name: str) -> Path:
    """The program, in an environment that is made on first use. Raises ``Missing``."""
    pin = PINS[name]
    version = pin.partition("==")[2]
    home = CACHE / f"{name}-{version}"
    program = home / "bin" / name
    if (home / "whole").exists():
        return program
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is None:
        raise Missing("uv is not here", "make setup")
    shutil.rmtree(home, ignore_errors=True)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    for command in (
        [uv, "venv", "--quiet", "--python", python, str(home)],
        [uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), pin],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"{pin} cannot be installed ({done.stderr.strip()[-200:]})", "see the package index")
    (home / "whole").touch()
    return program


@contextmanager
def vllm_router(set_: Setting, upstream: int) -> Iterator[Running]:
    yield from _router("vllm-router", set_, upstream)


@contextmanager
def sglang_router(set_: Setting, upstream: int) -> Iterator[Running]:
    yield from _router("sglang-router", set_, upstream, "launch")


def _router(name: str, set_: Setting, upstream: int, *more: str) -> Iterator[Running]:
    program = installed(name)
    folder = set_.work / name
    folder.mkdir(exist_ok=True)
    port, metrics = free_port(), free_port()
    command = [str(program), *more, "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--prometheus-port", str(metrics)]
    command += ["--log-level", "error"]
    yield from _serving(name, command, folder, port)


@contextmanager
def rllm_gateway(set_: Setting, upstream: int) -> Iterator[Running]:
    program = installed("rllm-model-gateway")
    folder = set_.work / "rllm"
    folder.mkdir(exist_ok=True)
    port = free_port()
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--db-path", str(folder / "calls.db")]
    command += ["--worker", f"http://127.0.0.1:{upstream}", "--log-level", "error"]
    yield from _serving("rllm", command, folder, port, prefix="/sessions/bench")


@contextmanager
def litellm(set_: Setting, upstream: int) -> Iterator[Running]:
    program = installed("litellm")
    folder = set_.work / "litellm"
    folder.mkdir(exist_ok=True)
    port = free_port()
    config = folder / "config.yaml"
    config.write_text(
        f"model_list: [{{model_name: {wire.MODEL}, litellm_params: {{model: openai/{wire.MODEL}, "
        f"api_base: 'http://127.0.0.1:{upstream}/v1', api_key: none}}}}]\n"
    )
    command = [str(program), "--host", "127.0.0.1", "--port", str(port), "--config", str(config)]
    yield from _serving("litellm", [*command, "--num_workers", "1", "--telemetry", "False"], folder, port)


def _serving(name: str, command: list[str], folder: Path, port: int, prefix: str = "") -> Iterator[Running]:
    pin = next(pin for key, pin in PINS.items() if key.startswith(name))
    with started(command, folder / "log", cwd=folder) as running:
        process.until(lambda: answers(port) or running.poll() is not None, f"{name} answers", START_S)
        if running.poll() is not None:
            said = (folder / "log").read_text(errors="replace").strip()[-300:]
            raise Missing(f"{name} ended with {running.returncode}", said)
        yield Running(name, port, [running.pid], prefix, version=pin.partition("==")[2])
