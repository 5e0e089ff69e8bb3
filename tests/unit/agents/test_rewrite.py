"""The rewrites of each agent's session: append-only, understood by its own reader, and of hostile files.

That the real programs take them is proven in tests/e2e/test_rewrite.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Rewriting, Unit
from wal_agent.agents.opencode.database import load_rows
from wal_agent.conversation.rewrite import CompactedUnits, compacted_units
from wal_agent.errors import UsageError
from wal_agent.supervise.rewrite import rewriting_of

SESSION = "0197a9be-1111-7000-8000-000000000001"
WORKSPACE = Path("/work")
TIME = "2026-11-24T09:00:00.000Z"
TEXT = "[wal-agent] what was there"


def claude(turns: int) -> list[Any]:
    lines: list[Any] = []

    def add(kind: str, content: Any) -> None:
        parent = lines[-1]["uuid"] if lines else None
        same = {"isSidechain": False, "timestamp": TIME, "sessionId": SESSION, "uuid": f"u{len(lines)}"}
        lines.append({"parentUuid": parent, "type": kind, "message": {"role": kind, "content": content}, **same})

    for n in range(turns):
        add("user", f"ask {n}")
        add("assistant", [{"type": "tool_use", "id": f"c{n}", "name": "Bash", "input": {"command": f"make {n}"}}])
        add("user", [{"type": "tool_result", "tool_use_id": f"c{n}", "content": "ok", "is_error": False}])
        add("assistant", [{"type": "text", "text": f"done {n}"}])
    return lines


def gemini(turns: int) -> list[Any]:
    lines: list[Any] = [{"sessionId": SESSION, "projectHash": "p", "startTime": TIME, "kind": "main"}]

    def add(kind: str, content: Any, **more: Any) -> None:
        lines.append({"id": f"m{len(lines)}", "timestamp": TIME, "type": kind, "content": content, **more})

    add("user", [{"text": "<session_context>where</session_context>"}])
    for n in range(turns):
        add("user", [{"text": f"ask {n}"}])
        call = {"id": f"c{n}", "name": "run_shell_command", "args": {"command": f"make {n}"}, "status": "success"}
        add("gemini", "", toolCalls=[call])
        add("user", [{"functionResponse": {"id": f"c{n}", "name": "run_shell_command", "response": {"output": "ok"}}}])
        add("gemini", f"done {n}")
    return lines


def codex(turns: int) -> list[Any]:
    lines: list[Any] = [{"type": "session_meta", "payload": {"id": SESSION, "cwd": "/work"}}]

    def add(payload: Any) -> None:
        lines.append({"type": "response_item", "payload": {"id": f"i{len(lines)}", **payload}})

    def say(role: str, text: str) -> None:
        add({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]})

    say("developer", "rules")
    say("user", "<environment_context>here</environment_context>")
    for n in range(turns):
        say("user", f"ask {n}")
        arguments = json.dumps({"cmd": f"make {n}"})
        add({"type": "function_call", "name": "exec_command", "arguments": arguments, "call_id": f"c{n}"})
        add({"type": "function_call_output", "call_id": f"c{n}", "output": "Process exited with code 0\nok"})
        say("assistant", f"done {n}")
    return [{"timestamp": TIME, "ordinal": n, **line} for n, line in enumerate(lines)]


def pi(turns: int) -> list[Any]:
    head = {"type": "session", "version": 3, "id": SESSION, "timestamp": TIME, "cwd": "/work"}
    lines: list[Any] = [head, {"type": "model_change", "id": "e0", "parentId": None, "timestamp": TIME}]

    def add(role: str, content: Any, **more: Any) -> None:
        parent, message = lines[-1]["id"], {"role": role, "content": content, **more}
        same = {"id": f"e{len(lines)}", "parentId": parent, "timestamp": TIME}
        lines.append({"type": "message", "message": message, **same})

    for n in range(turns):
        add("user", [{"type": "text", "text": f"ask {n}"}])
        call = {"type": "toolCall", "id": f"c{n}", "name": "bash", "arguments": {"command": f"make {n}"}}
        add("assistant", [call])
        add("toolResult", [{"type": "text", "text": "ok"}], toolCallId=f"c{n}", toolName="bash", isError=False)
        add("assistant", [{"type": "text", "text": f"done {n}"}])
    return lines


def qwen(turns: int) -> list[Any]:
    lines: list[Any] = []

    def add(kind: str, *parts: Any) -> None:
        parent, role = lines[-1]["uuid"] if lines else None, "model" if kind == "assistant" else "user"
        same = {"sessionId": SESSION, "timestamp": TIME, "cwd": "/work", "version": "0.24.4"}
        message = {"role": role, "parts": [*parts]}
        lines.append({"uuid": f"u{len(lines)}", "parentUuid": parent, "type": kind, "message": message, **same})

    for n in range(turns):
        add("user", {"text": f"ask {n}"})
        add(
            "assistant",
            {"functionCall": {"id": f"c{n}", "name": "run_shell_command", "args": {"command": f"make {n}"}}},
        )
        response = {"id": f"c{n}", "name": "run_shell_command", "response": {"output": "ok"}}
        add("tool_result", {"functionResponse": response})
        add("assistant", {"text": f"done {n}"})
    return lines


def copilot(turns: int) -> list[Any]:
    lines: list[Any] = []

    def add(kind: str, **data: Any) -> None:
        parent = lines[-1]["id"] if lines else None
        lines.append({"type": kind, "data": data, "id": f"e{len(lines)}", "timestamp": TIME, "parentId": parent})

    add("session.start", sessionId=SESSION, version=1)
    for n in range(turns):
        add("user.message", content=f"ask {n}", messageId=f"m{n}")
        add("system.message", role="system", content="rules")
        call = {"toolCallId": f"c{n}", "name": "bash", "arguments": {"command": f"make {n}"}}
        add("assistant.message", content="", toolRequests=[call], messageId=f"a{n}")
        add("tool.execution_start", toolCallId=f"c{n}")
        add("tool.execution_complete", toolCallId=f"c{n}", success=True, result={"content": "ok"})
        add("assistant.message", content=f"done {n}", toolRequests=[], messageId=f"b{n}")
        add("session.shutdown")
    return lines


def opencode(turns: int) -> list[Any]:
    time = 1_795_600_000_000
    row = {"directory": "/work", "title": "t", "time_created": time, "time_updated": time}
    lines: list[Any] = [
        {"type": "session", "id": SESSION, "row": row},
        {"type": "session", "id": "ses_2", "row": {**row, "parent_id": SESSION}},
    ]

    def add(role: str, *parts: Any, session: str = SESSION, **more: Any) -> None:
        n = len(lines)
        same, id = {"session": session, "created": time + n}, f"msg_{n:012x}XyZ"
        lines.append(
            {"type": "message", "id": id, **same, "data": {"role": role, "time": {"created": time + n}, **more}}
        )
        for k, part in enumerate(parts, 1):
            lines.append({"type": "part", "id": f"prt_{n + k:012x}XyZ", "message": id, **same, "data": part})

    for n in range(turns):
        add("user", {"type": "text", "text": f"ask {n}"}, agent="build", model={"providerID": "p", "modelID": "m"})
        state = {"status": "completed", "input": {"command": f"make {n}"}, "output": "ok"}
        add("assistant", {"type": "step-start"}, {"type": "tool", "tool": "bash", "callID": f"c{n}", "state": state})
        add("assistant", {"type": "text", "text": f"done {n}"}, finish="stop")
        add("user", {"type": "text", "text": f"subagent {n}"}, session="ses_2")
    return lines


MAKERS: dict[str, Callable[[int], list[Any]]] = {
    "claude": claude,
    "codex": codex,
    "copilot": copilot,
    "gemini": gemini,
    "opencode": opencode,
    "pi": pi,
    "qwen": qwen,
}
each_agent = pytest.mark.parametrize("name", MAKERS)


def session(name: str, turns: int) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in MAKERS[name](turns))


def rewriting(name: str) -> Rewriting:
    found = AGENTS[name].capabilities.rewriting
    assert isinstance(found, Rewriting)
    return found


def shown(units: tuple[Unit, ...]) -> list[str]:
    """What the model gets: prompts, summaries, and the ids of calls and results."""
    ids = [
        [unit.prompt, unit.summary, *(c.id for c in unit.asks), *(f"-{id}" for id in unit.answers)] for unit in units
    ]
    return [text for row in ids for text in row if text]


def turn(name: str, n: int) -> list[str]:
    twice = [f"-c{n}"] if name == "gemini" else []  # in the call's own record, and in the message behind it
    return [f"ask {n}", f"c{n}", f"-c{n}", *twice]


def first_of(units: tuple[Unit, ...]) -> int:
    return next(i for i, unit in enumerate(units) if unit.prompt or unit.summary)


@each_agent
def test_a_compaction_leaves_the_newest_turns_as_they_are(name: str) -> None:
    main, how = session(name, 4), rewriting(name)
    units = how.units(main)
    assert shown(units) == [text for n in range(4) for text in turn(name, n)]
    at = next(i for i, unit in enumerate(units) if unit.prompt == "ask 2")
    for _ in range(2):  # the second one takes the first one's form too
        new = how.compact(main, SESSION, WORKSPACE, first_of(units), at, TEXT)
        assert new.endswith(b"\n")
        found = how.units(main + new)
        assert shown(found) == [TEXT, *turn(name, 2), *turn(name, 3)]
        main, units = main + new, found
        at = next(i for i, unit in enumerate(units) if unit.prompt == "ask 2")
    everything = how.compact(main, SESSION, WORKSPACE, first_of(units), len(units), TEXT)
    assert shown(how.units(main + everything)) == [TEXT]


@each_agent
@pytest.mark.parametrize("compacted", [False, True])
def test_a_return_leaves_what_was_there_and_the_note(name: str, compacted: bool) -> None:
    """Also across a compaction, whose kept turns some agents only name."""
    main, how = session(name, 4), rewriting(name)
    before = [text for n in range(4) for text in turn(name, n)]
    if compacted:
        units = how.units(main)
        at = next(i for i, unit in enumerate(units) if unit.prompt == "ask 1")
        main += how.compact(main, SESSION, WORKSPACE, first_of(units), at, TEXT)
        before = [TEXT, *before[len(turn(name, 0)) :]]
    units = how.units(main)
    for asked in ["ask 1", "ask 3"] if not compacted else ["ask 1", "ask 2", "ask 3"]:
        keep = next(i for i, unit in enumerate(units) if unit.prompt == asked)
        new = how.rewind(main, SESSION, WORKSPACE, keep, TEXT + "!")
        found = shown(how.units(main + new))
        kept = before[: before.index(asked)]
        assert found[: len(kept)] == kept
        assert set(found[len(kept) :]) <= {TEXT + "!"}, "the note begins no turn"
        assert TEXT.encode() + b"!" in new


@each_agent
def test_a_recovery_keeps_what_a_rewrite_left(name: str) -> None:
    """Reconciling, as each resume does, brings nothing back."""
    main, how = session(name, 3), rewriting(name)
    units = how.units(main)
    at = next(i for i, unit in enumerate(units) if unit.prompt == "ask 2")
    compacted = main + how.compact(main, SESSION, WORKSPACE, first_of(units), at, TEXT)
    for rewritten in (compacted, main + how.rewind(main, SESSION, WORKSPACE, at, TEXT)):
        again = AGENTS[name].reconcile(rewritten, SESSION, WORKSPACE, []).data
        assert shown(how.units(again)) == shown(how.units(rewritten))
        prompt = AGENTS[name].capabilities.inject_prompt
        if prompt is None:
            continue
        asked = how.units(b"".join(prompt(again, SESSION, WORKSPACE, "go on")))
        assert shown(asked)[:-1] == shown(how.units(rewritten)) and asked[-1].prompt == "go on"


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_what_a_compaction_left_out_is_all_that_stands_before_it(name: str) -> None:
    """Also what the agent wrote behind the log's last save, wherever that was."""
    main, how, read = session(name, 3), rewriting(name), AGENTS[name].capabilities.compactions
    assert read is not None
    whole = how.units(main)
    compacted = main + how.compact(main, SESSION, WORKSPACE, first_of(whole), len(whole), TEXT)
    summary = next(unit.key for unit in how.units(compacted) if TEXT in unit.summary)
    lines = main.splitlines(keepends=True)
    for saved in range(1, len(lines) + 1):
        size = sum(map(len, lines[:saved]))
        assert compacted_units(compacted, size, how.units, read) == CompactedUnits(whole, summary), saved
    assert compacted_units(main, 0, how.units, read) is None


