"""Takes out what looks like a secret: of engines' errors, of what runners say, of every line of the log.

Owns the shapes of secrets, and of what a terminal would obey. It is the last line: keys are not written in the first
place, and this finds those that somebody else quotes. Never applied to what a gradient reads (prompts, answers, token
ids).
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

Text = TypeVar("Text", bytes, str)

REDACTED: Final = "[redacted]"
_NAMES: Final = (
    r"authorization|proxy-authorization|x-api-key|x-goog-api-key|api[-_]?key|access[-_]?token|refresh[-_]?token"
    r"|client[-_]?secret|x-amz-security-token|aws_secret_access_key|aws_session_token|secret|password|passwd"
)
_SHAPES: Final = "|".join(
    (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",  # JSON web token
        r"\bfs_[a-z0-9]{12,32}_[0-9a-f]{8,}",  # a session's key
        r"\bsk-[\w-]{8,}",  # OpenAI, Anthropic, OpenRouter
        r"\b(?:gh[opsur]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,})",
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
        r"\bAIza[\w-]{30,}",  # Google
        r"\b(?:hf_\w{16,}|xox[abeprs]-[\w-]{8,}|npm_\w{30,}|pypi-[\w-]{30,})",
    )
)
_PATTERN: Final = (
    rf"(?P<shape>{_SHAPES})"
    rf"|(?i:(?P<before>\b(?:{_NAMES})\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?:bearer|basic)\s+)?)(?P<value>[^\s\"'\\,;&}})]{{3,}}))"
    rf"|(?i:(?P<cookie>\b(?:set-)?cookie\\?[\"']?\s*[:=]\s*\\?[\"']?)(?P<jar>[^\"'\\\r\n]+))"
    rf"|(?i:(?P<scheme>\b(?:bearer|basic)\s+)(?P<token>(?=[\w.~+/-]*[\d_=.-])[\w.~+/=-]{{6,}}))"
    rf"|(?i:(?P<query>[?&](?:key|token|auth|sig|signature)=)(?P<given>[^&\s\"'\\]+))"
    rf"|(?P<url>://[^\s/:@\"']*:)(?P<word>[^\s/@\"']+)(?=@)"
)
_STR: Final = re.compile(_PATTERN)
_BYTES: Final = re.compile(_PATTERN.encode())
_KEPT: Final = ("before", "cookie", "scheme", "query", "url")


def redact(text: Text) -> Text:
    """``text`` with every secret replaced; JSON stays JSON."""
    if isinstance(text, bytes):
        return _BYTES.sub(_instead_bytes, text)
    return _STR.sub(_instead, text)


def _instead(found: re.Match[str]) -> str:
    return next((found[name] for name in _KEPT if found[name] is not None), "") + REDACTED


def _instead_bytes(found: re.Match[bytes]) -> bytes:
    return next((found[name] for name in _KEPT if found[name] is not None), b"") + REDACTED.encode()


_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def harmless(text: str) -> str:
    """``text`` for a terminal: without control characters, escape sequences' first among them, and without marks that
    turn the direction of writing. Line ends and tabs stay."""
    return _OBEYED.sub("", text)
