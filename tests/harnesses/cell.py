"""One cell of the matrix: one real harness, one scenario, through the proxy or at the engine itself.

The same launch by the same runner either way; only the base URL and the key differ.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge.adapters.harnesses.base import HarnessAdapter, LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from forge.runners import find as find_runner
from forge.runners.base import Ending, Folders, Job, Mount
from forge.storage.records import Call, CallKind, CallStatus, Sample
from tests.engine import Json, ScriptedEngine, Served
from tests.harnesses.acting import Script
from tests.harnesses.scenarios import Scenario
from tests.proxy.serving import QUICK, serving

PROMPT = "Create hello.txt containing hi, then say that it is done."
CONTEXT = 131072
SECONDS = 150.0
SLOW_S = 3.0
"""How long the slow first token takes: several keepalives."""
LIMITS = replace(QUICK, keepalive_s=0.5, retry_after_s=5.0, drain_s=1.0)


class Templated(ScriptedEngine):
    """Writes a call's arguments as vLLM and the models' templates do: read, and spaced anew, however they were sent."""

    def render(self, request: Json) -> str:
        return super().render(request | {"messages": [_spaced(message) for message in request["messages"]]})


def _spaced(message: Json) -> Json:
    calls = [
        call | {"function": call["function"] | {"arguments": _arguments(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return message | {"tool_calls": calls} if calls else message


def _arguments(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return text


@dataclass(frozen=True)
class Outcome:
    """What a user of the harness sees."""

    ended: str
    """``exit N``, or ``time limit``."""
    hello: bool
    """The tool did its work."""
    said: str
    """The agent's last message."""


@dataclass(frozen=True)
class Cell:
    harness: str
    scenario: str
    outcome: Outcome
    served: Sequence[Served]
    """What the engine was asked."""
    calls: Sequence[Call] = ()
    samples: Sequence[Sample] = ()
    decode: Callable[[Sequence[int]], str] = str
    """Ids of the engine as text."""

    @property
    def kinds(self) -> Counter[str]:
        return Counter(call.kind for call in self.calls)

    @property
    def causes(self) -> Counter[str]:
        """Why rows began."""
        return Counter(str(sample.join_cause) for sample in self.samples)

    def check(self, scenario: Scenario) -> list[str]:
        """What does not hold of the recording."""
        wrong: list[str] = []
        attempts = sum(len(json.loads(call.attempts)) if call.attempts else 1 for call in self.calls)
        if attempts != len(self.served):
            wrong.append(f"the engine served {len(self.served)} calls, the rows tell of {attempts}")
        given = {tuple(s.prompt_ids): s.output_ids for s in self.served if s.ended and s.status == 200}
        for call in self.calls:
            if call.status != CallStatus.OK:
                continue
            if not call.trainable:
                wrong.append(f"call {call.call_id} cannot train: {call.untrainable_reason}")
            if given.get(tuple(call.prompt_ids.tolist())) != call.output_ids.tolist():
                wrong.append(f"call {call.call_id} holds other ids than the engine's")
            if len(call.output_log_probs) != len(call.output_ids):
                wrong.append(f"call {call.call_id} lacks log probs")
        agentic = [call for call in self.calls if call.kind in (CallKind.MAIN, CallKind.SUBAGENT)]
        if scenario.tools and len(agentic) < 2:
            wrong.append("an agentic session of one call")
        if scenario.name == "sub-agent" and not self.kinds[CallKind.SUBAGENT]:
            wrong.append(f"no call is known for a sub-agent's: {dict(self.kinds)}")
        if scenario.must_end_well and not self.outcome.said and not (scenario.tools and self.outcome.hello):
            wrong.append(f"the task was not done: {self.outcome}")
        return wrong


async def through_proxy(
    adapter: HarnessAdapter, scenario: Scenario, tmp: Path, *, like_qwen: bool = False, **options: Any
) -> Cell:
    """``options``: the proxy's."""
    script = scenario.script()
    engine = Templated(max_model_len=CONTEXT, like_qwen=like_qwen)
    async with serving(tmp, engine, decoder=True, limits=LIMITS, **options) as s:
        s.engine.default = script
        ticket = await s.control.open_session(
            task_id="hello", harness=adapter.name, harness_version=adapter.version, sampling={"temperature": 1.0}
        )
        outcome = await _launch(adapter, tmp / "job", ticket.base_url, ticket.api_key, script)
        calls = await s.control.calls(ticket.session_id)
        closed = await s.control.close_session(ticket.session_id, reward=1.0, grace=2.0)
        return Cell(
            adapter.name, scenario.name, outcome, list(s.engine.served), calls, closed.samples, engine.tokenizer.decode
        )


async def direct(adapter: HarnessAdapter, scenario: Scenario, tmp: Path) -> Cell:
    """At the engine itself, for harnesses that speak chat."""
    script = scenario.script()
    async with Templated(max_model_len=CONTEXT) as engine:
        engine.default = script
        outcome = await _launch(adapter, tmp / "job", f"{engine.url}/v1", "none", script)
        return Cell(adapter.name, scenario.name, outcome, list(engine.served))


async def _launch(adapter: HarnessAdapter, root: Path, base_url: str, api_key: str, script: Script) -> Outcome:
    runner, folders, cache = find_runner("local"), Folders.make(root), cache_folder()
    places = runner.places(folders, cache)
    launch = adapter.launch(
        LaunchRequest(
            base_url=base_url,
            api_key=api_key,
            model="policy",
            prompt=PROMPT,
            workspace=places.workspace,
            home=places.home,
            installs=places.installs,
            context_tokens=CONTEXT,
            output_tokens=4096,
            seconds=SECONDS,
        )
    )
    for name, text in launch.files.items():
        path = folders.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    job = Job(
        argv=launch.argv,
        env=launch.env,
        cwd=launch.cwd,
        seconds=launch.limits.seconds,
        folders=folders,
        stdout=root / "stdout",
        stderr=root / "stderr",
        path=launch.path,
        mounts=tuple(Mount(cache / p.folder, f"{places.installs}/{p.folder}") for p in adapter.packages),
    )
    async with asyncio.TaskGroup() as group:
        opener = group.create_task(_open_late(script))
        ending = await runner.run(job)
        opener.cancel()
    said = adapter.final_text(job.stdout.read_text(errors="replace")).strip()
    return Outcome(_ended(ending), (folders.workspace / "hello.txt").exists(), said)


async def _open_late(script: Script) -> None:
    """The slow first token: the delay is what is tested."""
    if script.slow is not None:
        await script.slow.waiting.wait()
        await asyncio.sleep(SLOW_S)
        script.slow.open()


def _ended(ending: Ending) -> str:
    if ending.not_started is not None:
        return f"not started: {ending.not_started}"
    return "time limit" if ending.timed_out else f"exit {ending.exit_code}"


def facts(cell: Cell) -> dict[str, Any]:
    """What the documents' tables are made of."""
    return {
        "harness": cell.harness,
        "scenario": cell.scenario,
        "ended": cell.outcome.ended,
        "hello": cell.outcome.hello,
        "said": cell.outcome.said[:80],
        "served": len(cell.served),
        "calls": len(cell.calls),
        "statuses": dict(Counter(call.status for call in cell.calls)),
        "kinds": dict(cell.kinds),
        "rows": len(cell.samples),
        "causes": dict(cell.causes),
    }
