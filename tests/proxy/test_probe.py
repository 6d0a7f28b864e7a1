"""What the probe finds, and whom strict recording refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forge.proxy.config import Record
from forge.proxy.probe import logprobs_mode
from forge.storage.errors import BadInput, Unavailable, Untrainable
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, calls, serving


async def test_what_a_good_server_can_do(tmp_path: Path) -> None:
    async with serving(tmp_path, probed=True) as s:
        found = s.proxy.deps.pool.all()[0].abilities
        assert (found.ids, found.stream_ids, found.log_probs, found.logprobs_mode) == (True, True, True, "processed")
        assert (found.stop_token_included, found.tools_rendered, found.append_only) == (True, True, True)
        assert (found.model, found.max_model_len, found.engine_version) == ("policy", 4096, "0.32.0")
        assert len(s.engine.served) <= 5
        assert all(x.json["max_tokens"] <= 4 for x in s.engine.served)


async def test_raw_log_probs_are_told_from_processed_ones(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.logprobs_mode = "raw"
    async with serving(tmp_path, engine) as s:
        assert s.proxy.deps.pool.all()[0].abilities.logprobs_mode == "raw"


async def test_a_template_that_drops_tools_or_moves_history_is_named(tmp_path: Path) -> None:
    class Odd(ScriptedEngine):
        def render(self, request: dict) -> str:  # type: ignore[type-arg]
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
