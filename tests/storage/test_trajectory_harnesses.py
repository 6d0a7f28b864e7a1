"""What real harnesses do to their history, and the tree made of it: the cause of each break, and the replies used.

Each harness is the way it echoes a reply, on a template that is append-only or one that strips old thinking.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np

from forge.storage.records import Call, CallKind, Session
from forge.storage.retries import discarded
from forge.storage.samples import derive
from forge.storage.trajectory import Trajectory, build
from tests.engine import ScriptedEngine
from tests.script import EOS, markup

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "be good"}
GO = {"role": "user", "content": "go"}
STATE = {"role": "user", "content": "now: 7 files are open"}


class Talk:
    """One session: a template, and the calls made so far."""

    def __init__(self, *, like_qwen: bool = False) -> None:
        self.engine = ScriptedEngine(like_qwen=like_qwen)
        self.calls: list[Call] = []

    def ask(self, messages: list[Json], reply: Json, *, kind: str = CallKind.MAIN, **members: Any) -> Json:
        """The reply, as the engine gave it."""
        encode = self.engine.tokenizer.encode
        prompt = encode(self.engine.render({"messages": messages}))
        output = encode(markup(reply) + EOS)
        number = len(self.calls)
        times = {"start_us": number * 1_000_000, "end_us": 500_000} | members
        self.calls.append(
            Call(
                call_id=f"c{number}", run_id="r", session_id="s", seq=number, kind=kind, messages=json.dumps(messages),
                response=json.dumps(reply), prompt_ids=np.array(prompt, np.int32), model_served="m",
                output_ids=np.array(output, np.int32), output_log_probs=np.full(len(output), -1.0, np.float32),
                trainable=True, finish_reason="stop", sampling_sent='{"temperature": 1.0}', policy_version_start=1,
                policy_version_end=1, status="ok", **times,
            )
        )  # fmt: skip
        return copy.deepcopy(reply)

    @property
    def tree(self) -> Trajectory:
        return build(self.calls)

    def causes(self) -> list[str | None]:
        return [node.placement.join_cause for node in self.tree.nodes]

    def used(self) -> list[bool]:
        return [node.used for node in self.tree.nodes]

    def rows(self) -> int:
        return len(derive(Session(session_id="s", run_id="r", reward=1.0, reward_status="graded"), self.calls).samples)


def says(text: str = "", *, call: str | None = None, id: str = "call_1", thinks: str | None = None) -> Json:
    reply: Json = {"role": "assistant", "content": text}
    if thinks is not None:
        reply["reasoning"] = thinks
    if call is not None:
        reply["tool_calls"] = [{"id": id, "type": "function", "function": {"name": "ls", "arguments": call}}]
    return reply


def result(id: str = "call_1") -> Json:
    return {"role": "tool", "tool_call_id": id, "content": "hello.txt"}


def test_openclaw_moves_its_state_message() -> None:
    """Taken out of its place and put at the end again: an edit of the history, though nothing was dropped; and the
    replies were used."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO, STATE], says(call='{"a":1}', id="call_1"))
    first["tool_calls"][0]["id"] = "call1"
    history = [SYSTEM, GO, first, result("call1")]
    second = talk.ask([*history, STATE], says(call='{"a":2}', id="call_2"))
    second["tool_calls"][0]["id"] = "call2"
    talk.ask([*history, second, result("call2"), STATE], says("done"))
    assert talk.causes() == ["root", "edited", "edited"]
    assert talk.used() == [True, True, False]


