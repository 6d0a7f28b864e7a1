"""What leads one program through the interception: proxy and CA variables, and the CA file they name. Pure but for CAs.

No variable says "trust this too" for all programs, and most replace the store: so the file holds this machine's CAs and
ours. The system's own store is only read.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

PROXY: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
NO_PROXY: Final = ("NO_PROXY", "no_proxy")
LOOPBACK: Final = "localhost,127.0.0.1,::1"
CA: Final = (
    "SSL_CERT_FILE",  # OpenSSL: Python, Ruby; Go; Rust (native certificates); uv
    "NIX_SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",  # Python's requests
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",  # Node, Bun
    "DENO_CERT",
    "CODEX_CA_CERTIFICATE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "BUNDLE_SSL_CA_CERT",
    "npm_config_cafile",
    "NPM_CONFIG_CAFILE",
    "AWS_CA_BUNDLE",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "HTTPLIB2_CA_CERTS",
)
NODE: Final = {"NODE_USE_ENV_PROXY": "1"}
"""Node 24 and later reads the proxy variables then."""
SYSTEM_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where systems keep their CAs in one file, for a Python that was built to look elsewhere."""


def variables(proxy_url: str, ca: str) -> dict[str, str]:
    """``proxy_url`` with its credential; ``ca``: the CA file as the program sees it."""
    proxy = dict.fromkeys(PROXY, proxy_url) | dict.fromkeys(NO_PROXY, LOOPBACK)
    return proxy | dict.fromkeys(CA, ca) | NODE


def system_cas() -> str:
    """What this machine trusts, as PEM; empty where nothing says."""
    found = [ssl.DER_cert_to_PEM_cert(each) for each in ssl.create_default_context().get_ca_certs(binary_form=True)]
    if not found:
        files = (Path(name) for name in SYSTEM_BUNDLES)
        found = [file.read_text().rstrip("\n") + "\n" for file in files if file.is_file()][:1]
    return "".join(found)
