"""What the chat lane gives for a real vLLM answer that we asked more of equals the answer nobody asked more of.

The pairs in ``golden/vllm-0.32.0`` were taken from one server, temperature 0: ``*-asked`` with our members,
``*-plain`` and ``*-usage`` without. Asked, vLLM also sends chunks with an empty delta for tokens that its tool
parser holds back; unasked it skips them, so they must not reach a client either.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import Overrides
from forge.proxy.engines import ENGINES

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"


def without_chance(body: bytes) -> bytes:
    """Ids and clock of a particular call taken out; everything else is compared byte for byte."""
    body = re.sub(rb"chatcmpl-(tool-)?[0-9a-f]{16}", rb"chatcmpl-\1X", body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("asked", "plain", "request_members"),
    [
        ("text-whole-asked", "text-whole-plain", {}),
        ("tool-whole-asked", "tool-whole-plain", {}),
        ("text-stream-asked", "text-stream-plain", {"stream": True}),
        ("text-stream-asked", "text-stream-usage", {"stream": True, "stream_options": {"include_usage": True}}),
        ("tool-stream-asked", "tool-stream-plain", {"stream": True}),
        ("tool-stream-asked", "tool-stream-usage", {"stream": True, "stream_options": {"include_usage": True}}),
    ],
)
def test_the_client_gets_what_it_would_have_got(
    asked: str, plain: str, request_members: dict[str, object], piece: int
) -> None:
    dialect, engine = DIALECTS["chat"], ENGINES["vllm"]
    request = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}], **request_members})
    outgoing = dialect.request(request.encode(), engine=engine, overrides=Overrides(), call_id="c0")
    answer = dialect.answer(outgoing, engine=engine, call_id="c0", created=0)
    body = (GOLDEN / f"{asked}.txt").read_bytes()
    got = b"".join(p.data for at in range(0, len(body), piece) for p in answer.feed(body[at : at + piece]))
    got += b"".join(p.data for p in answer.finish())
    assert without_chance(got) == without_chance((GOLDEN / f"{plain}.txt").read_bytes())
    assert answer.complete
