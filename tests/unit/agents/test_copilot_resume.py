"""A restored session of Copilot's: what is cut, mended and put back; twice is once; what an appended part tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import copilot as COPILOT
from wal_agent.agents.base import LoggedCall, Reconciled, ToolEnded, ToolStarting
from wal_agent.agents.copilot.resume import call_id
from wal_agent.agents.copilot.session import OpenCalls
from wal_agent.supervise.gate import cut_payload

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


def test_a_later_equal_call_is_not_the_one_that_dangles() -> None:
    """A second recovery: the call of the first is settled by then, and the message of the equal one that came after
    was lost."""
    begun = 1767225600.0
    main = lines(HEAD, USER, asked(("a", "make")))
    made, found = mended(main, call(1, "make", started=begun + 2.5))
    assert found == {"a": "outcome unknown: nobody knows."}
    again = made.data + lines(event("user.message", {"content": "recovery"}, 20))
    later = call(5, "make", "made", started=begun + 30)
    made, found = mended(again, later)
    assert found == {"a": "outcome unknown: nobody knows.", call_id(later): "made"} and made.put_back == 1
    other_job = call(1, "make", "made", started=begun + 30)
    made, found = mended(again, other_job)
    assert found == {"a": "outcome unknown: nobody knows.", call_id(other_job): "made"}
    no_time = call(5, "make", "made")
    assert mended(again, no_time)[1] == {"a": "outcome unknown: nobody knows.", call_id(no_time): "made"}
    made, found = mended(again, call(1, "make", "after all", started=begun + 2.5), later)
    assert found == {"a": "after all", call_id(later): "made"} and made.put_back == 2


@pytest.mark.parametrize("over", [cut_short("a", 9), event("abort", {}, 9), event("assistant.turn_end", {}, 9)])
def test_a_later_equal_call_is_not_one_that_was_cut_short(over: Json) -> None:
    main = lines(HEAD, USER, asked(("a", "make")), over)
    made, found = mended(main, later := call(5, "make", "made", started=1767225630))
    assert found[call_id(later)] == "made" and found.get("a") in (None, INTERRUPTED) and made.put_back == 1
    _, found = mended(main, call(5, "make", "made", started=1767225608))
    assert found == {"a": "made"}


def test_ids_that_come_again() -> None:
    """Some models count calls from zero in each answer: an outcome is of the last request before it."""
    main = lines(HEAD, USER, asked(("a", "one")), told("a", "1"), asked(("a", "two"), second=4))
    made = twice(main, call(1, "one", "1", started=1767225602.5), call(2, "two", started=1767225604.5))
    assert made.put_back == 1 and made.data.startswith(main)
    (outcome,) = made.data[len(main) :].splitlines()
    assert "nobody knows" in json.loads(outcome)["data"]["error"]["message"]
    main = lines(HEAD, USER, asked(("a", "one")), asked(("a", "two"), second=4), told("a", "2", 5))
    both = lines(HEAD, USER, asked(("a", "one")), {**asked(("a", "two"), second=4), "id": "another"})
    made = twice(both, call(1, "one", "1", started=1767225602.5), call(2, "two", "2", started=1767225604.5))
    assert len({json.loads(line)["id"] for line in made.data.splitlines()}) == 6
    made = twice(main, call(1, "one", "1", started=1767225602.5), call(2, "two", "2", started=1767225604.5))
    told_now = [json.loads(line)["data"].get("result") for line in made.data.splitlines()]
    assert told_now == [None, None, None, {"content": "1"}, None, {"content": "2"}]


def test_a_subagents_ids_may_be_its_parents() -> None:
    main = lines(HEAD, asked(("a", "outer")), asked(("a", "inner"), second=3, agentId="s"))
    made = twice(main, call(1, "outer", "1", started=1767225602.5), call(2, "inner", "2", started=1767225603.5))
    agents = [json.loads(line).get("agentId") for line in made.data.splitlines() if b"execution_complete" in line]
    assert made.put_back == 2 and sorted(agents, key=str) == [None, "s"]


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def test_what_is_nested_too_deep() -> None:
    deep = nested(700)
    line = b'{"type":"assistant.message","data":{"toolRequests":[{"toolCallId":"a","name":"bash","arguments":%s}]}}\n'
    made = twice(lines(HEAD) + line % deep, LoggedCall(1, "bash", deep, b'{"text":%s}' % deep, False))
    assert made.put_back == 1 and made.repairs == ("1 damaged line(s) of the session file were left out.",)


def test_a_result_that_was_cut() -> None:
    """The bucket was away: the beginning of what the hook told, and a sentence."""
    whole = json.loads(bytes(ended("a\n" + 40000 * '"\\ü').result))["text"]
    kept = cut_payload(ended(whole).result).data
    assert kept is not None
    _, found = mended(lines(HEAD, asked(("a", "x"))), LoggedCall(1, "bash", b'{"command": "x"}', kept, False))
    assert found["a"].startswith('a\n"\\ü"\\ü') and found["a"].endswith("could not be saved: the bucket was away]")
    for told in (b'{"text":"it is \\u00', b'{"text":"it is \\', b'{"text":"it is ","type":"succ'):
        result = told + b"\n[wal-agent: cut]"
        _, found = mended(lines(HEAD, asked(("a", "x"))), LoggedCall(1, "bash", b'{"command": "x"}', result, False))
        assert found["a"] == "it is \n[wal-agent: cut]"


def ended(text: str) -> ToolEnded:
    said = {"sessionId": ID, "toolName": "bash", "toolArgs": {}}
    said["toolResult"] = {"resultType": "success", "textResultForLlm": text}
    told = COPILOT.parse("postToolUse", json.dumps(said).encode())
    assert isinstance(told, ToolEnded)
    return told


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
    assert made.data.count(b"\n") == 4
    assert COPILOT.capabilities.inject_prompt is None


def test_a_result_as_the_log_may_have_it() -> None:
    kinds = (b'{"error": "bad"}', b'"our words"', b'{"text": "cut o', b'{"error": {"message": "why"}}', b"\xff", b"[]")
    _, found = mended(
        lines(HEAD, asked(*((str(n), str(n)) for n in range(6)))),
        *(LoggedCall(n, "bash", json.dumps({"command": str(n)}).encode(), r, False) for n, r in enumerate(kinds)),
    )
    assert found == {"0": "bad", "1": "our words", "2": "cut o", "3": "why", "4": "\ufffd", "5": "[]"}


LINES = st.sampled_from(
    [
        lines(HEAD),
        lines(USER),
        lines(asked(("a", "x"), ("b", "y"))),
        lines(asked(("c", "x"), agentId="s")),
        lines(asked(("a", "y"), ("a", "x"), second=5, agentId="s")),
        lines(asked(("b", "x"), second=5)),
        lines(told("b", "2", 6) | {"agentId": "s"}),
        lines(event("abort", {}, 5)),
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


def test_each_outcome_of_a_resume_is_replaced() -> None:
    """Two resumes wrote one for the same call: what is left of them would count the next time."""
    prompt = event("user.message", {"content": "do it"})
    made, told = mended(lines(asked(("b", "x")), prompt, cut_short("b"), cut_short("b")), call(1, "x", "r"))
    assert made.put_back == 1 and told == {"b": "r"}


@given(st.lists(LINES, max_size=9), CALLS)
def test_twice_is_once(parts: list[bytes], calls: list[LoggedCall]) -> None:
    twice(b"".join(parts), *calls)


@given(st.binary(max_size=200) | st.lists(LINES, max_size=9).map(b"".join))
def test_reading_never_fails(data: bytes) -> None:
    COPILOT.seen_calls(data)
    COPILOT.proves_turn(data)
    COPILOT.reconcile(data, ID, WS, ())


def test_what_appended_bytes_tell() -> None:
    """An outcome names its call only by an id that stood in bytes that were told before."""
    agent = OpenCalls()
    assert agent.seen_calls(lines(asked(("a", "one"), ("b", "two"), ("c", "three"), ("d", "four")))) == []
    denied = event("tool.execution_complete", {"toolCallId": "b", "success": False, "error": {"code": "denied"}})
    seen = agent.seen_calls(lines(told("a", "1"), denied, told("unknown", "1")))
    assert [(s.id, s.status, s.tool, json.loads(s.input), s.call_id) for s in seen] == [
        ("assistant.message-2 a", "done", "bash", {"command": "one"}, ""),
        ("assistant.message-2 b", "refused", "bash", {"command": "two"}, ""),
    ]
    seen = agent.seen_calls(lines(cut_short("c"), event("abort", {"reason": "user_initiated"})))
    assert [(s.id[-1], s.status) for s in seen] == [("c", "cancelled"), ("d", "cancelled")]
    assert agent.seen_calls(lines(told("d", "late"))) == []


def test_a_persons_answer_tells_a_no_from_an_esc_in_the_tool() -> None:
    """I8: as 1.0.102 writes it. Both end with the same `abort`."""

    def answer(id: str, kind: str) -> Json:
        return event("permission.completed", {"toolCallId": id, "result": {"kind": kind}}, 5)

    agent = OpenCalls()
    agent.seen_calls(lines(asked(("a", "one"), ("b", "two"), ("c", "three"), ("d", "four"))))
    agent.seen_calls(lines(answer("a", "cancelled"), answer("b", "approved"), answer("d", "approved-for-session")))
    denied = event("tool.execution_complete", {"toolCallId": "d", "success": False, "error": {"code": "rejected"}})
    seen = agent.seen_calls(lines(denied, event("abort", {"reason": "user_initiated"})))
    assert [(s.id[-1], s.status) for s in seen] == [
        ("d", "stopped"),
        ("a", "refused"),
        ("b", "stopped"),
        ("c", "cancelled"),
    ]


def test_an_esc_at_the_question_is_a_no_although_its_answer_comes_behind_the_abort() -> None:
    """I8: as 1.0.102 writes it, when it is quick."""
    agent = OpenCalls()
    question = event("permission.requested", {"requestId": "r", "permissionRequest": {"toolCallId": "a"}}, 5)
    seen = agent.seen_calls(
        lines(
            asked(
                ("a", "one"),
            ),
            question,
            event("abort", {"reason": "user_initiated"}),
        )
    )
    assert [(s.id[-1], s.status) for s in seen] == [("a", "refused")]


def test_a_command_that_runs_on_is_over_when_copilot_says_so() -> None:
    """I8: as 1.0.102 writes it."""

    def tool(name: str, id: str, shell: str) -> Json:
        wanted = [{"toolCallId": id, "name": name, "arguments": {"shellId": shell}}]
        return event("assistant.message", {"content": "", "toolRequests": wanted}, 5)

    def over(shell: str, code: int) -> Json:
        kind = {"type": "shell_completed", "shellId": shell, "exitCode": code}
        return event("system.notification", {"kind": kind}, 6)

    agent = OpenCalls()
    found = agent.seen_calls(
        lines(
            *(asked(("a", "x")), told("a", "<command started in background with shellId: one>")),
            *(asked(("b", "y")), told("b", "part\n<command with shellId: 0 is still running after 30 seconds. So.>")),
            *(over("0", 0), over("5", 2)),
            *(tool("stop_bash", "c", "one"), told("c", "<command with id: one stopped>")),
            *(tool("read_bash", "d", "7"), told("d", "out\n<shellId: 7 completed with exit code 1>")),
            *(asked(("e", "echo")), told("e", "<command with id: nine stopped>")),  # a tool's own words
        )
    )
    assert [(s.tool, s.status, s.task) for s in found] == [
        ("bash", "runs_on", "one"),
        ("bash", "runs_on", "0"),
        ("bash", "done", "0"),
        ("bash", "failed", "5"),
        ("bash", "cancelled", "one"),
        ("stop_bash", "done", ""),
        ("bash", "failed", "7"),
        ("read_bash", "done", ""),
        ("bash", "done", ""),
    ]


def test_a_reading_that_copilot_itself_requests_is_no_call_without_a_hook() -> None:
    """After a command that went on in the background. The model's own call of the same tool has its hooks."""

    def reading(id: str, **more: str) -> Json:
        wanted = [{"toolCallId": id, "name": "read_bash", "arguments": {"shellId": "0", "delay": 0}}]
        return event("assistant.message", {"content": "", "toolRequests": wanted}, 5, **more)

    ended = event("system.notification", {"kind": {"type": "shell_completed", "shellId": "0"}}, 4)
    by_copilot = reading("a", parentId="system.notification-4")
    agent = OpenCalls()
    assert [(s.task, s.call_id) for s in agent.seen_calls(lines(ended))] == [("0", "")]
    assert agent.seen_calls(lines(by_copilot, told("a", "1"))) == []
    (seen,) = agent.seen_calls(lines(reading("b"), told("b", "1")))
    assert seen.tool == "read_bash"


