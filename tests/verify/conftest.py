"""The real model, other weights of it, and a fresh forward pass, for the tests where a number must be true."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forge.storage.records import Call

if TYPE_CHECKING:
    from forge.verify.model_scorer import ModelScorer


@pytest.fixture(scope="session")
def smollm2() -> Path:
    from forge.policy.model import ensure_model

    return ensure_model()


@pytest.fixture(scope="session")
def other_weights(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As after some training: every weight a little elsewhere."""
    import torch
    from safetensors.torch import load_file, save_file

    directory = tmp_path_factory.mktemp("weights") / "other"
    shutil.copytree(smollm2, directory)
    generator = torch.Generator().manual_seed(0)
    for path in directory.glob("*.safetensors"):
        moved = {
            name: tensor * (1 + 0.05 * torch.randn(tensor.shape, generator=generator))
            for name, tensor in load_file(path).items()
        }
        save_file(moved, path, metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def fresh(smollm2: Path) -> ModelScorer:
    from forge.verify.model_scorer import ModelScorer

    return ModelScorer(smollm2)


@pytest.fixture(scope="session")
def asked(smollm2: Path) -> dict[str, list[Call]]:
    """Real calls by how they were sampled; each row says only its temperature."""
    from tests.policy.served import serving
    from tests.verify.sampled import sampled

    async def run() -> dict[str, list[Call]]:
        async with serving(smollm2) as served:
            return {
                "plain": await sampled(served, directory=smollm2),
                "cooled": await sampled(served, directory=smollm2, first=10, temperature=0.7),
                "cut": await sampled(served, directory=smollm2, top_p=0.9, sent={"temperature": 1.0}),
            }

    return asyncio.run(run())


@pytest.fixture
def calls(asked: dict[str, list[Call]]) -> list[Call]:
    """Sampled as their rows say, at temperature 1."""
    return list(asked["plain"])


@pytest.fixture
def cooled(asked: dict[str, list[Call]]) -> list[Call]:
    """The same at temperature 0.7."""
    return list(asked["cooled"])
