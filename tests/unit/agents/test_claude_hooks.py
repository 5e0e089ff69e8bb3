"""agents/claude/hooks.py: what hooks say, and what stands in the settings of one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import claude as CLAUDE
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Compacting,
    ContextRequested,
    Deny,
    HookSetup,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
)
from wal_agent.agents.claude import hooks
from wal_agent.agents.hook_line import ALLOW, HOOK_SECONDS, SHELL_SECONDS

CALL: dict[str, Any] = {
    "session_id": "s",
    "cwd": "/w/sub",
    "tool_name": "Bash",
    "tool_input": {"command": "ls"},
    "tool_use_id": "toolu_1",
}


def said(event: str, **more: Any) -> Any:
    return hooks.parse(event, json.dumps({**CALL, **more}).encode())


def test_the_conversation() -> None:
    assert said("SessionStart", source="clear") == SessionStarted("s", "clear")
    assert said("UserPromptSubmit", prompt="do it") == TurnStarted("s", "do it")
    assert said("PermissionRequest") == AwaitingApproval("s", "Bash")
    for kind in hooks.ASKS:
        notice = said("Notification", notification_type=kind, message="needs your choice")
        assert notice == AwaitingApproval("s", "needs your choice")
    assert isinstance(said("Notification", notification_type="idle_prompt"), OtherEvent)
    assert said("PreCompact", trigger="auto", custom_instructions=None) == Compacting("s", done=False, trigger="auto")
    assert said("SessionStart", source="compact") == ContextRequested("s")  # in the middle of a turn
    assert said("SessionStart", source="compact", agent_id="a1") == OtherEvent("SessionStart")
    assert said("PostCompact", trigger="auto", compact_summary="so far") == Compacting("s", done=True, trigger="auto")
    assert said("PreCompact", agent_id="a1") == OtherEvent("PreCompact")  # a subagent's own conversation
    assert said("Stop") == TurnCompleted("s")
    assert said("Stop", background_tasks=[{"status": "completed"}]) == TurnCompleted("s")
    assert said("Stop", background_tasks=[{"id": "b", "status": "running"}]) == TurnCompleted("s", pending=True)
    assert said("StopFailure") == TurnFailed("s", "other", "")


def test_nothing_where_a_field_may_be() -> None:
    assert said("Stop", background_tasks=None) == said("Stop", background_tasks=[None, {"status": None}])
    assert said("SessionStart", source=None) == SessionStarted("s", "")
    assert said("UserPromptSubmit", prompt=None) == TurnStarted("s", "")
    assert said("PreToolUse", cwd=None, tool_use_id=None).call_id == ""


@pytest.mark.parametrize("event", hooks.EVENTS)
def test_half_a_surrogate_pair(event: str) -> None:
    """JavaScript cuts strings in the middle of an emoji, and writes what is left."""
    payload = json.dumps({**CALL, "prompt": "\ud83d", "tool_response": "\ud83d", "error": "\ud83d", "source": "\ud83d"})
    heard = hooks.parse(event, payload.encode())
    assert getattr(heard, "prompt", "\ufffd") == getattr(heard, "source", "\ufffd") == "\ufffd"
    assert "\\ud83d" not in repr(heard)


def test_a_call() -> None:
    command = b'{"command": "ls"}'
    assert said("PreToolUse") == ToolStarting("s", "Bash", command, "toolu_1", "", "/w/sub")
    assert said("PreToolUse", agent_id="a1").inner == "a1"
    assert said("PreToolUse", cwd="sub").cwd == ""
    assert said("PostToolUse", tool_response={"stdout": "x"}) == ToolEnded(
        "s", "Bash", command, b'{"stdout": "x"}', False, "toolu_1", clean=True
    )
    assert said("PostToolUseFailure", error="Exit code 1") == ToolEnded(
        "s", "Bash", command, b'{"error":"Exit code 1"}', True, "toolu_1", clean=False
    )


@pytest.mark.parametrize(
    "response",
    [
        {"stdout": "", "returnCodeInterpretation": "No matches found"},
        {"stdout": "", "interrupted": True},
        {"stdout": "", "backgroundTaskId": "b1"},
        "no object",
        None,
    ],
)
def test_a_command_that_is_not_known_to_have_ended_with_0(response: object) -> None:
    assert not said("PostToolUse", tool_response=response).clean


def test_what_runs_on_or_was_cut_is_no_completion() -> None:
    """I8: as 2.1.330 answers for a background start, a move there, a monitor, Esc, and a time limit."""
    ran_on = said("PostToolUse", tool_response={"stdout": "", "interrupted": False, "backgroundTaskId": "b1"})
    assert (ran_on.runs_on, ran_on.task, ran_on.cut) == (True, "b1", "")
    watch = said("PostToolUse", tool_name="Monitor", tool_response={"taskId": "m1", "timeoutMs": 300000})
    assert (watch.runs_on, watch.task) == (True, "m1")
    assert said("PostToolUse", tool_response={"stdout": "", "interrupted": True}).cut
    assert said("PostToolUseFailure", error="Exit code 143\nCommand timed out after 2s", is_interrupt=False).cut
    assert said("PostToolUseFailure", error="Exit code 1", is_interrupt=True).cut
    assert not said("PostToolUseFailure", error="Exit code 1\nsays: Command timed out after 2s").cut
    assert not said("PostToolUse", tool_name="Write", tool_response={"taskId": "x"}).runs_on


def test_a_turn_that_a_background_task_began_has_no_prompt() -> None:
    assert said("UserPromptSubmit", prompt="<task-notification>\n<task-id>b</task-id>") == TurnStarted("s", "")


def test_the_copies_of_a_file_are_left_out() -> None:
    response = {"filePath": "/a", "originalFile": "x" * 99, "structuredPatch": [], "content": "y", "type": "update"}
    ended = said("PostToolUse", tool_name="Write", tool_response=response)
    assert json.loads(ended.result) == {"filePath": "/a", "type": "update"} and ended.clean


@given(st.sampled_from(hooks.EVENTS), st.binary(max_size=200))
def test_nonsense_is_refused(event: str, payload: bytes) -> None:
    with pytest.raises(ValueError):
        hooks.parse(event, payload)


def test_an_input_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError):
        said("PreToolUse", tool_input=[1])


def test_answers() -> None:
    assert hooks.render("PreToolUse", Allow()) == hooks.render("Stop", Deny("no")) == ALLOW
    words = hooks.render("PreToolUse", Deny('a "reason"\n', stop=True)).removeprefix(b"wal-agent:say ").rstrip(b"\0")
    assert json.loads(words)["hookSpecificOutput"] == {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": 'a "reason"\n',
    }
    assert b"\n" not in words


def test_the_settings_of_a_run(tmp_path: Path) -> None:
    """All in the run's folder; the before-hook alone refuses, by itself; the agent's limit is the last to pass."""
    made = CLAUDE.inject(HookSetup("r1", tmp_path, ("client",), ("Read", "a.b"), "The protocol."), {})
    assert made.paths == () and Path(made.env[hooks.SETTINGS]).parent == tmp_path
    values = json.loads(Path(made.env[hooks.SETTINGS]).read_text())
    assert values["disableAllHooks"] is False and set(values["env"].values()) == {"0"}, "against writes in mid-run"
    assert set(values["hooks"]) == set(hooks.EVENTS)
    for event, [group] in values["hooks"].items():
        [hook] = group["hooks"]
        assert ("exit 2" in hook["command"]) == (event == "PreToolUse")
        chosen = {
            "Notification": "agent_needs_input|permission_prompt",
            **dict.fromkeys(hooks.TOOLS, "^(?!(?:Read|a\\.b)$)"),
        }
        assert group.get("matcher") == chosen.get(event)
        assert SHELL_SECONDS[True] < hook["timeout"] == HOOK_SECONDS < 2147483
    assert hooks.protocol_file(Path(made.env[hooks.SETTINGS])).read_text() == "The protocol."


def test_words_behind_a_summary() -> None:
    told = hooks.render("SessionStart", Allow("look\nfirst"))
    assert json.loads(told[14:-1]) == {
        "hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": "look\nfirst"}
    }
    assert told.count(b"\0") == 1 and b"\n" not in told
    assert hooks.render("SessionStart", Allow()) == hooks.render("Stop", Allow()) == ALLOW
    assert json.loads(hooks.render("Stop", Allow("x"))[14:-1]) == {"decision": "block", "reason": "x"}
    kept = hooks.render("PreCompact", Allow('a "b"\nc')).removeprefix(b"wal-agent:say ").rstrip(b"\0")
    assert json.loads(kept) == {"keep": 'a "b"\nc'} and b"\n" not in kept
    assert hooks.render("PreCompact", Allow()) == ALLOW
