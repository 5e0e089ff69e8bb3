"""A restored session of Copilot's: what is cut, mended and put back; twice is once; what an appended part tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.copilot import Copilot
from wal_agent.agents.copilot.putback import call_id

COPILOT = Copilot()
WS = Path("/new/place")
ID = "0a2c546b-cf56-4bbc-8f97-fa1b4330f64b"
Json = dict[str, Any]
INTERRUPTED = "Tool execution was interrupted before a result was recorded."


def event(kind: str, data: Json, second: int = 0, **more: str) -> Json:
    time = f"2026-01-01T00:00:{second:02}.000Z"
    return {"type": kind, "data": data, "id": f"{kind}-{second}", "timestamp": time, "parentId": None, **more}


HEAD = event("session.start", {"sessionId": ID, "version": 1, "producer": "copilot-agent"})
USER = event("user.message", {"content": "do it"}, 1)


def asked(*calls: tuple[str, str], second: int = 2, **more: str) -> Json:
    wanted = [{"toolCallId": id, "name": "bash", "arguments": {"command": c}, "type": "function"} for id, c in calls]
    return event("assistant.message", {"content": "T", "model": "m", "toolRequests": wanted}, second, **more)


def told(id: str, text: str, second: int = 3) -> Json:
    data = {"toolCallId": id, "interactionId": "i", "success": True, "result": {"content": text}}
    return event("tool.execution_complete", data, second)


def cut_short(id: str, second: int = 4) -> Json:
    """As Copilot writes it at a resume."""
    error = {"message": INTERRUPTED, "code": "interrupted"}
    data = {"toolCallId": id, "model": "resumed", "interactionId": "resume", "success": False, "error": error}
    return event("tool.execution_complete", data, second)


def lines(*events: Json) -> bytes:
    return b"".join(json.dumps(e).encode() + b"\n" for e in events)


def call(n: int, command: str, result: str | None = None, failed: bool = False, started: float = 0.0) -> LoggedCall:
    text = json.dumps({"command": command}).encode()
    done = None if result is None else json.dumps({"text": result, "type": "success"}).encode()
    return LoggedCall(n, "bash", text, done, failed, "" if done else "nobody knows.", started)


def outcomes(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in data.splitlines():
        e = json.loads(line)["data"]
        if "success" in e:
            assert e["toolCallId"] not in found, "told once"
            found[e["toolCallId"]] = e["result"]["content"] if e["success"] else e["error"]["message"]
    return found


def twice(main: bytes, *calls: LoggedCall) -> Reconciled:
    made = COPILOT.reconcile(main, ID, WS, calls)
    again = COPILOT.reconcile(made.data, ID, WS, calls)
    assert (again.data, again.put_back, again.repairs) == (made.data, 0, ())
    return made


def mended(main: bytes, *calls: LoggedCall) -> tuple[Reconciled, dict[str, str]]:
    made = twice(main, *calls)
    return made, outcomes(made.data)


def test_a_batch_that_was_cut_short() -> None:
    main = lines(HEAD, USER, asked(("a", "one"), ("b", "two"), ("c", "three")), told("a", "1"))
    made, found = mended(main, call(1, "one", "1"), call(2, "two", "2"), call(3, "three"))
    assert made.data.startswith(main) and made.put_back == 2
    assert found == {"a": "1", "b": "2", "c": "outcome unknown: nobody knows."}


def test_what_copilot_said_of_an_interrupted_call_gives_way_to_the_log() -> None:
    resumed = event("session.resume", {}, 3)
    main = lines(HEAD, USER, asked(("a", "one"), ("b", "two"), ("x", "not logged")), resumed, *map(cut_short, "abx"))
    made, found = mended(main, call(1, "one", "1"), call(2, "two"))
    kinds = [json.loads(line)["type"] for line in made.data.splitlines()]
    assert kinds[3:6] == ["tool.execution_complete", "tool.execution_complete", "session.resume"], (
        "else it is not heard"
    )
    assert made.put_back == 2
    assert found == {"a": "1", "b": "outcome unknown: nobody knows.", "x": INTERRUPTED}
    _, later = mended(made.data, call(1, "one", "1"), call(2, "two", "after all"))
    assert later["b"] == "after all"


def test_a_message_that_was_lost() -> None:
    made, found = mended(lines(HEAD, USER), one := call(1, "one", "1", failed=True), two := call(2, "two"))
    assert made.put_back == 2 and made.messages == 2
    assert found == {call_id(one): "1", call_id(two): "outcome unknown: nobody knows."}
    message = json.loads(made.data.splitlines()[2])
    assert [r["arguments"] for r in message["data"]["toolRequests"]] == [{"command": "one"}, {"command": "two"}]
    assert message["parentId"] == USER["id"]


def test_equal_calls() -> None:
    """Of two in one batch the one that ended goes with the one that ended; an older one is another."""
    main = lines(
        HEAD, asked(("old", "x")), told("old", "0"), asked(("a", "x"), ("b", "x"), second=9), told("b", "1", 10)
    )
    made, found = mended(main, call(1, "x", "1", started=1767225609.5), call(2, "x", started=1767225609.6))
    assert found == {"old": "0", "b": "1", "a": "outcome unknown: nobody knows."} and made.put_back == 1


def test_a_subagents_call_keeps_its_place() -> None:
    made, _ = mended(lines(HEAD, asked(("a", "one"), agentId="sub")), call(1, "one", "1"))
    assert json.loads(made.data.splitlines()[-1])["agentId"] == "sub"


def test_damage() -> None:
    main = lines(USER) + b'{"broken\n' + bytes(40) + b"\n[1]\n" + lines(asked(("a", "one"))) + b'{"type":"torn'
    made, found = mended(main, call(1, "one", "1"))
    assert len(made.repairs) == 3 and found == {"a": "1"}
    head = json.loads(made.data.splitlines()[0])
    assert (head["type"], head["data"]["sessionId"], head["data"]["context"]["cwd"]) == ("session.start", ID, str(WS))
    made, _ = mended(b"", call(1, "one"))
    assert made.data.count(b"\n") == 3
    assert COPILOT.tell(made.data, ID, WS, "p") is None


def test_a_result_as_the_log_may_have_it() -> None:
    kinds = (b'{"error": "bad"}', b'"our words"', b'{"text": "cut o', b'{"error": {"message": "why"}}', b"\xff", b"[]")
    _, found = mended(
        lines(HEAD, asked(*((str(n), str(n)) for n in range(6)))),
        *(LoggedCall(n, "bash", json.dumps({"command": str(n)}).encode(), r, False) for n, r in enumerate(kinds)),
    )
    assert found == {"0": "bad", "1": "our words", "2": '{"text": "cut o', "3": "why", "4": "\ufffd", "5": "[]"}


LINES = st.sampled_from(
    [
        lines(HEAD),
        lines(USER),
        lines(asked(("a", "x"), ("b", "y"))),
        lines(asked(("c", "x"), agentId="s")),
        lines(told("a", "1")),
        lines(cut_short("b")),
        lines({"type": "assistant.message", "data": {"toolRequests": [1, {"toolCallId": [2], "arguments": "t"}]}}),
        lines({"type": "tool.execution_complete", "data": [], "timestamp": 7}),
        b"junk\n",
        b"\0\0\0",
        b"\n",
    ]
)
CALLS = st.lists(
    st.builds(
        LoggedCall,
        st.integers(1, 9),
        st.sampled_from(["bash", "apply_patch", ""]),
        st.sampled_from([b'{"command": "x"}', b'{"command": "y"}', b'{"input": "p"}', b"no json", b"[1]"]),
        st.none() | st.sampled_from([b'{"text": "r"}', b'{"error": null}', b"x" * 50000, b""]),
        st.booleans(),
        st.sampled_from(["", "a note"]),
        st.sampled_from([0.0, 1767225603.5, 2e9]),
    ),
    max_size=5,
    unique_by=lambda c: c.call,
)


@given(st.lists(LINES, max_size=9), CALLS)
def test_twice_is_once(parts: list[bytes], calls: list[LoggedCall]) -> None:
    twice(b"".join(parts), *calls)


@given(st.binary(max_size=200) | st.lists(LINES, max_size=9).map(b"".join))
def test_reading_never_fails(data: bytes) -> None:
    COPILOT.seen_calls(data)
    COPILOT.unhooked(data)
    COPILOT.reconcile(data, ID, WS, ())


def test_what_appended_bytes_tell() -> None:
    """An outcome names its call only by an id that stood in bytes that were told before."""
    agent = Copilot()
    assert agent.seen_calls(lines(asked(("a", "one"), ("b", "two"), ("c", "three"), ("d", "four")))) == []
    denied = event("tool.execution_complete", {"toolCallId": "b", "success": False, "error": {"code": "denied"}})
    seen = agent.seen_calls(lines(told("a", "1"), denied, told("unknown", "1")))
    assert [(s.id, s.status, s.tool, json.loads(s.input), s.call_id) for s in seen] == [
        ("a", "done", "bash", {"command": "one"}, ""),
        ("b", "refused", "bash", {"command": "two"}, ""),
    ]
    seen = agent.seen_calls(lines(cut_short("c"), event("abort", {"reason": "user_initiated"})))
    assert [(s.id, s.status) for s in seen] == [("c", "cancelled"), ("d", "cancelled")]
    assert agent.seen_calls(lines(told("d", "late"))) == []


def test_a_turn_without_hooks() -> None:
    assert COPILOT.unhooked(lines(HEAD, USER))
    assert not COPILOT.unhooked(lines(HEAD, asked(("a", "x")), {**USER, "agentId": "sub"}))
