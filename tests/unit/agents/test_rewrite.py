"""Issue 17: the rewrites of each agent's session: append-only, understood by its own reader, and of hostile files.

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
from wal_agent.recovery.rewrite import CompactedUnits, compacted_units

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


MAKERS: dict[str, Callable[[int], list[Any]]] = {
    "claude": claude,
    "codex": codex,
    "gemini": gemini,
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
        assert prompt is not None
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


@each_agent
def test_there_is_no_such_message(name: str) -> None:
    main, how = session(name, 2), rewriting(name)
    count = len(how.units(main))
    for first, last in ((0, 0), (-1, 2), (0, count + 1)):
        with pytest.raises(ValueError, match="no such"):
            how.compact(main, SESSION, WORKSPACE, first, last, TEXT)
    for keep in (-1, count):
        with pytest.raises(ValueError, match="no such"):
            how.rewind(main, SESSION, WORKSPACE, keep, TEXT)


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
        first = 0 if name == "pi" else first
        how.units(main + how.compact(main, SESSION, WORKSPACE, first, len(units), TEXT))
        how.units(main + how.rewind(main, SESSION, WORKSPACE, len(units) - 1, TEXT))
