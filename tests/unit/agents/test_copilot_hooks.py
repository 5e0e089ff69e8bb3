"""What Copilot's hooks say, as captured from the real program, and what a hostile one may say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import copilot as COPILOT
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Deny,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.copilot.hooks import EVENTS

ID = "0a2c546b-cf56-4bbc-8f97-fa1b4330f64b"
INNER = {"sessionId": "a2ca832d-01d8-417c-af8b-d7d09bffa6f5", "agentId": "a2ca832d", "parentAgentId": ID}


def heard(event: str, **more: Any) -> Any:
    said = {"sessionId": ID, "timestamp": 1795338841163, "cwd": "/w", **more}
    return COPILOT.parse(event, json.dumps(said).encode())


def ended(text: str, tool: str = "bash", kind: str = "success") -> ToolEnded:
    result = {"resultType": kind, "textResultForLlm": text}
    found = heard("postToolUse", toolName=tool, toolArgs={"command": "x"}, toolResult=result)
    assert isinstance(found, ToolEnded)
    return found


def test_a_turn() -> None:
    assert heard("sessionStart", source="resume", initialPrompt="p") == SessionStarted(ID, "resume")
    assert heard("userPromptSubmitted", prompt="p") == TurnStarted(ID, "p")
    notification = '<system_notification>\nShell command "x" has completed.\n</system_notification>'
    assert heard("userPromptSubmitted", prompt=notification) == TurnStarted(ID, "")
    begun = heard("preToolUse", toolName="bash", toolArgs={"command": "x"})
    assert (begun.session, begun.tool, json.loads(begun.input)) == (ID, "bash", {"command": "x"})
    assert heard("agentStop", stopReason="end_turn") == TurnCompleted(ID)
    asked = heard("notification", notification_type="permission_prompt", message="Run command: x")
    assert asked == AwaitingApproval(ID, "Run command: x")
    assert isinstance(heard("notification", notification_type="agent_idle"), OtherEvent)
    assert isinstance(heard("sessionEnd"), OtherEvent)


def test_what_a_subagent_does_is_its_parents_but_not_its_turns() -> None:
    begun = heard("preToolUse", toolName="bash", toolArgs={}, **INNER)
    assert begun == ToolStarting(ID, "bash", b"{}", inner=INNER["sessionId"], reported=True)
    for event in ("userPromptSubmitted", "agentStop", "sessionStart"):
        assert isinstance(heard(event, **INNER), OtherEvent)


def test_a_command_is_clean_only_where_its_result_says_so() -> None:
    assert ended("a\n<shellId: 0 completed with exit code 0>").clean
    for text in (
        "\n<shellId: 0 completed with exit code 3>",
        "<shellId: 0 completed with exit code 0>\nand more",
        "<command with shellId: 0 is still running after 30 seconds>",
        "",
    ):
        end = ended(text)
        assert not end.clean and not end.failed
    assert ended("Created", tool="create").clean
    assert ended("no", tool="create", kind="failure").failed
    assert not ended("", tool="read_bash").clean


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("<command started in background with shellId: one>", "one"),
        ("<command started in detached background with shellId: two>", "two"),
        ("so far\n<command with shellId: 0 is still running after 30 seconds. It produced no output yet.>", "0"),
        ("<command with shellId: 3 moved to background by the user. You will be notified.>", "3"),
        ("<command started in background with shellId: one>\nand more", ""),
        ("started\n<shellId: 1 completed with exit code 0>", ""),
    ],
)
def test_a_command_that_runs_on(text: str, task: str) -> None:
    """I8."""
    assert (ended(text).task, ended(text).runs_on) == (task, bool(task))
    assert not ended(text, tool="read_bash").runs_on


def test_a_failed_call() -> None:
    end = heard("postToolUseFailure", toolName="bash", toolArgs={"nope": 1}, error='"command": Required')
    assert end.failed and not end.clean
    assert json.loads(end.result) == {"error": '"command": Required'}


def test_an_input_that_is_text() -> None:
    assert heard("preToolUse", toolName="apply_patch", toolArgs="*** Begin").input == b'{"input":"*** Begin"}'
    assert heard("preToolUse", toolName="bash", toolArgs=None).input == b"{}"


def test_half_of_a_surrogate_pair_is_no_reason_to_refuse() -> None:
    """A model's text that was cut in an emoji, as JavaScript writes it."""
    assert heard("userPromptSubmitted", prompt="a \ud83d") == TurnStarted(ID, "a \ufffd")
    begun = heard("preToolUse", toolName="bash", toolArgs={"command": "\udc00"})
    assert json.loads(begun.input) == {"command": "\ufffd"}


@given(st.sampled_from(EVENTS), st.binary(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(repr))
def test_whatever_is_no_payload_is_a_value_error(event: str, said: bytes | str) -> None:
    with pytest.raises(ValueError):
        COPILOT.parse(event, said if isinstance(said, bytes) else said.encode("utf-8", "replace"))


@pytest.mark.parametrize("lost", ["sessionId", "toolName", "toolArgs"])
def test_a_call_that_lacks_something_is_a_value_error(lost: str) -> None:
    said = {"sessionId": ID, "toolName": "bash", "toolArgs": {}}
    del said[lost]
    with pytest.raises(ValueError):
        COPILOT.parse("preToolUse", json.dumps(said).encode())


def test_the_answers() -> None:
    assert COPILOT.render("preToolUse", Allow()) == b"wal-agent:allow\0"
    said = COPILOT.render("preToolUse", Deny('no "x"\n', stop=True))
    assert said.startswith(b"wal-agent:say {") and said.endswith(b"}\0") and b"\n" not in said
    told = {"permissionDecision": "deny", "permissionDecisionReason": 'no "x"\n'}
    assert json.loads(said[len(b"wal-agent:say ") : -1]) == told
    assert COPILOT.render("postToolUse", Deny("late")) == b"wal-agent:allow\0"
