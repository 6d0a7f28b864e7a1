"""The control plane: what a trainer needs, behind its own port and token."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from forge.client import ControlClient, NoCapacity
from forge.proxy.config import Limits, ProxyConfig
from forge.proxy.upkeep import end_implicit
from forge.storage import rows
from forge.storage.errors import BadInput, Unavailable
from forge.storage.frames import Cut, Open, SessionFrame
from forge.storage.records import Selection, Session, SessionStatus
from tests.engine import Gate, Turn
from tests.proxy.serving import QUICK, USER, WAIT_S, Serving, entries, serving

CONTROL_ROUTES = [
    ("POST", "/sessions"),
    ("GET", "/sessions/{id}"),
    ("POST", "/sessions/{id}/close"),
    ("PUT", "/sessions/{id}/reward"),
    ("PUT", "/sessions/{id}/selection"),
    ("GET", "/sessions/{id}/calls"),
    ("GET", "/finished"),
    ("GET", "/upstreams"),
    ("POST", "/upstreams"),
    ("DELETE", "/upstreams"),
    ("POST", "/upstreams/drain"),
    ("POST", "/policy/publish"),
    ("POST", "/pause"),
    ("POST", "/resume"),
    ("GET", "/capacity"),
    ("GET", "/metrics"),
    ("GET", "/status"),
]


async def turn(s: Serving, ticket: Any, *messages: dict[str, Any], **members: Any) -> None:
    async with s.chat([*messages] or [USER], key=ticket.api_key, base=ticket.base_url, **members) as answer:
        assert answer.status == 200
        await answer.read()


async def test_a_session_from_open_to_samples(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two"), Turn("three"))
        ticket = await s.control.open_session(
            task_id="task", group_id="group", rollout_index=1, purpose="train", labels={"a": 1}, harness="codex"
        )
        assert ticket.policy_version == 0
        await turn(s, ticket)
        await turn(s, ticket, USER, {"role": "assistant", "content": "one two"}, {"role": "user", "content": "go"})
        closed = await s.control.close_session(
            ticket.session_id, status="completed", reward=0.5, reward_components={"tests": 0.5}, reward_author="me"
        )
        (sample,) = closed.samples
        first, second = s.engine.served
        assert sample.prompt_ids.tolist() == first.prompt_ids
        assert [*sample.prompt_ids.tolist(), *sample.response_ids.tolist()] == second.prompt_ids + second.output_ids
        assert int(sample.response_mask.sum()) == len(first.output_ids) + len(second.output_ids)
        assert all(
            math.isnan(p) == (m == 0) for p, m in zip(sample.rollout_log_probs, sample.response_mask, strict=True)
        )
        assert (sample.group_id, sample.rollout_index, sample.reward, sample.trainable) == ("group", 1, 0.5, True)
        assert (closed.session.status, closed.session.reward_author, closed.session.harness) == (
            "completed",
            "me",
            "codex",
        )
        assert (closed.calls.calls, closed.calls.statuses) == (2, {"ok": 2})
        events = [(f.event, f.revision) for f in s.frames(SessionFrame)]
        assert events == [("open", 0), ("close", 1)]


async def test_sessions_that_end_together_share_a_cut(tmp_path: Path) -> None:
    """It comes soon, and not with each of them: a cut costs the decoder several flushes."""
    async with serving(tmp_path, limits=replace(QUICK, cut_s=1e6)) as s:
        tickets = [await s.control.open_session() for _ in range(8)]
        for ticket in tickets:
            await turn(s, ticket)
        await asyncio.gather(*(s.control.close_session(t.session_id, reward=1.0) for t in tickets))
        async with asyncio.timeout(WAIT_S):
            while s.proxy.deps.recorder.cut_due:
                await asyncio.sleep(0.005)
        frames = s.frames()
        ends = [index for index, f in enumerate(frames) if isinstance(f, SessionFrame) and f.event == "close"]
        cuts = [index for index, f in enumerate(frames) if isinstance(f, Cut)]
        assert len(ends) == 8
        assert len(cuts) < len(ends)
        assert cuts[-1] > ends[-1], "all of them are cut"


async def test_closing_again_gives_the_same_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        await turn(s, ticket)
        first = await s.control.close_session(ticket.session_id, reward=1.0)
        second = await s.control.close_session(ticket.session_id, status="failed", reward=0.0)
        assert first.session == second.session
        assert [x.sample_id for x in first.samples] == [x.sample_id for x in second.samples] != []


async def test_samples_come_as_arrow_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        await turn(s, ticket)
        headers = {"Authorization": f"Bearer {s.proxy.control_token}", "Accept": "application/vnd.apache.arrow.stream"}
        url = f"{s.proxy.control_url}/sessions/{ticket.session_id}/close"
        async with s.http.post(url, json={"reward": 1.0}, headers=headers) as answer:
            table = pa.ipc.open_stream(await answer.read()).read_all()
            assert json.loads(answer.headers["X-Forge-Session"])["reward"] == 1.0
        (sample,) = rows.samples(table)
        assert sample.response_ids.tolist() == s.engine.served[0].output_ids


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ({"status": "completed"}, "pending"),
        ({"status": "completed", "reward": None}, "null"),
        ({"status": "completed", "reward": 0.0}, "graded"),
        ({"status": "timeout"}, "null"),
        ({"status": "policy_down"}, "null"),
        ({"status": "failed", "reward": 1.0}, "graded"),
    ],
)
async def test_a_reward_is_never_made_up(tmp_path: Path, outcome: dict[str, Any], status: str) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        closed = await s.control.close_session(ticket.session_id, **outcome)
        assert closed.session.reward_status == status
        assert closed.session.reward == outcome.get("reward")
        late = await s.control.set_reward(ticket.session_id, 0.25, author="judge", components={"x": 0.25})
        assert (late.reward, late.reward_status, late.revision) == (0.25, "graded", 2)


async def test_a_session_that_was_not_chosen_says_so_and_keeps_its_reward(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one"))
        ticket = await s.control.open_session()
        with pytest.raises(BadInput, match="is open"):
            await s.control.select(ticket.session_id, Selection.NOT_SELECTED)
        await turn(s, ticket)
        (sample,) = (await s.control.close_session(ticket.session_id, reward=1.0)).samples
        assert sample.trainable
        for _ in range(2):
            chosen = await s.control.select(ticket.session_id, Selection.NOT_SELECTED)
            assert (chosen.selection, chosen.reward, chosen.revision) == ("not_selected", 1.0, 2)
        (sample,) = (await s.control.close_session(ticket.session_id)).samples
        assert (sample.trainable, sample.untrainable_reason, sample.reward) == (False, "not_selected", 1.0)
        assert (await s.control.select(ticket.session_id, None)).selection is None


async def test_an_idempotency_key_opens_one_session_also_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        one = await s.control.open_session(idempotency_key="k", task_id="t")
        assert (await s.control.open_session(idempotency_key="k", task_id="t")).session_id == one.session_id
        assert (await s.control.open_session(idempotency_key="other")).session_id != one.session_id
    async with serving(tmp_path) as s:
        again = await s.control.open_session(idempotency_key="k", task_id="t")
        assert (again.session_id, again.api_key) == (one.session_id, one.api_key)


async def test_sessions_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        open_one, done = await s.control.open_session(task_id="a"), await s.control.open_session(budgets={"calls": 5})
        await turn(s, open_one)
        await s.control.close_session(done.session_id, reward=1.0)
    async with serving(tmp_path) as s:
        base = f"{s.proxy.base_url.removesuffix('/v1')}/s/{open_one.session_id}/v1"
        async with s.chat(key=open_one.api_key, base=base) as answer:
            assert answer.status == 200
        async with s.chat(key=done.api_key) as answer:
            assert answer.status == 409
        sessions, _ = await s.control.finished()
        assert [x.session_id for x in sessions] == [done.session_id]
        closed = await s.control.close_session(open_one.session_id, reward=1.0)
        assert closed.calls.statuses == {"ok": 2}
        assert closed.session.task_id == "a"


async def test_close_waits_for_running_calls_and_then_cuts_them_off(tmp_path: Path) -> None:
    gate, stuck = Gate(is_open=False), Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("in time", gate=gate), Turn("never", gate=stuck))
        one, two = await s.control.open_session(), await s.control.open_session()
        calls = [asyncio.ensure_future(turn(s, t, stream=True)) for t in (one, two)]
        await s.opened(2)
        waiting = asyncio.ensure_future(s.control.close_session(one.session_id, reward=1.0, grace=10))
        live = s.proxy.deps.registry.get(one.session_id)
        assert live is not None
        async with asyncio.timeout(WAIT_S):
            while live.is_open:
                await asyncio.sleep(0.005)
        async with s.chat(key=one.api_key) as answer:
            assert answer.status == 409, "new calls are refused at once"
        gate.open()
        assert (await waiting).calls.statuses == {"ok": 1, "late": 1}
        assert (await s.control.close_session(two.session_id, reward=1.0, grace=0)).calls.statuses == {"aborted": 1}
        assert isinstance((await asyncio.gather(*calls, return_exceptions=True))[1], aiohttp.ClientError)


async def test_finished_sessions_in_order_and_by_long_poll(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        tickets = [await s.control.open_session() for _ in range(3)]
        assert await s.control.finished() == ([], "")
        waiting = asyncio.ensure_future(s.control.finished(wait_s=30))
        for ticket in tickets[:2]:
            await s.control.close_session(ticket.session_id, reward=1.0)
        found, cursor = await waiting
        assert found[0].session_id == tickets[0].session_id
        rest, end = await s.control.finished(cursor)
        assert [x.session_id for x in [*found, *rest]] == [t.session_id for t in tickets[:2]]
        assert (await s.control.finished(end))[0] == []
        with pytest.raises(BadInput):
            await s.control.finished("nonsense")


async def test_capacity_is_refused_at_the_door_only(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=replace(QUICK, sessions=2)) as s:
        first, _ = await s.control.open_session(), await s.control.open_session()
        with pytest.raises(NoCapacity):
            await s.control.open_session()
        assert (await s.control.capacity())["free"] == 0
        await turn(s, first)
        await s.control.close_session(first.session_id, reward=None)
        await s.control.open_session()


async def test_the_token_opens_and_nothing_else_does(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        for method, path in CONTROL_ROUTES:
            url = s.proxy.control_url + path.replace("{id}", ticket.session_id)
            for token in ("", "wrong", ticket.api_key, s.proxy.control_token + "x", s.proxy.control_token[:-1]):
                async with s.http.request(method, url, json={}, headers={"Authorization": f"Bearer {token}"}) as answer:
                    assert answer.status == 401, (method, path)
        for path in ("/healthz", "/readyz"):
            async with s.http.get(s.proxy.control_url + path) as answer:
                assert answer.status == 200
        assert (s.data / "control.token").stat().st_mode & 0o777 == 0o600


async def test_control_is_not_reachable_through_the_data_plane(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        root = s.proxy.base_url.removesuffix("/v1")
        headers = {"Authorization": f"Bearer {s.proxy.control_token}"}
        tricks = ["", "/v1", f"/s/{ticket.session_id}", f"/s/{ticket.session_id}/v1", "//", "/v1/..", "/%2e%2e"]
        for method, path in CONTROL_ROUTES:
            for trick in tricks:
                url = root + trick + path.replace("{id}", ticket.session_id)
                async with s.http.request(method, url, json={"reward": 1.0}, headers=headers) as answer:
                    assert answer.status in (404, 405), (method, url, answer.status)
        # and not an engine's own admin routes either
        for path in ("/pause", "/collective_rpc", "/update_weight_version", "/tokenize", "/v1/systemone"):
            async with s.http.post(root + path, json={}) as answer:
                assert answer.status == 404
        assert s.engine.admin == []


async def test_a_foreign_host_name_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "a/b?x#"):
            headers = {"Authorization": f"Bearer {s.proxy.control_token}", "Host": host}
            async with s.http.get(f"{s.proxy.control_url}/capacity", headers=headers) as answer:
                assert answer.status in (400, 403), host
        headers = {"Authorization": f"Bearer {s.proxy.control_token}", "Host": "localhost:1"}
        async with s.http.get(f"{s.proxy.control_url}/capacity", headers=headers) as answer:
            assert answer.status == 200


async def test_bad_bodies_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        with pytest.raises(BadInput, match="purpose"):
            await s.control.open_session(purpose="fun")
        with pytest.raises(BadInput, match="unknown field"):
            await s.control.open_session(nonsense=1)
        with pytest.raises(BadInput, match="status"):
            await s.control.close_session(ticket.session_id, status="open", grace=0)
        with pytest.raises(BadInput, match="no session"):
            await s.control.close_session("doesnotexist", reward=1.0)
        assert (await s.control.session(ticket.session_id)).status == "open"


async def test_a_proxy_that_is_not_there_is_said(tmp_path: Path) -> None:
    async with ControlClient("http://127.0.0.1:9", "t") as control:
        with pytest.raises(Unavailable, match="does not answer"):
            await control.open_session()
        assert await control.health() is False


def test_beyond_loopback_a_token_file_is_needed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="token file"):
        ProxyConfig(data=tmp_path, run_id="r", control_host="0.0.0.0")
    ProxyConfig(data=tmp_path, run_id="r", control_host="0.0.0.0", control_token_file=tmp_path / "t")


async def test_metrics_count_calls(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        async with s.chat() as answer:
            await answer.read()
        headers = {"Authorization": f"Bearer {s.proxy.control_token}"}
        async with s.http.get(f"{s.proxy.control_url}/metrics", headers=headers) as answer:
            text = await answer.text()
        assert 'forge_calls_total{dialect="chat",kind="main",status="ok"} 1.0' in text
        assert f'forge_policy_version{{replica="{s.engine.url}"}} 0.0' in text


async def test_idle_implicit_sessions_end_by_themselves(tmp_path: Path) -> None:
    limits: Limits = replace(QUICK, implicit_idle_s=0.05, cut_s=0.05)
    async with serving(tmp_path, limits=limits) as s:
        async with s.chat() as answer:
            await answer.read()
        sessions, _ = await s.control.finished(wait_s=10)
        assert (sessions[0].implicit, sessions[0].status, sessions[0].reward_status) == (True, "completed", "null")


async def test_implicit_sessions_make_room_for_others(tmp_path: Path) -> None:
    """A benchmark of single questions, each a conversation of its own: the silent ones end before one is refused."""
    async with serving(tmp_path, limits=replace(QUICK, sessions=10, implicit_idle_s=1800.0)) as s:
        kept = await s.control.open_session()
        for n in range(30):
            async with s.chat([{"role": "user", "content": f"question {n}"}]) as answer:
                assert answer.status == 200, n
            await end_implicit(s.proxy.deps, 1800.0)
        assert len(s.proxy.deps.registry) <= 9
        async with s.chat(key=kept.api_key) as answer:
            assert answer.status == 200
        sessions, _ = await s.control.finished()
        asked = [frame.session_id for frame in s.frames(Open)]
        assert [session.session_id for session in sessions] == asked[: len(sessions)], "the oldest first"


async def test_a_close_whose_client_gave_up_still_closes(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("in time", gate=gate))
        ticket = await s.control.open_session()
        call = asyncio.ensure_future(turn(s, ticket, stream=True))
        await s.opened()
        closing = asyncio.ensure_future(s.control.close_session(ticket.session_id, reward=1.0, grace=30))
        live = s.proxy.deps.registry.get(ticket.session_id)
        assert live is not None
        async with asyncio.timeout(WAIT_S):
            while live.is_open:
                await asyncio.sleep(0.005)
        closing.cancel()
        await asyncio.wait([closing])
        async with s.chat(key=ticket.api_key) as answer:
            assert answer.status == 409  # a round trip: by now the proxy has seen the client leave
        gate.open()
        await call
        sessions, _ = await s.control.finished(wait_s=WAIT_S / 2)
        assert [(x.session_id, x.status, x.reward) for x in sessions] == [(ticket.session_id, "completed", 1.0)]


async def test_a_clock_that_steps_back_hides_no_finished_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        registry = s.proxy.deps.registry
        ahead = Session(
            session_id="fromthefuture0", run_id="run", status=SessionStatus.COMPLETED, open_us=1, close_us=1 << 52
        )
        registry.restore([ahead], {})
        _, cursor = await s.control.finished()
        ticket = await s.control.open_session()
        await s.control.close_session(ticket.session_id, reward=1.0)
        found, _ = await s.control.finished(cursor)
        assert [x.session_id for x in found] == [ticket.session_id]


async def test_more_calls_than_the_limit_are_refused(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path, limits=replace(QUICK, calls=1)) as s:
        s.engine.script(Turn("first", gate=gate))
        ticket = await s.control.open_session()
        call = asyncio.ensure_future(turn(s, ticket, stream=True))
        await s.opened()
        async with s.chat(key=ticket.api_key) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "too_many_calls")
        gate.open()
        await call
        await turn(s, ticket)
        assert len(s.frames(Open)) == 2


async def test_a_call_that_is_held_when_the_proxy_stops_is_told_so(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http:
        async with serving(tmp_path) as s:
            await s.control.pause()
            url, body = f"{s.proxy.base_url}/chat/completions", {"model": "policy", "messages": [USER]}
            held = asyncio.ensure_future(http.post(url, json=body))
            assert not (await asyncio.wait([held], timeout=0.1))[0]
        async with await held as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (503, "draining")
    assert [e for e in entries(tmp_path / "data") if isinstance(e.frame, Open)] == []


async def test_a_proxy_in_a_container_names_the_url_that_harnesses_reach(tmp_path: Path) -> None:
    async with serving(tmp_path, public_url="http://proxy:8100/v1/") as s:
        ticket = await s.control.open_session(task_id="task")
        assert ticket.base_url == f"http://proxy:8100/s/{ticket.session_id}/v1"
        assert await s.control.base_url() == "http://proxy:8100/v1"


@pytest.mark.parametrize("url", ["proxy:8100", "http://", "http://user:pw@proxy:8100", "http://proxy/?key=1"])
def test_a_url_that_no_harness_could_reach_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadInput, match="not a URL for harnesses"):
        ProxyConfig(data=tmp_path, run_id="r", public_url=url)
