"""The variables name one proxy and one CA file; the file holds this machine's CAs and ours; the pins are whole."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from forge.intercept.environment import REQUIREMENTS
from forge.intercept.variables import system_cas, variables


def test_the_variables() -> None:
    made = variables("http://t:k@127.0.0.1:1", "/home/agent/ca.pem")
    assert {made[name] for name in made if name.lower() in ("http_proxy", "https_proxy", "all_proxy")} == {
        "http://t:k@127.0.0.1:1"
    }
    assert {"127.0.0.1", "localhost"} <= set(made["NO_PROXY"].split(","))
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"):
        assert made[name] == "/home/agent/ca.pem"
    assert made["NODE_USE_ENV_PROXY"] == "1"


def test_the_cas_are_those_that_this_machine_trusts(tmp_path: Path) -> None:
    there = ssl.create_default_context().get_ca_certs(binary_form=True)
    (tmp_path / "cas.pem").write_text(system_cas())
    again = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    again.load_verify_locations(tmp_path / "cas.pem")
    assert set(again.get_ca_certs(binary_form=True)) >= set(there)


def test_mitmproxy_is_pinned_by_hash_for_every_python() -> None:
    text = REQUIREMENTS.read_text()
    pins = re.findall(r"^([\w.-]+)==[\w.]+((?: ; [^\n]+?)?) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    markers = {marker for name, marker in pins if name == "mitmproxy"}
    assert markers == {" ; python_full_version < '3.12'", " ; python_full_version >= '3.12'"}
    assert len(pins) == len(re.findall(r"^\w.*==", text, re.MULTILINE))
    assert not re.search(r"https?://", text)