def opencode_rows(main: bytes) -> list[str]:
    return [m.id for m in load_rows(main).messages(SESSION)]


@pytest.mark.parametrize("tail", [False, True])
def test_a_compaction_of_opencodes_own_is_one_message_and_what_it_hides_does_not_come_back(tail: bool) -> None:
    """It asks with one row and answers with the next; kept turns come behind it by reference."""
    lines, how = opencode(3), rewriting("opencode")
    kept = next(line["id"] for line in lines if line.get("data", {}).get("text") == "ask 2")
    first = next(line["message"] for line in lines if line["id"] == kept)
    same = {"session": SESSION, "created": 1_795_700_000_000}
    asks = {"type": "compaction", "auto": True, **({"tail_start_id": first} if tail else {})}
    done = {"role": "assistant", "parentID": "msg_f1", "summary": True, "finish": "stop"}
    lines += [
        {"type": "message", "id": "msg_f1", **same, "data": {"role": "user"}},
        {"type": "part", "id": "prt_f1", "message": "msg_f1", **same, "data": asks},
        {"type": "message", "id": "msg_f2", **same, "data": done},
        {"type": "part", "id": "prt_f2", "message": "msg_f2", **same, "data": {"type": "text", "text": "we did"}},
    ]
    main = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    units = how.units(main)
    behind = turn("opencode", 2) if tail else []
    assert shown(units) == ["we did", *behind]
    back = main + how.rewind(main, SESSION, WORKSPACE, 1, TEXT)
    assert shown(how.units(back)) == ["we did", TEXT] and len(opencode_rows(back)) == 3
    if tail:
        new = main + how.compact(main, SESSION, WORKSPACE, 0, 1, TEXT)
        assert shown(how.units(new)) == [TEXT, *behind] and len(opencode_rows(new)) == 4


