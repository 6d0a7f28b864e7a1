"""A certificate for ``localhost`` that nobody vouches for but the test that made it."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

MAKE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
NAMES = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and the certificate that a client has to trust."""
    certificate, key = folder / "localhost.pem", folder / "localhost.key"
    command = [*MAKE.split(), *NAMES, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate
