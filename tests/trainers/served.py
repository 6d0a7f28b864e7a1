"""A proxy in front of the scripted policy server, a program as the harness, tasks that it half solves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from forge.plugins.settings import Settings
from forge.run_config import RunConfig
from forge.runners import find
from forge.stack import serving
from tests.engine import ScriptedEngine, Turn

AGENT = """
import json, os, pathlib, sys, urllib.request
prompt = sys.argv[1]
def call(*messages):
    body = json.dumps({"model": "policy", "messages": list(messages)}).encode()
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, head)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
ask = {"role": "user", "content": prompt}
said = call(ask)
call({"role": "user", "content": "another " + prompt})
pathlib.Path("answer").write_text(said)
if "fail" in prompt:
    sys.exit(3)
"""
"""Two calls that share nothing but their beginning: a session of two rows."""
COMMAND = "python3 agent.py {prompt}"
TASKS = {
    "good": {"prompt": "do it", "grader": {"command": "grep -q yes answer"}},
    "bad": {"prompt": "please fail", "grader": {"command": "true"}},
}


@dataclass(frozen=True)
class Served:
    engine: ScriptedEngine
    settings: Settings
    """Their tasks: ``good`` is rewarded every other time, ``bad`` ends with exit code 3."""

    def told(self, **changes: Any) -> dict[str, Any]:
        """As a user writes them."""
        return {**{k: v for k, v in vars(self.settings).items() if k in Settings.__dataclass_fields__}, **changes}


@asynccontextmanager
async def proxied(folder: Path) -> AsyncIterator[Served]:
    data, tasks = folder / "data", folder / "tasks.jsonl"
    lines = ({"id": name, "files": {"agent.py": AGENT}, **task} for name, task in TASKS.items())
    tasks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with ScriptedEngine() as engine:
        turns = 0

        def answer(request: dict[str, Any]) -> Turn:
            nonlocal turns
            text = request["messages"][-1]["content"]
            if text != TASKS["good"]["prompt"]:
                return Turn("no more")
            turns += 1
            return Turn("yes" if turns % 2 else "no")

        engine.default = answer
        config = RunConfig(adapters=(), tasks=(), runner=find("unconfined"), data=data, run_id="x", policy=engine.url)
        async with serving(config, folder, print) as control:
            settings = Settings(
                control=control.url, control_token_file=str(data / "control.token"), harness="command",
                command=COMMAND, tasks=str(tasks), data=str(data), run_id="r", runner="unconfined", seconds=60.0,
            )  # fmt: skip
            yield Served(engine, settings)


@contextmanager
def proxied_elsewhere(folder: Path) -> Iterator[Served]:
    """The same in another thread, for trainers that are not async."""
    ready: Future[Served] = Future()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def main() -> None:
        async with proxied(folder) as served:
            ready.set_result(served)
            await ended.wait()

    def run() -> None:
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise
        finally:
            loop.close()

    thread = Thread(target=run)
    thread.start()
    try:
        yield ready.result()
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
