"""What the probe finds, and whom strict recording refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from forge.proxy.config import Record
from forge.proxy.recording.decoder import Decoder
from forge.proxy.upstreams.pool import State
from forge.proxy.upstreams.probe import logprobs_mode
from forge.storage.errors import BadInput, Unavailable, Untrainable
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, WAIT_S, calls, events, serving
from tests.script import Json


async def test_what_a_good_server_can_do(tmp_path: Path) -> None:
    async with serving(tmp_path, probed=True) as s:
        found = s.proxy.deps.pool.all()[0].abilities
        assert (found.ids, found.stream_ids, found.log_probs, found.logprobs_mode) == (True, True, True, "processed")
        assert (found.stop_token_included, found.tools_rendered, found.append_only) == (True, True, True)
        assert (found.model, found.max_model_len, found.engine_version) == ("policy", 4096, "0.32.0")
        assert len(s.engine.served) <= 7
        assert all(x.json["max_tokens"] <= 4 for x in s.engine.served)


async def test_what_names_a_template_and_a_tokenizer(tmp_path: Path) -> None:
    """The same server has the same hashes; another template or tokenizer has others."""

    class Other(ScriptedEngine):
        def render(self, request: Json) -> str:
            return "policy:" + super().render(request)

    hashes = []
    for engine in (ScriptedEngine(), ScriptedEngine(), Other()):
        async with serving(tmp_path / str(len(hashes)), engine) as s:
            async with s.chat() as answer:
                assert answer.status == 200
            found = s.proxy.deps.pool.all()[0].abilities
            hashes.append((found.template_hash, found.tokenizer_hash))
            (row,) = calls(s.data)
            assert (row.template_hash, row.tokenizer_hash) == hashes[-1]
    assert hashes[0] == hashes[1] != hashes[2]
    assert None not in hashes[0]
    assert all(template and tokenizer for template, tokenizer in hashes)


async def test_sampling_defaults_that_a_server_hides_constrain_what_does_not_say_otherwise(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.hidden = {"top_p": 0.8}
    async with serving(tmp_path, engine) as s:
        assert s.proxy.deps.pool.all()[0].abilities.sampling_defaults == {"untold": True}
        neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
        for members in ({}, {"top_p": 1.0}, neutral):
            async with s.chat(**members) as answer:
                assert answer.status == 200
    rows = calls(s.data)
    assert [row.untrainable_reason for row in rows] == ["constrained", "constrained", None]


async def test_sampling_defaults_that_a_server_tells_are_taken_as_told(tmp_path: Path) -> None:
    class Telling(ScriptedEngine):
        def _post(self, path: str, payload: Json, query: dict[str, str]) -> web.Response:
            if path.endswith("/render"):
                told = {"temperature": 0.7, "top_p": 0.8, "top_k": 0, "stop": [], "min_p": 0.0}
                return web.json_response({"token_ids": [1], "sampling_params": told})
            return super()._post(path, payload, query)

    async with serving(tmp_path, Telling()) as s:
        found = s.proxy.deps.pool.all()[0].abilities
        assert found.sampling_defaults == {"temperature": 0.7, "top_p": 0.8, "top_k": 0, "min_p": 0.0}
        for members in ({}, {"top_p": 1}):
            async with s.chat(**members) as answer:
                assert answer.status == 200
    assert [row.untrainable_reason for row in calls(s.data)] == ["constrained", None]


async def test_log_probs_that_are_not_the_models_are_refused(tmp_path: Path) -> None:
    """Field case 143: a greedy answer scored again as a prompt."""
    engine = ScriptedEngine()
    async with serving(tmp_path / "a", engine) as s:
        assert s.proxy.deps.pool.all()[0].abilities.rescored == 0.0
    engine = ScriptedEngine()
    engine.misscored = -2.0
    with pytest.raises(Untrainable, match=r"2\.00 nats off"):
        async with serving(tmp_path / "b", engine):
            pass


async def test_log_probs_that_a_tool_parser_loses_are_refused(tmp_path: Path) -> None:
    """Field cases 126, 138: asked with tools too, since parsers lose what plain answers have."""
    engine = ScriptedEngine()
    engine.default = lambda request: Turn("hello", fault=Fault(no_log_probs="tools" in request))
    with pytest.raises(Untrainable, match="log probabilities of every sampled token"):
        async with serving(tmp_path, engine):
            pass


async def test_a_server_without_ids_in_streams_is_asked_for_whole_bodies(tmp_path: Path) -> None:
    """Field case 140: its client gets the stream that it asked for."""
    engine = ScriptedEngine()
    engine.owned_by = "sglang"
    async with serving(tmp_path, engine) as s:
        assert s.proxy.deps.pool.all()[0].engine.name == "sglang_whole"
        s.engine.script(Turn("Hello there"))
        async with s.chat(stream=True) as answer:
            assert answer.content_type == "text/event-stream"
            said = [event["choices"][0]["delta"].get("content", "") for event in events(await answer.text())]
    assert "".join(said) == "Hello there"
    (row,) = calls(s.data)
    assert (row.engine, row.trainable) == ("sglang_whole", True)


async def test_a_restart_between_two_calls_is_noticed_and_the_server_probed_again(tmp_path: Path) -> None:
    """Field case 126: what it could do before says nothing of what it can do now."""
    async with serving(tmp_path) as s:
        replica = s.proxy.deps.pool.all()[0]
        before = replica.abilities
        s.engine.logprobs_mode, s.engine.started = "raw", "1700000999.5"
        async with asyncio.timeout(WAIT_S):
            while replica.abilities is before:
                await asyncio.sleep(0.005)
        assert (replica.abilities.logprobs_mode, replica.abilities.started) == ("raw", "1700000999.5")
        async with asyncio.timeout(WAIT_S):
            while replica.state != State.UP:
                await asyncio.sleep(0.005)


async def test_a_server_that_comes_back_unable_to_train_stays_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        replica = s.proxy.deps.pool.all()[0]
        s.engine.gives_ids, s.engine.started = False, "1700000999.5"
        async with asyncio.timeout(WAIT_S):
            while not replica.bad_weights:
                await asyncio.sleep(0.005)
        assert "token ids" in replica.reason
        async with s.chat() as answer:
            assert answer.status == 503


async def test_a_server_that_was_only_away_is_not_probed_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        replica = s.proxy.deps.pool.all()[0]
        before = replica.abilities
        s.proxy.deps.pool.down(replica, "a refused connection")
        async with asyncio.timeout(WAIT_S):
            while replica.state != State.UP:
                await asyncio.sleep(0.005)
        assert replica.abilities is before
        assert s.engine.served == []


async def test_raw_log_probs_are_told_from_processed_ones(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.logprobs_mode = "raw"
    async with serving(tmp_path, engine) as s:
        assert s.proxy.deps.pool.all()[0].abilities.logprobs_mode == "raw"


async def test_a_template_that_drops_tools_or_moves_history_is_named(tmp_path: Path) -> None:
    class Odd(ScriptedEngine):
        def render(self, request: Json) -> str:
            turns = len(request["messages"])
            return f"turns {turns}\n" + super().render({"messages": request["messages"]})

    async with serving(tmp_path, Odd()) as s:
        found = s.proxy.deps.pool.all()[0].abilities
        assert found.tools_rendered is False
        assert found.append_only is False
        assert "first user message" in (found.first_divergence or "")


@pytest.mark.parametrize(
    ("fault", "missing"),
    [(Fault(no_ids=True), "token ids nor token ids in streams"), (Fault(no_log_probs=True), "log probabilities")],
    ids=["no ids", "no log probs"],
)
async def test_strict_refuses_a_server_that_could_not_train(tmp_path: Path, fault: Fault, missing: str) -> None:
    engine = ScriptedEngine()
    engine.default = lambda _: Turn("hello", fault=fault)
    with pytest.raises(Untrainable, match=missing) as caught:
        async with serving(tmp_path, engine):
            pass
    assert "--record best-effort" in caught.value.hint
    assert engine.url in caught.value.message


async def test_best_effort_takes_it_and_says_why_its_rows_do_not_train(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.gives_ids = False
    async with serving(tmp_path, engine, record=Record.BEST_EFFORT) as s, s.chat() as answer:
        assert answer.status == 200
    (row,) = calls(s.data)
    assert (row.trainable, row.untrainable_reason) == (False, "prompt_ids_missing")


async def test_an_engine_that_never_gives_ids_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Untrainable, match="openai"):
        async with serving(tmp_path, ScriptedEngine(), engine="openai"):
            pass


async def test_a_server_that_is_not_up_is_waited_for_within_a_limit(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9 is not up after 0\.3 s") as caught:
        async with serving(tmp_path, upstreams=["http://127.0.0.1:9"], limits=replace(QUICK, start_s=0.3)):
            pass
    assert "curl http://127.0.0.1:9/v1/models" in caught.value.hint


async def test_a_server_that_wants_a_key_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="refuses our key") as caught:
        async with serving(tmp_path, ScriptedEngine(key="k")):
            pass
    assert "--upstream-key-file" in caught.value.hint


async def test_a_server_that_fails_the_probe_is_said_with_its_words(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.default = lambda _: Turn(fault=Fault(status=500))
    with pytest.raises(Unavailable, match="scripted 500"):
        async with serving(tmp_path, engine):
            pass


async def test_an_unknown_engine_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown engine"):
        async with serving(tmp_path, ScriptedEngine(), engine="nonsense"):
            pass


@pytest.mark.parametrize("sampled", ["Hi", "Hello", "Ahoy"])
@pytest.mark.parametrize(("mode", "scale"), [("processed", 2.0), ("raw", 1.0)])
def test_the_mode_is_told_whichever_token_was_sampled(sampled: str, mode: str, scale: float) -> None:
    """vLLM lists the sampled token first, and then the likeliest ones."""
    plain = {"Hi": -0.6, "Hello": -1.1, "Hey": -2.4, "Ahoy": -7.0}

    def answer(first: str, heat: float) -> dict[str, object]:
        listed = [first, *(token for token in ("Hi", "Hello", "Hey") if token != first)][:3]
        alternatives = [{"token": token, "logprob": plain[token] * heat} for token in listed]
        return {"choices": [{"logprobs": {"content": [{"top_logprobs": alternatives}]}}]}

    assert logprobs_mode(answer("Hi", 1.0), answer(sampled, scale)) == mode


def test_a_mode_that_cannot_be_told_is_not_guessed() -> None:
    assert logprobs_mode({}, {}) is None
    assert logprobs_mode({"choices": [{"logprobs": {"content": []}}]}, {"choices": []}) is None


async def test_rows_that_cannot_train_are_counted_by_their_reason(tmp_path: Path) -> None:
    """Field case 130: each row once, by the decoder, also when it starts again."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(run_id="run")
        for members in ({}, {"temperature": 0}, {"top_k": 5}):
            async with s.chat(key=ticket.api_key, **members) as answer:
                assert answer.status == 200
        await s.control.close_session(ticket.session_id)
        s.proxy.deps.recorder.cut()
        for _ in range(2):
            decoder = Decoder(s.data)
            decoder.catch_up()
            decoder.close()
        await s.proxy.deps.vitals.look(3)
        metrics = s.proxy.deps.metrics.text().decode()
    assert 'forge_untrainable_total{reason="constrained"} 2.0' in metrics
