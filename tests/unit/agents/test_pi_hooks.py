"""What the extension says, and what it is answered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents.base import (
    Allow,
    Compacting,
    Deny,
    HookSetup,
    ModelRequest,
    OtherEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnFailed,
    TurnStarted,
    TurnStopped,
)
from wal_agent.agents.pi import hooks
from wal_agent.agents.pi.hooks import MARKER, inject

CALL = {"session": "s", "tool": "bash", "call_id": "c1", "input": {"command": "x"}}


def parse(event: str, **said: object) -> object:
    return hooks.parse(event, json.dumps({"session": "s", **said}).encode())


def test_each_event() -> None:
    assert parse("session_start", reason="resume") == SessionStarted("s", "resume")
    assert parse("before_agent_start", prompt="do it") == TurnStarted("s", "do it")
    assert parse("before_agent_start") == TurnStarted("s", ""), "an extension began it"
    assert parse("tool_call", **CALL) == ToolStarting("s", "bash", b'{"command": "x"}', "c1")
    assert parse("session_before_compact") == Compacting("s", done=False)
    assert parse("session_compact") == Compacting("s", done=True)
    assert parse("turn_end", stop="toolUse") == ModelRequest("s")
    assert parse("turn_end", stop="aborted") == TurnStopped("s"), "a person's Esc: pi asks the model nothing more"
    assert parse("agent_before_settle", stop="error") == TurnFailed("s", "other", "pi's model gave no answer")
    assert parse("agent_before_settle", stop="stop") == TurnCompleted("s")
    assert parse("agent_before_settle", stop="length") == TurnCompleted("s")
    assert parse("later_pi_has_more") == OtherEvent("later_pi_has_more")


@pytest.mark.parametrize("stop", ["aborted", ""])
def test_an_answer_that_broke_off_completes_nothing(stop: str) -> None:
    assert parse("agent_before_settle", stop=stop) == OtherEvent("agent_before_settle")


@pytest.mark.parametrize(
    ("text", "failed", "clean"),
    [
        ("fine", False, True),
        ("no\n\nCommand exited with code 3", True, False),
        ("no\n\nCommand exited with code 3", False, False),
        ("Command timed out after 2 seconds", False, False),
        ("no\n\nCommand aborted", False, False),
        ("grep: Command exited with code 3 was found", False, True),
    ],
)
def test_what_ran_clean(text: str, failed: bool, clean: bool) -> None:
    ended = parse("tool_result", **CALL, content=[{"type": "text", "text": text}], failed=failed)
    assert isinstance(ended, ToolEnded)
    assert (ended.failed, ended.clean, ended.call_id) == (failed, clean, "c1")
    assert json.loads(ended.result) == {"content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize(
    ("text", "failed", "aborted", "cut"),
    [
        ("some\n\nCommand timed out after 2.5 seconds", True, False, True),
        ("no\n\nCommand aborted", True, True, True),
        ("Operation aborted", True, True, True),
        ("fine", False, True, False),
        ("Command timed out after 2 seconds was found", False, False, False),
        ("no\n\nCommand exited with code 3", True, False, False),
    ],
)
def test_what_was_stopped_is_not_over(text: str, failed: bool, aborted: bool, cut: bool) -> None:
    """I8: a time limit, or pi was told to stop; what was over by then is."""
    said = {"content": [{"type": "text", "text": text}], "failed": failed, "aborted": aborted}
    ended = parse("tool_result", **CALL, **said)
    assert isinstance(ended, ToolEnded) and bool(ended.cut) is cut


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", b"[]", b"\xff", b'{"session": "s", "tool": "bash", "call_id": "c", "input": [1]}', b"[" * 100_000],
)
def test_a_call_that_is_not_understood_is_denied(payload: bytes) -> None:
    with pytest.raises(ValueError):
        hooks.parse("tool_call", payload)


@given(
    st.sampled_from(sorted(hooks.EVENTS)),
    st.binary() | st.recursive(st.none() | st.text(), st.lists).map(repr).map(str.encode),
)
def test_nothing_but_a_value_error(event: str, payload: bytes) -> None:
    try:
        hooks.parse(event, payload)
    except ValueError:
        pass


def test_half_of_a_surrogate_pair_is_no_reason_to_deny() -> None:
    """JavaScript cuts strings wherever it likes, an emoji in two."""
    started = parse("tool_call", **{**CALL, "input": {"command": "echo \ud83d"}})
    assert isinstance(started, ToolStarting) and json.loads(started.input) == {"command": "echo \ufffd"}
    ended = parse("tool_result", **CALL, content=[{"type": "text", "text": "\ud83d"}], failed=False)
    assert isinstance(ended, ToolEnded) and "\\ufffd" in ended.result.decode()
    assert parse("before_agent_start", prompt="do \udc00") == TurnStarted("s", "do \ufffd")


def test_only_a_call_is_refused() -> None:
    assert hooks.render("tool_call", Allow()) == b"wal-agent:allow\0"
    assert hooks.render("tool_result", Deny("no")) == b"wal-agent:allow\0"
    said = hooks.render("tool_call", Deny('"no"\n\0', stop=True))
    assert said.startswith(b"wal-agent:say {") and said.endswith(b"}\0") and said.count(b"\0") == 1
    assert json.loads(said[len(b"wal-agent:say ") : -1]) == {"reason": '"no"\n\0', "stop": True}


def test_what_is_injected_is_in_the_runs_own_folder(tmp_path: Path) -> None:
    made = inject(HookSetup("r", tmp_path, ("client",), ("read",), 'say "so"\u2028\n`${x}`'), {"HOME": "/nowhere"})
    assert made.paths == () and made.env == {MARKER: str(tmp_path / "pi.ts")}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pi.ts", "wire.js"]
    line = next(x for x in (tmp_path / "pi.ts").read_text().split("\n") if x.startswith("const SETUP = "))
    setup = json.loads(line.removeprefix("const SETUP = "))
    assert setup["skip"] == ["read"] and setup["socket"] == str(tmp_path / "hook.sock")
    assert setup["protocol"] == 'say "so"\u2028\n`${x}`'
