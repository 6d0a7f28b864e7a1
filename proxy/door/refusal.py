"""A request that is refused before it is a call: raised anywhere at the door, answered in the dialect's own shape."""

from __future__ import annotations

from collections.abc import Mapping


class Refused(Exception):
    """``message`` may name what was asked, never a key."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})
