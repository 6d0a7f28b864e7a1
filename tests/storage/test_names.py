"""A name that becomes part of a path stays in its folder, wherever it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.config import ProxyConfig
from forge.storage.errors import BadInput
from forge.storage.names import check_name

BAD = [
    "",
    ".",
    "..",
    "../../x",
    "a/b",
    "a\\b",
    "/etc",
    ".hidden",
    "a\x00b",
    "a b",
    "%2e%2e",
    "x" * 129,
    "\uff0e\uff0e",
    "-rf",
    "a\n",
]


@pytest.mark.parametrize("name", BAD)
def test_what_could_lead_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the run"):
        check_name("the run", name)
    with pytest.raises(BadInput, match="the run"):
        ProxyConfig(data=tmp_path, run_id=name)


@given(st.text(max_size=140))
def test_what_is_let_through_stays_inside(name: str) -> None:
    root = Path("/srv/of/it")
    try:
        checked = check_name("it", name)
    except BadInput:
        return
    assert (root / checked).parent == root
    assert (root / checked).resolve().is_relative_to(root)
    assert checked.isascii()
