"""Text, stop rules and version spans of one growing answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forge.policy.answer import Answer, Said, Span, StopRules


class Letters:
    """Ids 0..25 are letters; 30 is half a character that the next id ends; 31 is special."""

    def __init__(self) -> None:
        self.half = False

    def feed(self, index: int) -> str:
        if index == 30:
            self.half = True
            return ""
        if index == 31:
            return ""
        head, self.half = ("é" if self.half else ""), False
        return head + chr(ord("a") + index)

    def finish(self) -> str:
        return "\ufffd" if self.half else ""


def run(ids: list[int], rules: StopRules) -> tuple[str, list[Said], Answer]:
    answer = Answer(Letters(), rules)
    said: list[Said] = []
    for index in ids:
        said.append(answer.feed(index, "0"))
        if said[-1].finish:
            break
    return "".join(s.text for s in said), said, answer


def word(text: str) -> list[int]:
    return [ord(c) - ord("a") for c in text]


@given(st.text("abc", max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_a_stop_string_cuts_at_its_first_end_whatever_the_ids(text: str, stops: list[str]) -> None:
    got, said, answer = run([*word(text), 31], StopRules(100, stops, eos=frozenset({31})))
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    if not ends:
        assert (got, said[-1].finish, len(answer.ids)) == (text, "stop", len(text) + 1)
        return
    end = min(ends)[0]
    start = min(at for stop_end, at, _ in ends if stop_end == end)
    assert got == text[:start]
    assert len(answer.ids) == end, "the ids keep the stop string"
    assert said[-1].stop in stops


def test_text_is_held_back_only_while_it_may_be_a_stop() -> None:
    _, said, _ = run(word("abxabc"), StopRules(100, ["abc"]))
    assert [s.text for s in said] == ["", "", "abx", "", "", ""]
    assert said[-1] == Said("", "stop", "abc")


def test_the_stop_string_can_be_kept() -> None:
    assert run(word("xabc"), StopRules(100, ["abc"], include=True))[0] == "xabc"


def test_end_ids() -> None:
    rules = StopRules(100, ids=frozenset({5}), eos=frozenset({31}))
    assert run([0, 31], rules)[1][-1] == Said("", "stop", None)
    assert run([0, 5], rules)[1][-1] == Said("", "stop", 5)


def test_the_length_gives_out_what_was_held() -> None:
    text, said, _ = run(word("ab"), StopRules(2, ["abc"]))
    assert (text, said[-1].finish) == ("ab", "length")
    assert run([30], StopRules(1))[0] == "\ufffd"


def test_half_a_character_waits() -> None:
    _, said, _ = run([0, 30, 1], StopRules(100))
    assert [s.text for s in said] == ["a", "", "éb"]


def test_version_spans() -> None:
    answer = Answer(Letters(), StopRules(10))
    for version in ("0", "0", "1", "1", "2"):
        answer.feed(0, version)
    assert answer.spans == [Span("0", 0, 2), Span("1", 2, 4), Span("2", 4, 5)]