def test_what_a_person_has_undone_in_opencode_is_gone() -> None:
    lines, how = opencode(3), rewriting("opencode")
    ask = next(line for line in lines if line.get("data", {}).get("text") == "ask 1")
    lines[0]["row"]["revert"] = json.dumps({"messageID": ask["message"]})
    main = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert shown(how.units(main)) == turn("opencode", 0)
    new = main + how.rewind(main, SESSION, WORKSPACE, 2, TEXT)
    assert shown(how.units(new)) == [*turn("opencode", 0), TEXT]
    assert "revert" not in load_rows(new).found["session", SESSION].row
    subagents = [r for r in load_rows(new).of("message") if r.session == "ses_2"]
    assert len(subagents) == 3, "sessions of subagents stay"


def test_a_compaction_of_copilots_own_is_copied_with_the_prompts_that_it_repeats() -> None:
    lines, how = copilot(2), rewriting("copilot")
    same = {"timestamp": TIME, "parentId": None}
    data = {"success": True, "summaryContent": "<summary>we did</summary>", "compactionAttemptId": "k"}
    lines += [{"type": "session.compaction_complete", "data": data, "id": "s1", **same}]
    failed = {"success": False, "summaryContent": "no"}
    lines += [{"type": "session.compaction_complete", "data": failed, "id": "s2", **same}, *copilot(3)[-7:]]
    main = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    units = how.units(main)
    assert shown(units) == ["we did", *turn("copilot", 2)]
    new = how.rewind(main, SESSION, WORKSPACE, 1, TEXT)
    kinds = [json.loads(line)["type"] for line in new.splitlines()]
    assert kinds == ["session.context_cleared", *["user.message"] * 2, "session.compaction_complete", "user.message"]
    again = how.units(main + new)
    assert shown(again) == ["we did", TEXT] and again[0].key == units[0].key == "k"


