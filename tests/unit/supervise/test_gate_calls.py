"""supervise/gate.py: which running call an event belongs to."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from wal_agent.calls.call import ReadCall
from wal_agent.supervise.gate import Calls, RunningCall, canonical_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def running(call: int, tool: str = "t", input: bytes = b"{}", call_id: str = "", changes: bool = True) -> RunningCall:
    return RunningCall(call, tool, input, call_id, changes, 1.0)


def started(*calls: RunningCall) -> Calls:
    found = Calls()
    for call in calls:
        found.start(call)
    return found


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 10))
def test_identical_calls_are_a_counter(begun: int, told: int) -> None:
    """ARCHITECTURE.md: n of m open; each end takes one away, each at most once, and never more than began."""
    calls = started(*(running(n) for n in range(1, begun + 1)))
    ended = []
    for _ in range(told):
        found = calls.find(ReadCall("t", b"{}"))
        if found is not None:
            assert calls.end(found.call) is found
            ended.append(found.call)
    assert len(ended) == len(set(ended)) == min(begun, told)
    assert len(calls.running) == begun - len(ended)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([b"{}", b'{"x":1}', b"junk"])), min_size=1, max_size=8),
    st.integers(0, 9),
    st.sampled_from("ab"),
    st.sampled_from([b"{}", b'{"x": 1}', b"other"]),
    st.booleans(),
)
def test_an_end_never_belongs_to_a_call_above_upto(
    begun: list[tuple[str, bytes]], upto: int, tool: str, input: bytes, exact: bool
) -> None:
    """I8: a batch that is over cannot end a call of the next one; and an end is always of the same tool."""
    calls = started(*(running(n, t, i) for n, (t, i) in enumerate(begun, 1)))
    found = calls.find(ReadCall(tool, input), upto=upto, exact=exact)
    equal = [
        c
        for c in calls.running.values()
        if c.tool == tool and canonical_json(ReadCall("", c.input)) == canonical_json(ReadCall("", input))
    ]
    if found is not None:
        assert found.call <= upto and found.tool == tool
        assert found in equal or not [c for c in equal if c.call <= upto]
    else:
        assert not [c for c in equal if c.call <= upto]


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), JSON, min_size=2, max_size=5))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    turned = json.dumps(dict(reversed(value.items())), indent=1).encode()
    calls = started(running(1, input=b'{"other": 1}'), running(2, input=json.dumps(value).encode()))
    found = calls.find(ReadCall("t", turned), exact=True)
    assert found is not None and found.call == 2


def test_half_of_a_surrogate_pair_is_what_the_hook_was_read_as() -> None:
    assert canonical_json(ReadCall("", rb'{"a": "\ud83d"}')) == canonical_json(ReadCall("", '{"a":"\ufffd"}'.encode()))


def test_a_rewritten_input_means_the_only_running_call_of_its_tool_or_none() -> None:
    """A user's own hook may rewrite an input; with two candidates a guess would end the wrong one (I8)."""
    calls = started(running(1, "shell", b'{"a":1}'), running(2, "write", b"{}"))
    only = calls.find(ReadCall("shell", b'{"a":2}'))
    assert only is not None and only.call == 1
    assert calls.find(ReadCall("shell", b'{"a":2}'), exact=True) is None
    calls.start(running(3, "shell", b'{"a":3}'))
    assert calls.find(ReadCall("shell", b'{"a":2}')) is None
    assert calls.find(ReadCall("read", b"{}")) is None


def test_a_call_id_decides_alone() -> None:
    calls = started(running(1, call_id="x"), running(2, call_id="y"))
    found = calls.find(ReadCall("another name", b"junk"), "y")
    assert found is not None and found.call == 2
    assert calls.find(ReadCall("t", b"{}"), "z") is None


def test_among_equal_ids_an_equal_call_is_meant_and_then_the_newest() -> None:
    """I8: models on one's own machine count "call_0" anew in each answer; the oldest may run since long ago."""
    calls = started(running(1, "bash", b'{"a":1}', "call_0"), running(2, "write", b"{}", "call_0"))
    calls.start(running(3, "bash", b'{"a":3}', "call_0"))
    for tool, input, call in (("write", b" {}", 2), ("bash", b'{"a":1}', 1), ("bash", b'{"a":"rewritten"}', 3)):
        found = calls.find(ReadCall(tool, input), "call_0")
        assert found is not None and found.call == call
    for call in (1, 2, 3):
        calls.end(call, again=True)
    assert calls.is_repeated(ReadCall("write", b"{}"), 3, "call_0")
    assert [known.call for known in calls.again] == [1, 3]
    assert calls.is_repeated(ReadCall("write", b"{}"), 3, "call_0")
    assert [known.call for known in calls.again] == [1]


def test_an_end_that_is_told_again_counts_once_and_only_up_to_its_batch() -> None:
    calls = started(running(1), running(2), running(3))
    calls.end(1, again=True)
    calls.end(2)
    calls.end(3, again=True)
    assert not calls.is_repeated(ReadCall("t", b"{}"), 0)
    assert calls.is_repeated(ReadCall("t", b" {} "), 2)
    assert not calls.is_repeated(ReadCall("t", b"{}"), 2)
    assert calls.is_repeated(ReadCall("t", b"{}"), 3)
    assert calls.end(9, again=True) is None and calls.again == []


def test_what_a_batch_leaves_behind_is_forgotten_with_it() -> None:
    """I9: memory does not grow with the session."""
    calls = started(running(1), running(2))
    calls.end(1, again=True)
    calls.end(2, again=True)
    calls.forget(1)
    assert [known[0] for known in calls.again] == [2]


def test_only_what_may_change_something_is_changing() -> None:
    calls = started(running(1, changes=False), running(2), running(3, changes=False), running(4))
    assert [c.call for c in calls.changing()] == [2, 4]


def test_what_is_no_json_is_compared_as_it_is() -> None:
    deep = b"[" * 100_000
    assert canonical_json(ReadCall("", deep)) == deep and canonical_json(ReadCall("", b"\xff")) == b"\xff"
