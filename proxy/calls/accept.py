"""From a request at the door to an accepted call: whose it is, what it is for, what the run lays over it.

After the choice of a replica and before the call's start nothing is awaited, so a publication that waits for running
calls cannot miss one.
"""

from __future__ import annotations

import asyncio
from typing import Final

from forge.proxy.calls.arrival import Arrival
from forge.proxy.calls.asking import Asking
from forge.proxy.calls.call import Exchange
from forge.proxy.calls.continuation import ABORT_WORD
from forge.proxy.calls.stop import clean_stop
from forge.proxy.deps import Deps
from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import BadRequest, Outgoing, Overrides
from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import Request
from forge.proxy.door.routes import Route
from forge.proxy.engines import ENGINES, read
from forge.proxy.engines.base import Tokens
from forge.proxy.engines.usage import counted
from forge.proxy.sessions.attribution import NAMES_AGENTS, Signs, says_retry, stored
from forge.proxy.sessions.history import Fingerprint, fingerprint
from forge.proxy.sessions.kinds import called_subagent
from forge.proxy.sessions.live import Live
from forge.proxy.sessions.reasoning import keep
from forge.proxy.sessions.sender import sender_of, with_kind
from forge.proxy.sessions.spec import HistoryMode
from forge.proxy.sessions.turns import SIGNS, Asked
from forge.proxy.splice import UNREADABLE
from forge.proxy.upstreams.pool import Replica
from forge.storage import media_text
from forge.storage.frames import Close
from forge.storage.media import Taken
from forge.storage.media_text import escaped
from forge.storage.records import CallStatus

MEDIA: Final = sum(SIGNS[sign] for sign in (media_text.MARK, *media_text.MEDIA_SIGNS))
"""Signs of media in a turn, and of what reads like a reference to some."""
DEFAULT_ENGINE: Final = "vllm"
"""How a request is read while no policy server is known."""


async def accept(deps: Deps, request: Request, where: Route, body: bytes, live: Live | None, rule: str) -> None:
    """Serves the call. ``live`` is None for a request without a key of ours. Raises ``BadRequest``."""
    dialect = DIALECTS[where.dialect]
    try:
        asked = deps.histories.read(live.id if live is not None else "", body)
    except UNREADABLE as failure:
        raise BadRequest(f"the request body is not a JSON object: {failure}") from failure
    seen, headers = fingerprint(asked), request.head.stored
    if headers is None:
        headers = request.head.stored = stored(request.headers)
    taken = await _take(deps, asked) if shows_media(asked) else Taken(body, whole=True)
    replica = deps.pool.pick(live.replica if live else None) if deps.pool.is_open else None
    if replica is None:
        replica = await _choose(deps, live)
    began_us = deps.recorder.now()
    if deps.draining:
        raise Refused(503, "draining", "this proxy is stopping")
    call_id = deps.ids.call_id()
    if live is not None and not live.is_open:
        raise _late(deps, Arrival(request, headers, dialect, taken, call_id, live, rule))
    alike = replica or deps.pool.first()
    engine = alike.engine if alike else ENGINES[DEFAULT_ENGINE]
    overrides = _overrides(deps, live, replica)
    outgoing = dialect.request(asked, engine=engine, overrides=overrides, call_id=call_id, target=where.target)
    sender = sender_of(asked.around, headers, outgoing.hints)
    if live is None:
        live, rule = _implicit(deps, sender.signs, seen)
    budget = live.spent()
    if budget is not None:
        clean_stop(request, dialect, outgoing, engine=engine, call_id=call_id, budget=budget)
        return
    place: bytes | None = None
    if (live.record.history or deps.config.history) == HistoryMode.KEEP_REASONING:
        outgoing, place = keep(outgoing, live.reasoning, engine.name)
    arrival = Arrival(request, headers, dialect, taken, call_id, live, rule, replica, outgoing, sender, seen)
    arrival.began_us = began_us
    arrival.agent_id = _agent(arrival, seen)
    arrival.sender = with_kind(asked.around, sender, outgoing.hints, arrival.agent_id)
    arrival.retry_of = _retry(arrival)
    await _serve(deps, arrival, place)


async def _take(deps: Deps, asked: Asked) -> Taken:
    """The request's media are stored: before there is a call, which is accepted without waiting."""
    if not media_text.shows_media(asked.body):
        return Taken(escaped(asked.body))
    return await asyncio.to_thread(deps.media.take, asked.body)


def shows_media(asked: Asked) -> bool:
    """Whether media, or what reads like a reference to some, can be in it; of what came before it is known."""
    around = asked.around
    if around.media is None:
        texts = [bytes(value) for value in around.small.values()]
        around.media = any(media_text.MARK in text or media_text.shows_media(text) for text in texts)
    return around.media or bool(asked.signs & MEDIA)


async def _choose(deps: Deps, live: Live | None) -> Replica | None:
    """The replica that the request is written for. One that is about to come up is waited for here, before there is a
    call: what is sent must suit the server that gets it."""
    limits = deps.config.limits
    number = 0
    while True:
        if not await deps.pool.passed(limits.hold_s):
            raise Refused(503, "publishing", "new weights have been loading for too long")
        replica = deps.pool.pick(live.replica if live else None)
        number += 1
        if replica is not None or number == limits.attempts:
            return replica
        await asyncio.sleep(limits.backoff_s * 2 ** (number - 1))


