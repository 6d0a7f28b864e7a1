"""The end-to-end suite's policy server: the embedded one, or the vLLM that ``make test-vllm`` runs the suite beside."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge.children import Child

EMBEDDED = pytest.param("embedded", marks=pytest.mark.model)
VLLM = pytest.param("vllm", marks=pytest.mark.vllm)
START_S = 600.0


@dataclass(frozen=True)
class Policy:
    url: str
    model: Path
    key_file: Path | None

    @property
    def options(self) -> list[str]:
        """Of ``forge proxy``."""
        return ["--upstream-key-file", str(self.key_file)] if self.key_file else []


@pytest.fixture(scope="session", params=[EMBEDDED, VLLM])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    from forge.policy.model import ensure_model

    if request.param == "vllm":
        yield Policy(os.environ["FORGE_TEST_VLLM"], Path(os.environ["FORGE_TEST_VLLM_MODEL"]), None)
        return
    folder = tmp_path_factory.mktemp("policy")
    key, ready = folder / "key", folder / "ready.json"
    key.write_text("e2e-policy-key")
    model = ensure_model()
    args = ["policy", "serve", "--port", "0", "--key-file", str(key), "--ready-file", str(ready), "--model", str(model)]
    child = Child("policy server", args, folder / "log")
    try:
        yield Policy(str(asyncio.run(child.ready(ready, START_S))["base_url"]), model, key)
    finally:
        asyncio.run(child.stop(10.0))