def test_what_pi_has_in_front_of_the_first_turn_goes_with_a_compaction() -> None:
    lines, how = pi(2), rewriting("pi")
    lines[2]["parentId"] = "b0"
    shell = {"role": "bashExecution", "command": "ls"}
    lines.insert(2, {"type": "message", "id": "b0", "parentId": "e1", "timestamp": TIME, "message": shell})
    main = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    units = how.units(main)
    at = next(i for i, unit in enumerate(units) if unit.prompt == "ask 1")
    assert first_of(units) > 0
    assert shown(how.units(main + how.compact(main, SESSION, WORKSPACE, first_of(units), at, TEXT))) == [
        TEXT,
        *turn("pi", 1),
    ]


def test_an_agent_whose_conversation_cannot_be_rewritten_is_named_with_the_reason() -> None:
    with pytest.raises(UsageError, match=r"generic .*wal-agent does not know its form"):
        rewriting_of(AGENTS["generic"])


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "id",
                    "uuid",
                    "parentUuid",
                    "parentId",
                    "message",
                    "content",
                    "role",
                    "payload",
                    "$set",
                    "$rewindTo",
                    "messages",
                    "toolCalls",
                    "compactMetadata",
                    "subtype",
                    "firstKeptEntryId",
                    "replacement_history",
                    "leafUuid",
                    "systemPayload",
                    "compressedHistory",
                    "parts",
                    "text",
                    "call_id",
                    "data",
                    "row",
                    "parent_id",
                    "parentID",
                    "session",
                    "created",
                    "summary",
                    "tail_start_id",
                    "toolRequests",
                    "toolCallId",
                    "messageId",
                ]
            ),
            inner
            | st.sampled_from(
                [
                    "user",
                    "assistant",
                    "gemini",
                    "compacted",
                    "system",
                    "compact_boundary",
                    "chat_compression",
                    "u1",
                    "e1",
                    "session.context_cleared",
                    "session.compaction_complete",
                    "compaction",
                    "message",
                    "part",
                    "session",
                    "ses_1",
                    "msg_000000000002XyZ",
                ]
            ),
            max_size=6,
        )
    ),
    max_leaves=12,
)


@each_agent
@given(lines=st.lists(junk, max_size=6), at=st.integers(0, 12))
def test_a_hostile_session_is_read_to_its_end(name: str, lines: list[Any], at: int) -> None:
    own = MAKERS[name](2)
    mixed = [*own[:at], *lines, *own[at:]]
    main = b"".join(json.dumps(line).encode() + b"\n" for line in mixed)
    how = rewriting(name)
    units = how.units(main)
    if units:
        first = first_of(units) if any(unit.prompt or unit.summary for unit in units) else 0
        how.units(main + how.compact(main, SESSION, WORKSPACE, first, len(units), TEXT))
        how.units(main + how.rewind(main, SESSION, WORKSPACE, len(units) - 1, TEXT))
