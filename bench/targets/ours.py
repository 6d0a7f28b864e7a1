"""``forge proxy`` as users start it: one worker, recording on, strict, its decoder beside it.

The one non-obvious fact: the decoder is another process and never on a call's path. Its CPU time is counted apart, and
it works on the cores of the clients.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import forge
from bench import process
from bench.setting import Setting, started
from bench.targets.base import Running
from forge.storage.checkpoint import progress
from forge.storage.dataset import Dataset

START_S: Final = 180.0
SETTLE_S: Final = 600.0
"""For the decoder to catch up."""


@dataclass(slots=True)
class Ours(Running):
    control: str = ""
    token: str = ""
    data: Path = field(default_factory=Path)

    def pids(self) -> list[int]:
        return [pid for pid in process.tree(self.roots) if "decode" not in process.command_of(pid)]

    def aside(self) -> list[int]:
        return [pid for pid in process.tree(self.roots) if "decode" in process.command_of(pid)]

    def headers(self, clients: int) -> list[str]:
        """Each client is a harness with a session of its own."""
        return [f"authorization: Bearer {self.open()['api_key']}" for _ in range(clients)]

    def open(self) -> dict[str, Any]:
        return self.ask("POST", "/sessions", {})

    def settle(self) -> None:
        """The end of an empty session bounds a part of the dataset; then the decoder works until it is done."""
        self.ask("POST", f"/sessions/{self.open()['session_id']}/close", {"status": "completed"})

        def whole() -> bool:
            return progress(self.data).counts.rows >= self.calls

        process.until(whole, "every call is in the dataset", SETTLE_S, step=0.1)

    def check(self) -> None:
        """Every call is a row that may be trained on; what costs nothing because it is not there is no figure."""
        tables = Dataset(self.data).call_tables(["untrainable_reason"])
        worth = Counter(reason for table in tables for reason in table["untrainable_reason"].to_pylist())
        if worth != Counter({None: self.calls}):
            raise RuntimeError(f"of {self.calls} calls these are in the dataset, by why they cannot train: {worth}")

    def ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Of the control plane."""
        said, _ = self.ask_raw(method, path, body, "application/json")
        return dict(json.loads(said))

    def ask_raw(self, method: str, path: str, body: dict[str, Any], accept: str) -> tuple[bytes, float]:
        """The answer, and the seconds until it was there."""
        headers = {"Authorization": f"Bearer {self.token}", "Accept": accept}
        request = urllib.request.Request(self.control + path, json.dumps(body).encode(), headers, method=method)
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=600) as reply:
            said = reply.read()
        return said, time.monotonic() - began


@contextmanager
def ours(set_: Setting, upstream: int, *, data: Path | None = None, decoder: bool = True) -> Iterator[Ours]:
    data = data or set_.work / "ours"
    ready = data.parent / f"{data.name}.ready"
    profiled = ["-m", "cProfile", "-o", str(set_.profile.resolve())] if set_.profile else []
    command = [
        sys.executable,
        *profiled,
        "-m",
        "forge",
        "proxy",
        "--data",
        str(data),
        "--port",
        "0",
        "--control-port",
        "0",
    ]
    command += ["--upstream", f"http://127.0.0.1:{upstream}", "--record", "strict", "--run", "bench"]
    command += ["--ready-file", str(ready), *([] if decoder else ["--no-decoder"])]
    ready.unlink(missing_ok=True)
    with started(command, data.parent / f"{data.name}.log") as running:
        process.until(lambda: ready.exists() or running.poll() is not None, "forge proxy is ready", START_S)
        said = json.loads(ready.read_bytes())
        target = Ours(
            "ours",
            int(said["base_url"].rsplit(":", 1)[1].partition("/")[0]),
            [running.pid],
            version=forge.__version__,
            control=said["control_url"],
            token=Path(said["control_token_file"]).read_text().strip(),
            data=data,
        )
        if decoder:
            process.until(lambda: bool(target.aside()), "the decoder runs", START_S)
        yield target
