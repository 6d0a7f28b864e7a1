"""What the proxy needs to know of a kind of policy server, without any I/O.

An engine says which members to add to a request so that ids and log probs come back, which members of the answer
are ours to take out again, how to read tokens out of an answer, and which HTTP steps load new weights. Vendor
names live in this folder only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Raw

from forge.proxy.engines.prompt_ids import PromptIds
from forge.storage.records import Ids, LogProbs, empty_log_probs


class Cut(NamedTuple):
    """One member of the engine's answer that we asked for and the harness did not.

    ``stream`` and ``whole`` give the value that stands in its place, as the engine would have written it unasked;
    None takes the whole member out.
    """

    key: bytes
    stream: bytes | None
    whole: bytes | None


@dataclass(frozen=True, slots=True)
class Ask:
    """What we add to one request, and what must be cut from its answer."""

    members: Mapping[str, bytes] = field(default_factory=dict)
    """JSON member name to raw JSON value: only those for which the harness did not ask itself. Each is appended, or
    stands in place of a value that asks for nothing (null, false)."""
    cuts: tuple[Cut, ...] = ()
    drop_usage_chunk: bool = False
    """The stream's usage chunk is ours: the harness did not ask for it."""
    usage_members: tuple[str, ...] = ()
    """Members that ride on the usage chunk where there is one, and on each finishing chunk where there is none."""
    drop_empty_chunks: bool = False
    """A chunk that says nothing (an empty delta, or neither choices nor usage) exists only because we asked: the engine
    sends it for tokens that show no text, or for the ids alone."""


@dataclass(frozen=True, slots=True)
class Collect:
    """What a run has recorded beside ids and log probs: it costs the engine, so it is asked for only then."""

    top_logprobs: int = 0
    """Alternatives of each token."""
    prompt_logprobs: bool = False
    routed_experts: bool = False
    sampling_mask: bool = False


NOTHING: Final = Collect()


@dataclass(frozen=True, slots=True)
class Wire:
    """How a chat history must be worded for an engine's templates."""

    developer_is_system: bool = False
    """They know no ``developer`` role: most leave such a message out without a word."""
    tool_text_only: bool = False
    """A tool's result has no place for images."""
    reasoning: bool = False
    """They look for an assistant's thought under ``reasoning`` alone: one that harnesses echo as ``reasoning_content``
    is left out without a word."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an engine said of one choice."""

    prompt_ids: Ids
    output_ids: Ids
    output_log_probs: LogProbs
    """Same length as output_ids, or empty when none were given."""
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    message: dict[str, Any]
    """The assistant message in chat form: role, content, reasoning?, tool_calls?."""
    model: str | None
    """As the server names its base weights."""
    version: int | None = None
    """Of every token, where the name of the model that answered tells it."""
    version_spans: list[tuple[int, int, int]] | None = None
    """(version, start, end) over output_ids, where the engine gives them."""
    top_logprobs: str | None = None
    prompt_log_probs: LogProbs = field(default_factory=empty_log_probs)
    """Same length as prompt_ids, or empty when none were given."""
    routed_experts: bytes | None = None
    sampling_mask: bytes | None = None
    error: str | None = None
    """What the engine said went wrong inside its 200."""
    pieces: list[str] | None = None
    """The text of each sampled token; None where not all are known."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A generation that its engine gave up, as far as it came."""

    prompt_ids: list[int]
    output_ids: list[int]
    id: str
    created: int
    pieces: list[str]
    """The text of each sampled token, as the engine gave it beside its log prob."""
    text: str
    """Of a raw completion: all that was said."""
    stream: bool


@dataclass(frozen=True, slots=True)
class Question:
    """One request of a continuation, to the policy server that goes on."""

    path: str
    body: bytes | None = None
    """JSON; None: a GET."""
    samples: bool = False
    """Its answer is the rest of the generation: it is waited for as a call's answer is."""
    passes: bool = False
    """That answer has the shape of the call's own route: it goes to the client as it comes."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What came after a generation was given up."""

    ids: list[int]
    log_probs: list[dict[str, Any]]
    """Of each id as chat's ``content`` has it; of a raw completion ``top_logprobs`` is an object."""
    finish_reason: str | None
    members: Mapping[str, Any] = field(default_factory=dict)
    """What else the engine says of the end, beside its finish reason."""
    message: Mapping[str, Any] = field(default_factory=dict)
    """The whole answer, what was said before included; in the engine's words."""
    text: str = ""
    """The same of a raw completion."""


