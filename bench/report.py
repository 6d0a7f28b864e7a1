"""The page of results and its data: every part as it was last measured, with the machine it was measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench import table
from bench.bars import BARS
from bench.figures import Figures

LIBRARIES: Final = ("aiohttp", "uvloop", "msgspec", "pyarrow", "numpy")

METHOD: Final = """\
## Method

- Ours is `forge proxy --record strict` with one worker, recording on, each client a session with its own key. Peers run
  with one worker and their defaults, in environments of their own. nginx is one unbuffered worker that records nothing.
- The policy server is a C stub (`bench/c/stub.c`) that answers vLLM's bodies with ids and log probabilities, the
  clients are a C program (`bench/c/load.c`) that sends its next call when the last has ended.
- CPU is that of the target's whole process tree, from the kernel's own clocks of its processes. Our decoder, which is
  never on a call's path, is counted apart, until it has caught up; the row "with decoder" has both.
- The target has a core of its own; stub, clients and decoder have the others. Bursts of the path bars are below a
  second and run at real-time priority where the system lets us.
- Before path and streams the machine's free memory is written to once. A virtual machine is given a page by its host
  when it first writes there; with memory that was not, ours took up to three times as long for a call of 128k, and who
  passes bytes on without keeping them as long as ever.
- Every round visits every target, in the reverse order of the round before. A ratio is taken within a round; the table
  gives the median over rounds, and the lowest and highest.
- Storage: seeded trajectories of 50 calls whose prompts grow from 4k to 60k tokens, through the proxy, its journal
  and its decoder. The limit is every new id at the entropy of its distribution and every log probability at 32 bits.
  JSON lines and "naive" (`json.loads` of both bodies, then one zstd Parquet file) hold ids and log probabilities alone.
  Decoding is timed from the first frame to the last part; the decoder has started, and made its catalog, before. What
  it does for the catalog and its checkpoint, which the naive file has none of, is in a row of its own. Both
  run at real-time priority where the system lets us.
- Open streams: memory is flat if a straight line through it, once all are at work, rises by less than 2 MB a minute;
  the decoder's lag is bounded if the last third of its parts waits no longer than 1.5 times the first.
"""

REPEAT: Final = """\
## Again

`make bench` on a quiet machine; a C compiler, nginx and a package index must be at hand. `python -m bench --only path
--targets direct,nginx,ours` runs a part of it; `python -m bench --help` names the parts.
"""


def write(page: Path, found: Mapping[str, Figures]) -> None:
    """Parts that were not run now stay as they were."""
    data = page.with_suffix(".json")
    known: dict[str, Any] = json.loads(data.read_text()) if data.exists() else {}
    for name, figures in found.items():
        known[name] = {"when": time.strftime("%Y-%m-%d"), "where": machine(), **figures.to_json()}
    data.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")
    page.write_text(_page(known))


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    size = f"{os.cpu_count()} cores, {memory} GB, load average {os.getloadavg()[0]:.0f}"
    return (
        f"{_processor()}, {size}; Linux {platform.release()}; Python {platform.python_version()}; {libraries}; "
        f"commit {_commit()}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "?")


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _page(known: Mapping[str, Any]) -> str:
    measured = {name: Figures.from_json(said) for name, said in known.items()}
    parts = {bar.part: Figures() for bar in BARS} | measured
    lines = ["# Benchmarks", "", "Written by `make bench`. " + table.summary(parts).replace("\n", "\n\n"), ""]
    lines += [_line(table.HEAD), _line(("---",) * len(table.HEAD)), *map(_line, table.rows(parts)), ""]
    lines += ["`aim`: the bar holds, and what we aim at too. `must`: the bar holds.", "", METHOD, REPEAT]
    lines += ["## All figures", ""]
    for name, said in known.items():
        lines += [f"### {name}", "", f"{said['when']}: {said['where']}.", ""]
        lines += [_line(("figure", "median", "spread (rounds)")), _line(("---",) * 3)]
        figures = parts[name].by_name.items()
        lines += [_line((figure, table.number(f.value), table.spread(f))) for figure, f in figures]
        lines += ["", *(f"- {note}" for note in parts[name].notes), ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