def test_notes_that_are_replaced_are_an_edit_too() -> None:
    """No compaction: nothing that the model said is gone."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO, STATE], says(call="{}"))
    talk.ask([SYSTEM, GO, first, result(), STATE | {"content": "now: 8 files are open"}], says("done"))
    assert talk.causes() == ["root", "edited"]
    assert talk.used() == [True, False]


def test_openclaws_retry_is_told_by_the_reply_that_moved_along() -> None:
    """Field cases 120, 165: which of two replies was used shows in later prompts, however these rewrite the history."""
    talk = Talk()
    kept = talk.ask([SYSTEM, GO, STATE], says(call='{"a": 1}', id="call_1"))
    talk.ask([SYSTEM, GO, STATE], says(call='{"a": 2}', id="call_2"), retry_of="c0")
    kept["tool_calls"][0] |= {"id": "call1"}
    kept["tool_calls"][0]["function"]["arguments"] = '{"a":1}'
    talk.ask([SYSTEM, GO, kept, result("call1"), STATE], says("done"))
    assert talk.used() == [True, False, False]
    assert discarded(talk.tree) == {1}


def test_retries_that_differ_in_their_thoughts_alone() -> None:
    """Field case 165: where a template shows no thinking, the text tells which was used, though the ids are another's;
    where that is gone too nobody can tell, and none is thrown away."""
    for shown in ("say so", None):
        talk = Talk()
        talk.ask([SYSTEM, GO], says("done", thinks="be brief" if shown is None else None))
        told = talk.ask([SYSTEM, GO], says("done", thinks="say so"), retry_of="c0")
        talk.engine.like_qwen = True
        history = [SYSTEM, GO, told if shown else says("done"), GO]
        talk.ask(history, says("again"))
        assert talk.used()[1]
        assert 1 not in discarded(talk.tree)


def test_hermes_drops_its_thinking() -> None:
    """Field cases 92, 156: on any template each of its turns is a break."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call="{}", thinks="look first"))
    del first["reasoning"]
    second = talk.ask([SYSTEM, GO, first, result()], says("done ", thinks="say so"))
    del second["reasoning"]
    second["content"] = second["content"].strip()
    talk.ask([SYSTEM, GO, first, result(), second, GO], says("again"))
    assert talk.causes() == ["root", "thinking_stripped", "thinking_stripped"]
    assert talk.used() == [True, True, False]
    assert talk.rows() == 3


def test_a_template_strips_what_the_harness_kept() -> None:
    """Field cases 156, 157, 158: a break at each user's turn, not at each call."""
    talk = Talk(like_qwen=True)
    first = talk.ask([SYSTEM, GO], says(call="{}", thinks="look first"))
    second = talk.ask([SYSTEM, GO, first, result()], says("done", thinks="say so"))
    third = talk.ask([SYSTEM, GO, first, result(), second, GO], says("again", thinks="and again"))
    talk.ask([SYSTEM, GO, first, result(), second, GO, third, GO], says("and on"))
    assert talk.causes() == ["root", None, "thinking_stripped", "thinking_stripped"]
    assert talk.used() == [True, True, True, False]
    assert talk.rows() == 3


def test_what_stands_between_two_turns_is_in_the_row() -> None:
    """Field cases 154, 155: separators and the tool's turn, as the engine read them: guessed by nobody, trained by
    nobody."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call="{}"))
    talk.ask([SYSTEM, GO, first, result()], says("done"))
    (sample,) = derive(Session(session_id="s", run_id="r", reward=1.0, reward_status="graded"), talk.calls).samples
    before, after = talk.calls
    shown = [*after.prompt_ids, *after.output_ids]
    assert [*sample.prompt_ids, *sample.response_ids] == shown
    between = after.prompt_ids[len(before.prompt_ids) + len(before.output_ids) :]
    text = talk.engine.tokenizer.decode(between.tolist())
    assert text.startswith("\n"), "the template ends a turn with more than the token that the model samples"
    mask = [1] * len(before.output_ids) + [0] * len(between) + [1] * len(after.output_ids)
    assert sample.response_mask.tolist() == mask


def test_a_reply_behind_the_place_where_ids_part_at_once_is_used_too() -> None:
    """A template may write a list of one text otherwise from its first token on: no id follows the exact history then.
    The text still says whose replies come next, and that a retry of one does not displace it."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call="{}"))
    history = [SYSTEM, GO, first, result()]
    second = talk.ask(history, says("done"))
    talk.ask(history, says("ready"), retry_of="c1")
    talk.ask([*history, second, GO], says("again"))
    known = len(talk.calls[0].prompt_ids) + len(talk.calls[0].output_ids)
    prompt = talk.calls[3].prompt_ids.copy()
    prompt[known] += 1
    talk.calls[3] = replace(talk.calls[3], prompt_ids=prompt)
    assert (talk.tree.nodes[3].parent, talk.tree.nodes[3].placement.prefix_len) == (0, known)
    assert talk.used() == [True, True, False, False]
    assert discarded(talk.tree) == {2}
    assert talk.causes()[3] == "retokenized"


def test_pi_writes_arguments_its_own_way() -> None:
    """Field case 99: the template renders what it is given; the ids part, the text does not."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call='{"a": 1}'))
    first["tool_calls"][0]["function"]["arguments"] = '{"a":1}'
    talk.ask([SYSTEM, GO, first, result()], says("done"))
    assert talk.causes() == ["root", "retokenized"]
    assert talk.used() == [True, False]


def test_arguments_after_a_thought_are_no_thought() -> None:
    """Claude Code's wire has arguments as values: they are written anew, and part behind a thought that stands."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call='{"a":1}', thinks="look first"))
    first["tool_calls"][0]["function"]["arguments"] = '{"a": 1}'
    talk.ask([SYSTEM, GO, first, result()], says("done"))
    assert talk.causes() == ["root", "retokenized"]