Continuing = Generator[Question, bytes, Rest | None]
"""Asks in turn, is sent the body of each answer, and returns the rest; None where it passed. It raises one of
``INEXACT`` where the rest cannot be told exactly."""
Continues = Callable[[str, bytes, GivenUp], Continuing]
"""Of a path and the request that was sent to it, for the rest of a generation that the engine gave up."""
INEXACT: Final = (ValueError, LookupError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class Step:
    """One HTTP request of a publication."""

    method: str
    path: str
    json: Mapping[str, Any] | None = None
    ok: tuple[int, ...] = (200,)
    expect: Mapping[str, Any] = field(default_factory=dict)
    """Members of the answer that say the step failed if they have another value; older servers leave them out."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """How an engine loads adapters beside its base weights, each under a name, and lets them go."""

    load_path: str
    unload_path: str

    def load(self, name: str, path: str) -> Step:
        return Step("POST", self.load_path, {"lora_name": name, "lora_path": path})

    def unload(self, name: str) -> Step:
        """New calls can name it no more; running ones keep it."""
        return Step("POST", self.unload_path, {"lora_name": name}, ok=(200, 404))


@dataclass(frozen=True, slots=True)
class Publication:
    """The steps that load new weights, in order. A step group may be empty where the engine needs none."""

    pause: Sequence[Step]
    load: Sequence[Step]
    reset: Sequence[Step]
    """Every cache: prefix, multimodal, encoder."""
    digest: Step | None
    """Answers with the digest of what is loaded, under ``weight_digest``; None where the engine has no such thing."""
    set_version: Sequence[Step]
    resume: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the probe found. None means it could not be told."""

    ids: bool = False
    stream_ids: bool = False
    log_probs: bool = False
    logprobs_mode: str | None = None
    stop_token_included: bool | None = None
    tools_rendered: bool | None = None
    append_only: bool | None = None
    first_divergence: str | None = None
    """Where two turns are not append-only: the first message that diverges."""
    token_in: bool = False
    adapters: bool = False
    """It loads adapters while it runs, if it was started for any."""
    adapter: str | None = None
    """The one that is the version that it says it serves."""
    weights: str | None = None
    """The directory or name that its base weights were loaded from; None: they may be others by now."""
    weight_update: bool = False
    engine_version: str | None = None
    model: str | None = None
    max_model_len: int | None = None
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    weight_version: int | None = None
    weight_digest: str | None = None
    weight_lineage: str | None = None
    template_hash: str | None = None
    tokenizer_hash: str | None = None
    started: str | None = None
    """When its process started, or which one it is, in its own words."""
    rescored: float | None = None
    """Mean difference, in nats, of a greedy answer's log probs from those of the same ids scored as a prompt."""


class Engine(Protocol):
    name: str
    trainable: bool
    """False for engines that never give ids (they need ``--record best-effort``)."""
    wire: Wire
    start_path: str | None
    """A plain route that says when the server's process started; None: it has none."""
    start_pattern: bytes
    """Finds that in the route's answer, as its first group."""
    token_in: str | None
    """The route that takes token ids; None: it has none."""
    continuation: Continues | None
    """None: it cannot go on from ids."""
    fallback: str | None
    """The engine that serves in its place where streams give no ids."""
    adapters: Adapters | None
    """None: it takes none while it runs."""

    def ask(self, request: Mapping[str, bytes | Raw], *, stream: bool, collect: Collect = NOTHING) -> Ask:
        """``request`` holds the top-level members of the chat request, or of the raw completion's (which has a
        ``prompt``), values as raw JSON."""

    def read_whole(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        """One entry per choice. ``prompts`` are those of the session so far, where the caller remembers them: what they
        repeat is not parsed again. Raises ``ValueError`` on a body that is not this engine's answer."""

    def read_stream(self, body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
        """The same from the raw SSE bytes; a stream that broke off gives what it held."""

    def publication(self, path: str, *, version: int, mode: str) -> Publication | None:
        """Steps that load the directory ``path``; ``mode`` is wait, abort or keep. None: it cannot."""