def test_a_subagents_abort_is_not_its_parents() -> None:
    agent = OpenCalls()
    agent.seen_calls(lines(asked(("a", "outer")), asked(("a", "inner"), ("b", "inner"), agentId="s")))
    seen = agent.seen_calls(lines(event("abort", {}, 3, agentId="s"), told("a", "1", 4)))
    assert [(json.loads(s.input)["command"], s.status) for s in seen] == [
        ("inner", "cancelled"),
        ("inner", "cancelled"),
        ("outer", "done"),
    ]


def test_ids_that_come_again_are_told_as_two_calls() -> None:
    twice = (asked(("a", "one")), told("a", "1"), asked(("a", "two"), second=4), told("a", "2", 5))
    seen = OpenCalls().seen_calls(lines(*twice))
    assert [json.loads(s.input)["command"] for s in seen] == ["one", "two"] and seen[0].id != seen[1].id


def test_another_session_has_nothing_to_tell_of_this_one() -> None:
    agent = OpenCalls()
    agent.seen_calls(lines(HEAD, asked(("a", "one"))))
    assert agent.seen_calls(lines(HEAD, told("a", "1"))) == []


def test_an_input_is_spelled_as_hooks_spell_it() -> None:
    for args in ("null", '{"command": "cut \\ud83d"}', '"text \\ud83d"'):
        hook = f'{{"sessionId": "{ID}", "toolName": "bash", "toolArgs": {args}}}'.encode()
        start = COPILOT.parse("preToolUse", hook)
        assert isinstance(start, ToolStarting)
        message = '{"type": "assistant.message", "data": {"toolRequests": [{"toolCallId": "a", "name": "bash", '
        message += f'"arguments": {args}}}]}}}}\n'
        (seen,) = OpenCalls().seen_calls(message.encode() + lines(told("a", "1")))
        assert json.loads(seen.input) == json.loads(start.input)
        main = lines(HEAD) + message.encode()
        one = LoggedCall(1, "bash", start.input, b'{"text": "ok \\ud83d"}', False)
        made, found = mended(main, one)
        assert (made.put_back, found) == (1, {"a": "ok \ufffd"})


def test_a_turn_without_hooks() -> None:
    assert COPILOT.proves_turn(lines(HEAD, USER))
    assert not COPILOT.proves_turn(lines(HEAD, asked(("a", "x")), {**USER, "agentId": "sub"}))
