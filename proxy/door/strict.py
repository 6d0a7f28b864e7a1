"""What both planes refuse of a request's head, beyond what the HTTP parser below refuses already.

The parser is strict with lengths, chunks, names and line ends; what it lets through is here: protocol versions and
codings that another parser in front of us, or behind, may read otherwise, and tunnels.
"""

from __future__ import annotations

from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import HTTP_10, HTTP_11, HeadLike


def check_head(request: HeadLike) -> None:
    """Raises ``Refused``, after which the connection must end: what follows on it may be no request."""
    if request.version not in (HTTP_11, HTTP_10):
        raise Refused(505, "http_version", "this speaks HTTP/1.1")
    if request.method == "CONNECT":
        raise Refused(405, "no_tunnel", "this is no proxy for other hosts", headers={"Allow": "GET, POST"})
    coding = request.headers.get("Transfer-Encoding")
    if coding is None:
        return
    if request.version == HTTP_10:
        raise Refused(400, "bad_framing", "HTTP/1.0 has no Transfer-Encoding")
    if coding.strip().lower() != "chunked":
        raise Refused(501, "bad_framing", "the only Transfer-Encoding here is chunked")
