"""New weights through the control plane: the next calls carry their version and digest, and are theirs."""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import openai
import pytest

from forge.client import ControlClient
from forge.policy.weights import current, publish
from forge.storage.dataset import Dataset
from tests.e2e.conftest import Policy
from tests.proxy.process import proxy_process

QUESTION = [{"role": "user", "content": "Tell me of the sea. " * 40}]
"""Long enough to fill whole blocks of a prefix cache."""
MOVED = 0.5
"""Added to the final norm's weights: the new model differs at every token."""
NEW, RESTORED = 101, 102
"""Versions that no other test of this server publishes."""


def moved(model: Path, target: Path) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, target, dirs_exist_ok=True)
    tensors = load_file(target / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] + MOVED
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})


@lru_cache(maxsize=3)
def loaded(model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def fresh(model: Path, prompt: list[int], output: list[int]) -> list[float]:
    import torch

    with torch.inference_mode():
        logits = loaded(model)(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
    return [float(row.log_softmax(-1)[token]) for row, token in zip(logits, output, strict=True)]


async def test_the_next_calls_are_the_new_weights(policy: Policy, tmp_path: Path) -> None:
    """Field cases 173, 174: every cache is reset (vLLM's multimodal and encoder caches too), none is read again."""
    data = tmp_path / "data"
    async with proxy_process(data, policy.url, *policy.options) as proxy:
        async with ControlClient(proxy.control_url, proxy.token) as control:
            await ask(control)
            publish(data, NEW, lambda target: moved(policy.model, target), "e2e")
            new = current(data)
            assert new is not None
            try:
                await control.publish(version=NEW, path=new.path, digest=new.digest, lineage="e2e")
                await ask(control)
            finally:
                await control.publish(version=RESTORED, path=policy.model, digest=None, lineage="e2e")
        assert await proxy.stop() == 0, proxy.log.read_text()
    old_call, new_call = sorted(Dataset(data).calls(), key=lambda c: c.seq)
    assert new_call.policy_version_start == new_call.policy_version_end == NEW
    assert new_call.weight_digest == new.digest
    assert new_call.policy_lineage == "e2e"
    assert old_call.policy_version_end != NEW
    assert new_call.prompt_ids.tolist() == old_call.prompt_ids.tolist()
    for call, model in ((old_call, policy.model), (new_call, new.path)):
        expected = fresh(model, call.prompt_ids.tolist(), call.output_ids.tolist())
        assert call.output_log_probs.tolist() == pytest.approx(expected, abs=1e-3)


async def ask(control: ControlClient) -> None:
    sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 12}
    ticket = await control.open_session(sampling=sampling)
    async with openai.AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=0) as client:
        await client.chat.completions.create(model="m", messages=QUESTION)  # type: ignore[arg-type]
    await control.close_session(ticket.session_id, status="completed", reward=1.0)
