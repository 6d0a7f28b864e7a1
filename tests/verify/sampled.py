"""Calls that a real model was really asked for, as rows; and what the audit says of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from forge.policy.weights import weight_digest
from forge.storage.dataset import Dataset
from forge.storage.records import Call
from forge.verify.audit import audit
from forge.verify.report import Kind, Level, Report, Thresholds
from forge.verify.scores import Scorer
from tests.policy.served import Served
from tests.verify.made import RUN, call, write

QUESTIONS = (
    "What is the weather like on a sunny day?",
    "Name three animals.",
    "Tell me about the sea.",
    "Why is the sky blue?",
)
MAX_TOKENS = 20


async def sampled(
    served: Served,
    *,
    first: int = 0,
    questions: Sequence[str] = QUESTIONS,
    system: str = "",
    sent: dict[str, Any] | None = None,
    directory: Path,
    **asked: Any,
) -> list[Call]:
    """One call per question and session. ``asked`` is what the server gets, ``sent`` what the row says it got."""
    text = served.server.text
    head = [{"role": "system", "content": system}] if system else []
    prompts = [text.encode(text.render([*head, {"role": "user", "content": q}], None)) for q in questions]
    asked = {"temperature": 1.0, "max_tokens": MAX_TOKENS, "ignore_eos": True} | asked
    choices = await asyncio.gather(*(served.ask(prompt, **asked) for prompt in prompts))
    return [
        call(
            f"s{first + number}",
            number,
            prompt,
            choice["token_ids"],
            output_log_probs=np.asarray(choice["logprobs"]["token_logprobs"], dtype=np.float32),
            response=json.dumps({"role": "assistant", "content": choice["text"]}),
            sampling_sent=json.dumps(sent or {"temperature": asked["temperature"]}),
            weight_digest=weight_digest(directory),
            engine="embedded",
        )
        for number, (prompt, choice) in enumerate(zip(prompts, choices, strict=True))
    ]


async def audited(data: Path, calls: Sequence[Call], scorer: Scorer, **limits: float) -> Report:
    sessions: dict[str, list[Call]] = {}
    for each in calls:
        sessions.setdefault(each.session_id, []).append(each)
    write(data, sessions)
    return await audit(Dataset(data), RUN, scorer, size=32, limits=Thresholds(**limits))


def kinds(report: Report) -> set[Kind]:
    return {finding.kind for finding in report.findings if finding.level is Level.FAIL}


def where(report: Report, kind: Kind) -> tuple[str, ...]:
    (found,) = [finding for finding in report.findings if finding.kind is kind]
    return found.where


def with_log_probs(each: Call, log_probs: np.ndarray) -> Call:
    return replace(each, output_log_probs=log_probs.astype(np.float32))
