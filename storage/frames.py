"""The frames of the journal: what each one says, and its bytes.

A frame's payload is a msgpack head (one of the structs below, tagged by ``t``) followed by raw blobs whose
lengths the head states. Decoding is a pure function of frames: nothing else is needed to make the dataset.
How frames lie in a file (length, crc32c, generation) is ``journal.py``'s.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec


class Frame(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="t", kw_only=True):
    """Base of all frames."""


class Open(Frame, tag="open", frozen=True, kw_only=True):
    """A call is accepted. Blobs: the harness's request body (decoded), then the body sent to the engine if
    ``sent_len`` >= 0 (else the request itself was sent). Both with references in place of media (``media_text.py``),
    which are stored by then."""

    call_id: str
    session_id: str
    run_id: str
    boot: int
    """Start number of the proxy over this data directory."""
    mono_us: int
    """Microseconds since that start, strictly increasing per writer."""
    writer: int
    wall_us: int
    dialect: str
    path: str
    """Route as the client asked for it, without query values."""
    stream: bool
    request_len: int
    sent_len: int = -1
    sent_shared: tuple[int, int, int] | None = None
    """Start and end of the part of the request that was sent as it is, and where in the sent body it stood: it is not
    among the ``sent_len`` bytes."""
    engine: str = ""
    replica: str = ""
    model_requested: str | None = None
    harness: str | None = None
    harness_version: str | None = None
    agent_id: str | None = None
    attribution: str = "key"
    """Which rule gave the session: key, path, header, body, prefix, implicit."""
    kind: str = "main"
    kind_rule: str = "default"
    retry_of: str | None = None
    headers: dict[str, str] = {}
    """Allow-listed request headers only."""
    sampling_asked: str | None = None
    sampling_sent: str | None = None
    edits: str | None = None
    policy_version: int | None = None
    policy_lineage: str | None = None
    weight_digest: str | None = None
    version_source: str = "unknown"
    logprobs_mode: str | None = None
    sampling_defaults: str | None = None
    """JSON object: what the policy server takes for sampling members that it is not sent, as the probe found."""
    template_hash: str | None = None
    tokenizer_hash: str | None = None


class Data(Frame, tag="data", frozen=True, kw_only=True):
    """Engine bytes as received, in order. Blob: the bytes."""

    call_id: str
    attempt: int = 0


class Close(Frame, tag="close", frozen=True, kw_only=True):
    """The call ended. One per ``open``; a second one, of a call whose answer was withheld because the disk refused the
    first, takes its place."""

    call_id: str
    status: str
    http_status: int | None = None
    """Status the client got."""
    engine_status: int | None = None
    content_type: str = ""
    """The engine's content type: tells the decoder a stream from a whole body."""
    attempt: int = 0
    """The attempt whose data frames are the answer."""
    attempts: str | None = None
    error: str | None = None
    delivered: int = 0
    delivered_sha256: str | None = None
    first_byte_us: int | None = None
    end_us: int | None = None
    replica: str | None = None
    """The one that answered, where attempts went to more than one."""
    policy_version_start: int | None = None
    """What it served when it was asked, where that was not at once."""
    policy_version: int | None = None
    weight_digest: str | None = None
    version_spans: str | None = None
    """JSON array of [version, start, end) over the output tokens, where the generation was given up and gone on with;
    the last end is null."""


class SessionFrame(Frame, tag="session", frozen=True, kw_only=True):
    """A session was opened, changed, rewarded or closed: the whole new state as JSON of ``records.Session``."""

    session_id: str
    run_id: str
    event: str
    """open, reward, close."""
    revision: int
    state: str
    wall_us: int


class Policy(Frame, tag="policy", frozen=True, kw_only=True):
    """A replica's policy version changed."""

    replica: str
    policy_version: int
    policy_lineage: str | None = None
    weight_digest: str | None = None
    wall_us: int


class Boot(Frame, tag="boot", frozen=True, kw_only=True):
    """The proxy started: first frame of each start."""

    boot: int
    run_id: str
    wall_us: int
    forge_version: str


class Cut(Frame, tag="cut", frozen=True, kw_only=True):
    """Bounds one part of the dataset: the calls closed, and the sessions changed, since the last cut."""

    number: int
    wall_us: int
    unsettled: tuple[str, ...] = ()
    """Calls whose ``close`` is written but not yet on disk, where a reply waits for that: they belong to a later part,
    because another ``close`` may take the place of this one."""


class Void(Frame, tag="void", frozen=True, kw_only=True):
    """Stands where a deleted run's frame was, of the same length. Blob: nothing that means anything."""


AnyFrame: TypeAlias = Open | Data | Close | SessionFrame | Policy | Boot | Cut | Void

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(AnyFrame)
HEAD_LEN_BYTES: Final = 4


def encode(frame: AnyFrame) -> bytes:
    """The payload's head: its length (uint32, little endian), then msgpack. Blobs follow as they are."""
    head = _encoder.encode(frame)
    return len(head).to_bytes(HEAD_LEN_BYTES, "little") + head


def decode(payload: bytes | memoryview) -> tuple[AnyFrame, memoryview]:
    """The frame and its blobs' bytes. Raises ``msgspec.DecodeError`` or ``ValidationError`` on a foreign payload."""
    view = memoryview(payload)
    size = int.from_bytes(view[:HEAD_LEN_BYTES], "little")
    end = HEAD_LEN_BYTES + size
    return _decoder.decode(view[HEAD_LEN_BYTES:end]), view[end:]


def seq(frame: Open) -> int:
    """Sort key of calls: boot (13 bits), microseconds since boot (44 bits), writer (6 bits)."""
    return (frame.boot & 0x1FFF) << 50 | (frame.mono_us & 0xFFF_FFFF_FFFF) << 6 | (frame.writer & 0x3F)