def test_an_empty_thought_in_place_of_one_is_a_stripped_one() -> None:
    """Field case 158: the template writes the marks, and nothing between them."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says("done", thinks="say so"))
    shown = first | {"content": "<think></think>done"}
    del shown["reasoning"]
    talk.ask([SYSTEM, GO, shown, GO], says("again"))
    assert talk.causes() == ["root", "thinking_stripped"]
    assert talk.used() == [True, False]


def test_qwen_code_repairs_arguments() -> None:
    """Field case 99: what ran is not what was sampled."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call='{"a": 1'))
    first["tool_calls"][0]["function"]["arguments"] = '{"a": 1}'
    talk.ask([SYSTEM, GO, first, result()], says("done"))
    assert talk.causes() == ["root", "edited"]


def test_mini_swe_agent_leaves_an_answer_out() -> None:
    """The refused answer is a branch of its own; the history goes on from the turn before."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call="{}"))
    history = [SYSTEM, GO, first, result()]
    talk.ask(history, says("no tool call"))
    talk.ask([*history, {"role": "user", "content": "Please call a tool"}], says(call="{}"))
    assert talk.causes() == ["root", None, None]
    assert talk.used() == [True, False, False]
    assert talk.rows() == 2


def test_compactions() -> None:
    """Field cases 115, 166, 168: a summary in the place of a history, of whatever length, forks; nothing is refused."""
    summary = "The file hello.txt was made and holds hi; nothing is left to do."
    for restart in (
        [SYSTEM, {"role": "user", "content": f"Another model began this task. Its summary: {summary}"}],  # Codex
        [{"role": "user", "content": f"This session continues an earlier one.\n{summary}"}],  # Claude Code
        [SYSTEM, {"role": "user", "content": "What did we do so far?"}, says(summary), GO],  # OpenCode
        [
            {"role": "user", "content": f"<state_snapshot>{summary}</state_snapshot>"},
            says("Got it. Thanks!"),
            GO,
        ],  # Qwen
    ):
        talk, history = Talk(), [SYSTEM, GO]
        for n in range(40):
            history += [talk.ask(history, says(call=f'{{"n":{n}}}', id=f"call_{n}")), result(f"call_{n}")]
        ask = {"role": "user", "content": "Create a summary"}
        talk.ask([*history, ask], says(summary, thinks="what was it"), kind=CallKind.COMPACTION)
        again = talk.ask(restart, says(call="{}", id="call_x"))
        talk.ask([*restart, again, result("call_x")], says("done"))
        assert talk.causes() == ["root", *[None] * 40, "compacted", None]
        tree = talk.tree
        assert len(tree.branches()) == 2


def test_a_subagent_is_a_root() -> None:
    """Field case 167: parents, sub-agents and their results make one tree of several roots."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says(call='{"task":"look"}'))
    helper = [{"role": "system", "content": "You search."}, {"role": "user", "content": "look"}]
    found = talk.ask(helper, says("found it"), kind=CallKind.SUBAGENT, agent_id="a")
    talk.ask([*helper, found, GO], says("and more"), kind=CallKind.SUBAGENT, agent_id="a")
    talk.ask([SYSTEM, GO, first, result() | {"content": "found it"}], says("done"))
    assert talk.causes() == ["root", "root", None, None]
    assert talk.rows() == 2


def test_a_word_that_another_agent_said_too_makes_no_compaction() -> None:
    """A helper's prompt is reworded; the same short reply stands at the end of a long history that is not its own."""
    talk = Talk()
    task = {"role": "user", "content": "sub task"}
    empty = talk.ask([{"role": "system", "content": "help"}, task], says(""))
    long = [SYSTEM, task]
    for word in ("one", "two", "three"):
        long += [talk.ask(long, says(word)), GO]
    talk.ask(long, says(""))
    talk.ask([{"role": "system", "content": "help, at 9:05"}, task, empty, GO], says("done"))
    assert talk.causes()[-1] == "edited"


def test_parallel_equal_calls_stay_apart() -> None:
    """Field case 120: twins that ran at one time are no retry of each other, though only one goes on."""
    talk = Talk()
    first = talk.ask([SYSTEM, GO], says("one"), start_us=0)
    talk.ask([SYSTEM, GO], says("two"), start_us=10)
    talk.ask([SYSTEM, GO, first, GO], says("done"))
    assert talk.used() == [True, False, False]
    assert discarded(talk.tree) == set()
    assert talk.rows() == 2
