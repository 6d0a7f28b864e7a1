"""The log: lines for people, objects for machines, and no secret in either."""

from __future__ import annotations

import json
import logging

import pytest

from forge.proxy.logs import JsonLines, TextLines
from forge.proxy.redaction import REDACTED, redact

KEY = "sk-planted0key0planted"


def record(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("forge.x", logging.WARNING, __file__, 1, message, args, info)


def test_a_json_line_has_the_messages_own_names() -> None:
    line = json.loads(
        JsonLines().format(record("call ended: session_id=%s calls=%d ratio=%.2f at %s", "s01", 3, 0.5, "x"))
    )
    assert line["message"] == "call ended: session_id=s01 calls=3 ratio=0.50 at x"
    assert {n: line[n] for n in ("session_id", "calls", "ratio", "level", "logger")} == {
        "session_id": "s01",
        "calls": 3,
        "ratio": 0.5,
        "level": "WARNING",
        "logger": "forge.x",
    }
    assert line["time"].endswith("+00:00")


def test_odd_messages_are_lines_too() -> None:
    for message, args in (
        ("100%% of %s", ("x",)),
        ("plain", ()),
        ('"quotes"\nand lines=%r', ({"a": 1},)),
        ("%s=%s", (1, 2)),
    ):
        assert "\n" not in JsonLines().format(record(message, *args))
        assert json.loads(JsonLines().format(record(message, *args)))["message"] == message % args if args else message


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_no_form_says_a_secret(form: logging.Formatter) -> None:
    try:
        raise ValueError(f"the key {KEY} is bad")
    except ValueError as error:
        text = form.format(record("session_id=%s key=%s", KEY, f"Bearer {KEY}", error=error))
    assert KEY not in text
    assert REDACTED in text
    assert "ValueError" in text


@pytest.mark.parametrize(
    "plain",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "policy server joined: url=http://127.0.0.1:8000 engine=vllm version=0",
        "the bearer of bad news; basic authentication failed; a cookie jar; task-sk",
        "call c01m8p2193nek433z4swqvww5v1 of session 01m8p2193nek433z4swqvww5v1 at 00000001:4096",
        '{"error":{"message":"`messages`: Input should be a valid list","code":400}}',
    ],
)
def test_what_is_no_secret_stays(plain: str) -> None:
    assert redact(plain) == plain
    assert redact(plain.encode()) == plain.encode()


def test_a_long_text_is_searched_in_linear_time() -> None:
    for piece in ("a:", "://", "secret ", "eyJ", "-----BEGIN PRIVATE KEY-----", "cookie=", "Bearer ", "&key="):
        text = piece * (200_000 // len(piece))
        assert len(redact(text)) <= len(text) + 20 * text.count(piece)