async def _serve(deps: Deps, arrival: Arrival, place: bytes | None) -> None:
    """``place``: the history by which the reply's thinking is remembered, if it is."""
    outgoing, live = arrival.outgoing, arrival.live
    task = asyncio.current_task()
    assert outgoing is not None
    assert task is not None
    recording = arrival.open(deps)
    if arrival.seen is not None:
        live.history.note(arrival.seen, arrival.call_id, arrival.agent_id)
    answer = bytearray()
    if live.counts_tokens or place is not None:
        recording.tap = answer
    asking = Asking(
        replica=arrival.replica,
        recording=recording,
        pool=deps.pool,
        client=deps.client,
        limits=deps.config.limits,
        metrics=deps.metrics,
    )
    exchange = Exchange(
        request=arrival.request,
        dialect=arrival.dialect,
        outgoing=outgoing,
        asking=asking,
        recording=recording,
        began_us=arrival.began_us,
    )
    if place is not None:
        recording.at_end = lambda: _remember(live, asking.replica, place, bytes(answer))
    live.begin(recording.call_id, task)
    deps.metrics.begin(stream=outgoing.stream)
    try:
        await exchange.run()
    finally:
        deps.metrics.end(stream=outgoing.stream)
        live.unfit_limit = exchange.unfit_limit or live.unfit_limit
        live.end(recording.call_id)
        if asking.replica is not None:
            live.replica = asking.replica.url
            if live.counts_tokens:
                _count(live, outgoing, asking.replica, bytes(answer))


def _count(live: Live, outgoing: Outgoing, replica: Replica, answer: bytes) -> None:
    """Tokens against the session's budgets, from the engine's own answer: its count, where it is of one choice
    in one part."""
    found = counted(answer) if outgoing.choices == 1 and ABORT_WORD not in answer else None
    if found is not None:
        live.output_tokens += found.output
        live.context = max(live.context, found.prompt + found.output)
        return
    for choice in _choices(replica, answer):
        output = len(choice.output_ids) or (choice.completion_tokens or 0)
        prompt = len(choice.prompt_ids) or (choice.prompt_tokens or 0)
        live.output_tokens += output
        live.context = max(live.context, prompt + output)


def _remember(live: Live, replica: Replica | None, place: bytes, answer: bytes) -> None:
    """What the model thought, for the next turn that the harness sends without it."""
    for choice in _choices(replica, answer) if replica is not None else ():
        live.reasoning.note(place, choice.message)


def _choices(replica: Replica, answer: bytes) -> list[Tokens]:
    try:
        return read(replica.engine, answer)
    except ValueError:
        return []


def _overrides(deps: Deps, live: Live | None, replica: Replica | None) -> Overrides:
    abilities = replica.abilities if replica else None
    sampling = live.sampling if live is not None and live.sampling is not None else deps.config.sampling
    return Overrides(
        sampling=sampling,
        model=(replica.policy.adapter if replica else None)
        or deps.config.model
        or (abilities.model if abilities else None),
        max_tokens_cap=live.tokens_left() if live is not None else None,
        context_len=abilities.max_model_len if abilities else None,
        unfit_limit=live.unfit_limit if live is not None else None,
    )


def _implicit(deps: Deps, said: Signs, seen: Fingerprint | None) -> tuple[Live, str]:
    """The session of a request that names none of ours: by the harness's own id, else by longest prefix."""
    if said.trace is not None:
        parent = deps.registry.get(deps.shared.traces.get(said.trace.encode(), ""))
        if said.agent_id is not None and parent is not None and parent.is_open:
            return parent, "trace"
    if said.external_id is not None or seen is None:
        live = deps.registry.implicit(said.external_id, said.harness, said.harness_version, deps.policy())
        if said.trace is not None:
            deps.shared.traces.put(said.trace.encode(), live.id)
        return live, said.rule if said.external_id is not None else "implicit"
    known = deps.registry.get(deps.shared.session_of(seen) or "")
    # A conversation that begins as one did that went on since is another: the same task, run again.
    if known is not None and known.is_open and not (seen.opens and known.history.went_on(seen)):
        live, rule = known, "prefix"
    else:
        live, rule = deps.registry.implicit(None, said.harness, said.harness_version, deps.policy()), "implicit"
    deps.shared.note(seen, live.id)
    return live, rule


def _agent(arrival: Arrival, seen: Fingerprint | None) -> str | None:
    """The sub-agent that asks, as the harness names it, else by content; None for the main one."""
    live, outgoing = arrival.live, arrival.outgoing
    assert arrival.sender is not None
    assert outgoing is not None
    said = arrival.sender.signs
    if said.agent_id is not None or seen is None or (live.record.harness or said.harness) in NAMES_AGENTS:
        return said.agent_id
    return live.agents.id_of(seen, helper=called_subagent(str(outgoing.hints.get("first_system") or "")))


def _retry(arrival: Arrival) -> str | None:
    """The call that this one repeats. While that one runs it is a retry only if its client says so: parallel
    sub-agents may ask the same."""
    live, seen = arrival.live, arrival.seen
    earlier = live.history.repeated(seen, arrival.agent_id) if seen is not None else None
    if earlier in live.running and not says_retry(arrival.headers):
        return None
    return earlier


def _late(deps: Deps, arrival: Arrival) -> Refused:
    """A call after its session's close: a row of its own, and a 409."""
    recording = arrival.open(deps)
    message = f"session {arrival.live.id} is closed"
    end = Close(call_id=arrival.call_id, status=CallStatus.LATE.value, http_status=409, error=message)
    recording.close(end)
    return Refused(409, "session_closed", message)
