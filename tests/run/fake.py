"""A tiny harness for tests: a Python program that makes the calls it is told to, launched like any real one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from forge.adapters.harnesses.base import HarnessAdapter, Heard, Launch, LaunchRequest, Limits
from forge.adapters.harnesses.packages import Package
from forge.run_report import SessionReport
from forge.tasks import Task

PRELUDE = """
import json, os, pathlib, sys, time, urllib.error, urllib.request
prompt = os.environ["FAKE_PROMPT"]
def call(text=prompt, key=os.environ["FAKE_KEY"], base=os.environ["FAKE_URL"]):
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": text}]}).encode()
    head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(base + "/chat/completions", data=body, headers=head)
    with urllib.request.urlopen(request) as answer:
        said = json.load(answer)
    note(said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"])
    return said["choices"][0]["message"]["content"]
def note(prompt_tokens, output_tokens):
    log = pathlib.Path(os.environ["HOME"], "log")
    log.mkdir(exist_ok=True)
    with (log / "calls.jsonl").open("a") as file:
        print(json.dumps([prompt_tokens, output_tokens]), file=file)
"""


class FakeHarness(HarnessAdapter):
    name: ClassVar[str] = "fake"
    version: ClassVar[str] = "1"
    wire: ClassVar[str] = "chat"
    packages: ClassVar[tuple[Package, ...]] = ()
    transcripts: ClassVar[tuple[str, ...]] = ("log/*.jsonl",)

    def __init__(self, script: str, program: str = "python3") -> None:
        self._argv = (program, "-c", PRELUDE + script)

    def launch(self, request: LaunchRequest) -> Launch:
        return Launch(
            argv=self._argv,
            env={"FAKE_PROMPT": request.prompt, "FAKE_URL": request.base_url, "FAKE_KEY": request.api_key},
            files={"conf/context": str(request.context_tokens)},
            cwd=request.workspace,
            limits=Limits(seconds=request.seconds),
        )

    def final_text(self, stdout: str) -> str:
        return stdout.strip()

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        return [Heard(*json.loads(line)) for line in (folder / "log/calls.jsonl").read_text().splitlines()]


class OtherHarness(FakeHarness):
    """The same program under another name."""

    name: ClassVar[str] = "other"


@dataclass
class Seen:
    """A ``Watch`` that remembers."""

    said: list[str] = field(default_factory=list)
    reports: list[SessionReport] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def begun(self, task: Task, rollout_index: int) -> None: ...

    def done(self, report: SessionReport) -> None:
        self.reports.append(report)
