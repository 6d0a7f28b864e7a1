"""Runs one Python grader function; a script of its own in a confined process, with the standard library only.

``grader_child.py CODE REQUEST``: REQUEST is a JSON file {function, workspace, output, task, calls}; CODE is the folder
that holds the function's top-level module. The result is one JSON line on the stdout it was given; what the function
prints goes to stderr, and programs that it starts do not inherit that stdout. It must not import forge: it runs where
only the grader's own code is seen.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any


def main(code: str, request_file: str) -> None:
    answer = os.dup(1)  # not inheritable
    os.dup2(2, 1)
    request = json.loads(Path(request_file).read_text())
    sys.path.insert(0, code)
    module, _, name = request["function"].partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    given = {
        "workspace": Path(request["workspace"]),
        "output": request["output"],
        "task": request["task"],
        "calls": request["calls"],
    }
    takes = inspect.signature(function).parameters.values()
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes):
        given = {name: value for name, value in given.items() if name in {each.name for each in takes}}
    result = function(**given)
    os.write(answer, json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
