"""What the code never does, read from the code itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("forge", "proxy", "adapters", "storage")
LINKS = {ROOT / "forge" / name for name in FOLDERS[1:]}
FORBIDDEN_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "telnetlib", "xmlrpc"}
"""They run what they read, or nearly so."""
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "tempfile.mktemp", "torch.load"),
    *("yaml.load", "yaml.unsafe_load", "pd.read_pickle", "pandas.read_pickle"),
}
ARRAYS = {"numpy.load", "np.load"}
"""They read arrays of numbers, if told to."""
NO_PICKLE_ARGUMENTS = {"allow_pickle", "weights_only", "trust_remote_code"}


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if not LINKS & set(path.parents)]
    return [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in paths]


def dotted(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def faults(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (n.name for n in names if n.name.split(".")[0] in FORBIDDEN_MODULES)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in FORBIDDEN_MODULES:
                yield module
            case ast.Call(func=func, keywords=keywords):
                if dotted(func) in FORBIDDEN_CALLS:
                    yield dotted(func)
                if dotted(func) in ARRAYS and "allow_pickle" not in {keyword.arg for keyword in keywords}:
                    yield dotted(func)
                for keyword in keywords:
                    value = getattr(keyword.value, "value", None)
                    if keyword.arg == "shell" and value is not False:
                        yield "shell"
                    if keyword.arg in NO_PICKLE_ARGUMENTS and value is not (keyword.arg == "weights_only"):
                        yield keyword.arg
            case _:
                pass


def test_nothing_that_is_read_can_run() -> None:
    """No pickle, no eval, no shell: what we read is JSON, msgpack, Parquet, safetensors, GGUF and our own frames."""
    found = [f"{path}: {fault}" for path, tree in trees() for fault in faults(tree)]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        *("import pickle", "from pickle import loads", "eval(x)", "np.load(path)", "torch.load(path)", "os.system(x)"),
        *(
            "f(path, allow_pickle=True)",
            "run(x, shell=True)",
            "load(x, trust_remote_code=True)",
            "load(weights_only=0)",
        ),
    ],
)
def test_the_reading_finds_it(code: str) -> None:
    assert list(faults(ast.parse(code)))


@pytest.mark.parametrize("page", ["security.md", "operations.md"])
def test_every_test_that_a_promise_names_is_there(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / page).read_text())
    assert len(named) >= 4
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_folder_is_read() -> None:
    assert {path.parts[0] for path, _ in trees()} == set(FOLDERS)
