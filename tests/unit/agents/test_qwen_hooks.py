"""Qwen Code's hooks: payloads, answers, and the shell line."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
    ContextRequested,
    Deny,
    HookSetup,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.hook_line import GONE
from wal_agent.agents.qwen.hooks import EVENTS, MARKER, hook_line, parse, render

BASE = {
    "session_id": "s1",
    "transcript_path": "/home/u/.qwen/projects/-w/chats/s1.jsonl",
    "cwd": "/w",
    "hook_event_name": "x",
    "timestamp": "2026-11-22T09:07:26.625Z",
}
SHELL = {"tool_name": "run_shell_command", "tool_input": {"command": "echo one"}, "tool_use_id": "toolu_1"}


def payload(**more: Any) -> bytes:
    return json.dumps(BASE | more).encode()


def shell_result(code: str, signal: str = "0", error: str = "(none)") -> str:
    return (
        f"Command: x\nDirectory: (root)\nOutput: one\nError: {error}\nExit Code: {code}\nSignal: {signal}\n"
        "Process Group PGID: 15180"
    )


def ended(llm: object, tool: str = "run_shell_command") -> ToolEnded:
    found = parse("PostToolUse", payload(**SHELL | {"tool_name": tool}, tool_response={"llmContent": llm}))
    assert isinstance(found, ToolEnded)
    return found


def test_a_prompt_begins_a_turn_and_an_empty_one_is_the_next_request() -> None:
    assert parse("UserPromptSubmit", payload(prompt="do it")) == TurnStarted("s1", "do it")
    assert parse("UserPromptSubmit", payload(prompt="")) == ModelRequest("s1")


def test_the_others() -> None:
    assert parse("SessionStart", payload(source="clear")) == SessionStarted("s1", "clear")
    assert parse("SessionStart", payload(source="compact")) == ContextRequested("s1")
    assert parse("Stop", payload(stop_hook_active=True)) == TurnCompleted("s1")
    waits = parse("Notification", payload(message="may I?", notification_type="permission_prompt"))
    assert waits == AwaitingApproval("s1", "may I?")
    assert isinstance(parse("Notification", payload(message="", notification_type="auth_success")), OtherEvent)
    assert parse("PreCompact", payload(trigger="auto", custom_instructions="")) == Compacting(
        "s1", done=False, trigger="auto"
    )
    assert parse("PostCompact", payload(trigger="auto", compact_summary="so far")) == Compacting("s1", done=True)
    assert isinstance(parse("SubagentStart", b""), OtherEvent)


def test_a_call_and_its_end_have_one_id() -> None:
    begun = parse("PreToolUse", payload(**SHELL))
    assert begun == ToolStarting("s1", "run_shell_command", b'{"command": "echo one"}', "toolu_1")
    end = ended(shell_result("0"))
    assert (end.call_id, end.failed, end.clean) == ("toolu_1", False, True)
    assert json.loads(end.result) == {"llmContent": shell_result("0")}
    failed = parse("PostToolUseFailure", payload(**SHELL, error="no such file", is_interrupt=False))
    assert isinstance(failed, ToolEnded)
    assert (failed.failed, failed.clean, json.loads(failed.result)) == (True, False, {"error": "no such file"})


@pytest.mark.parametrize(
    ("llm", "clean"),
    [
        (shell_result("0"), True),
        (shell_result("0", "(none)"), True),
        (shell_result("3"), False),
        (shell_result("0", "9"), False),
        (shell_result("(none)"), False),
        (shell_result("0", error="spawn failed"), False),
        (shell_result("0") + "\ncut off", False),
        ("Background shell started.", False),
        ([{"text": shell_result("0")}], False),
    ],
)
def test_a_command_went_well_only_where_its_last_lines_say_so(llm: object, clean: bool) -> None:
    assert ended(llm).clean is clean
    assert ended(llm, "write_file").clean


STOPPED = "Command was cancelled by user before it could complete. There was no output before it was cancelled."
STARTED = "Background shell started.\nid: bg_1\npid: 7"
MOVED = 'Foreground command "echo "x"" promoted to background as bg_2.\nStatus: running. PID: 7.'


@pytest.mark.parametrize(
    ("llm", "cut", "runs_on"),
    [
        (STARTED, False, True),
        (MOVED, False, True),
        (STOPPED, True, False),
        (shell_result("0"), False, False),
        (f"Command: x\n{STARTED}", False, False),
    ],
)
def test_what_was_stopped_or_goes_on_is_not_over(llm: str, cut: bool, runs_on: bool) -> None:
    """I8."""
    assert (bool(ended(llm).cut), ended(llm).runs_on) == (cut, runs_on)
    assert (ended(llm, "say").cut, ended(llm, "say").runs_on) == ("", False)


@pytest.mark.parametrize(
    ("said", "cut"),
    [
        ({"error": "Command timed out after 2000ms before it could complete."}, True),
        ({"error": "late", "is_timeout": True}, True),
        ({"error": "stop", "is_interrupt": True}, True),
        ({"error": "no such file"}, False),
    ],
)
def test_a_failure_by_a_limit_or_a_person_is_none_of_the_tool(said: dict[str, Any], cut: bool) -> None:
    """I8."""
    found = parse("PostToolUseFailure", payload(**SHELL, **said))
    assert isinstance(found, ToolEnded) and bool(found.cut) is cut and found.failed


@pytest.mark.parametrize(
    ("path", "inner"),
    [
        ("/home/u/.qwen/projects/-w/memory/user/x.md", "memory"),
        ("/home/u/.qwen/projects/-other/memory/MEMORY.md", "memory"),
        ("/home/u/.qwen/projects/-w/chats/memory", ""),
        ("/home/u/.qwen/projects/-w/memory/../../../../x", ""),
        ("/home/u/.qwen/projects/-w/chats/../memory/x.md", "memory"),
        ("/w/memory/x.md", ""),
    ],
)
def test_calls_on_qwens_own_memory_are_no_calls_of_the_session(path: str, inner: str) -> None:
    found = parse("PreToolUse", payload(tool_name="write_file", tool_input={"file_path": path}, tool_use_id="t"))
    assert isinstance(found, ToolStarting)
    assert found.inner == inner


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"session_id": 1}', b"\xff", b"[" * 100_000])
def test_what_is_not_understood_is_an_error(event: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(event, data)


def test_an_input_that_is_no_object_is_an_error() -> None:
    with pytest.raises(ValueError):
        parse("PreToolUse", payload(tool_name="x", tool_input="rm -rf /"))


@given(st.binary(max_size=200), st.sampled_from(EVENTS))
def test_any_bytes_are_an_event_or_a_value_error(data: bytes, event: str) -> None:
    try:
        parse(event, data)
    except ValueError:
        pass


def test_only_a_tool_is_refused() -> None:
    assert render("PreToolUse", Allow()) == render("Stop", Deny("no")) == b"wal-agent:allow\0"
    told = render("PreToolUse", Deny('because "x"\n', stop=True))
    assert told.startswith(b"wal-agent:say {") and told.count(b"\0") == 1 and b"\n" not in told
    said = json.loads(told.removeprefix(b"wal-agent:say ").rstrip(b"\0"))
    assert said == {"decision": "deny", "reason": 'because "x"\n'}


def test_half_of_a_surrogate_pair_is_no_reason_to_refuse() -> None:
    half = payload(**SHELL | {"tool_input": {"command": "echo \ud83d"}}, tool_response={"llmContent": "\ude00"})
    assert b"\\ud83d" in half
    starting, over = parse("PreToolUse", half), parse("PostToolUse", half)
    assert isinstance(starting, ToolStarting) and isinstance(over, ToolEnded)
    assert json.loads(starting.input)["command"] == json.loads(over.input)["command"] == "echo \ufffd"


CLIENTS = {
    "missing": None,
    "not a program": "garbage",
    "fails": "exit 1",
    "is killed": "kill -9 $$",
    "kills its shell": "kill -9 $PPID",
    "says nothing": "exit 0",
    "says half": "printf 'wal-agent:all'",
    "says too much": "printf 'noise wal-agent:allow\\0'",
}


def outcome(tmp_path: Path, event: str, client: str | None, **env: str) -> tuple[int, str, str]:
    program = tmp_path / "client"
    if client is not None:
        program.write_text(f"#!/bin/bash\n{client}\n")
        program.chmod(0o755)
    line = hook_line(HookSetup("r1", tmp_path, (str(program),)), event)
    path = {"PATH": os.environ["PATH"], **env}
    done = subprocess.run(["bash", "-c", line], env=path, input="{}", capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def blocks(code: int, out: str, err: str) -> bool:
    """As the real program reads it (0.15.10: hookRunner)."""
    if code == 2:
        return err.strip() != ""
    try:
        return json.loads(out.strip() or err.strip())["decision"] in ("deny", "block")
    except (ValueError, TypeError, LookupError):
        return False


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_every_broken_client_blocks_the_tool_and_nothing_else(client: str | None, tmp_path: Path) -> None:
    told = outcome(tmp_path, "PreToolUse", client, **{MARKER: "r1"})
    assert blocks(*told) and GONE in told[1] + told[2]
    assert not blocks(*outcome(tmp_path, "PostToolUse", client, **{MARKER: "r1"}))
    code, out, _ = outcome(tmp_path, "UserPromptSubmit", client, **{MARKER: "r1"})
    assert (code, out) == (0, ""), "a prompt is never kept back"


def test_an_allow_is_silent_and_a_deny_is_passed_on(tmp_path: Path) -> None:
    env = {MARKER: "r1"}
    assert outcome(tmp_path, "PreToolUse", "printf 'wal-agent:allow\\0'", **env) == (0, "", "")
    deny = '{"decision": "deny", "reason": "because"}'
    assert outcome(tmp_path, "PreToolUse", f"printf '%s\\0' 'wal-agent:say {deny}'", **env) == (0, deny, "")


def test_in_a_qwen_of_nobodys_it_leaves(tmp_path: Path) -> None:
    assert outcome(tmp_path, "PreToolUse", None) == (0, "", "")
    assert outcome(tmp_path, "PreToolUse", None, **{MARKER: "r2"}) == (0, "", "")
