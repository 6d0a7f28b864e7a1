"""How a publication comes to one replica: as an adapter beside its base weights where it takes one, else as a whole.

Owns that choice and the steps of each; asks nobody. The non-obvious facts: an adapter fits only the weights that it was
trained on, which no server tells, so that where they were loaded from is followed from publication to publication; and
a call that goes on over an adapter's publication keeps the one it began with, but not the weights below it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from os.path import realpath
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from forge.proxy.engines.adapters import Listed, name_of
from forge.proxy.engines.base import Publication
from forge.proxy.upstreams.pool import Replica

log = logging.getLogger(__name__)


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    """Directory that policy servers load; peft's files."""
    base: str
    """The directory or name of the model that it was trained on."""


class Publish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    path: str | None = None
    """Directory that the policy servers load; None where the publisher has loaded the weights itself."""
    adapter: Adapter | None = None
    """The same weights once more, as an adapter, for policy servers that take it."""
    digest: str | None = None
    """Of the weights; a server that can tell must agree."""
    lineage: str | None = None
    mode: Literal["wait", "abort", "keep"] = "wait"
    rolling: bool = False
    """Replica by replica, the others serving on."""
    by_trainer: bool = False
    """The publisher has paused, loaded and reset the servers by its own means: only the version is new."""


@dataclass(frozen=True, slots=True)
class Plan:
    steps: Publication
    adapter: str | None
    """The model that calls name from then on; None: the base."""
    weights: str | None
    """Where the base weights are from then; None: it cannot be told."""


NOTHING: Final = Publication(pause=(), load=(), reset=(), digest=None, set_version=(), resume=())


def plans(spec: Publish, replica: Replica, found: Listed, stated: int | None) -> list[Plan]:
    """The next one is for a server that refuses to load the one before; none: it cannot load weights. ``found`` and
    ``stated``: the models and the version that the server names now."""
    base = _weights(replica, found, stated)
    if spec.by_trainer:
        adapter = found.of(spec.version)
        return [Plan(NOTHING, adapter, base if adapter is not None else None)]
    steps = replica.engine.publication(spec.path or "", version=spec.version, mode=spec.mode)
    if spec.path is None:
        return [Plan(replace(steps or NOTHING, load=()), None, None)]
    if steps is None:
        return []
    beside = _beside(spec, replica, found, steps, base)
    return [*([beside] if beside is not None else ()), _whole(spec, replica, found, steps)]


def _weights(replica: Replica, found: Listed, stated: int | None) -> str | None:
    """Where its base weights are from. A server that states no version was started anew, whatever was known of it."""
    if replica.weights is not None and stated is None:
        return found.root
    known = stated == replica.policy.version or found.of(stated) is not None
    return replica.weights if known else None


def _beside(spec: Publish, replica: Replica, found: Listed, steps: Publication, base: str | None) -> Plan | None:
    adapter, routes = spec.adapter, replica.engine.adapters
    if adapter is None or routes is None or not replica.abilities.adapters or found.base is None:
        return None
    if base is None or realpath(base) != realpath(adapter.base):
        theirs = base or "what somebody else loaded"
        log.info("whole weights, no adapter: url=%s is from %s, the adapter from %s", replica.url, theirs, adapter.base)
        return None
    name = name_of(found.base, spec.version, spec.digest or adapter.path)
    there = name in found.adapters
    again = (routes.unload(name),) if there else ()
    load = () if there and spec.digest is not None else (*again, routes.load(name, adapter.path))
    old = [routes.unload(each) for each in found.adapters if each not in (name, replica.policy.adapter)]
    return Plan(replace(steps, load=load, resume=(*steps.resume, *old)), name, base)


def _whole(spec: Publish, replica: Replica, found: Listed, steps: Publication) -> Plan:
    routes = replica.engine.adapters
    unload = [routes.unload(each) for each in found.adapters] if routes is not None else []
    pause = steps.pause
    if replica.policy.adapter is not None and spec.mode == "keep":
        given_up = replica.engine.publication(spec.path or "", version=spec.version, mode="abort")
        pause = given_up.pause if given_up is not None else pause
    return Plan(replace(steps, pause=pause, load=(*unload, *steps.load)), None, spec.path)
