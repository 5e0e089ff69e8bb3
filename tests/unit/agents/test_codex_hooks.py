"""What Codex's hooks say and are told; the exit code that only the session file has; the flags, trusted."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents import codex as CODEX
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
from wal_agent.agents.codex import hooks
from wal_agent.agents.codex.hooks import EVENTS, read_exit_code
from wal_agent.agents.hook_line import ALLOW
from wal_agent.errors import ConfigError

S = {"session_id": "01a2"}
CALL = {**S, "tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "call_1", "cwd": "/w/sub"}


def parse(event: str, **said: object) -> object:
    return CODEX.parse(event, json.dumps(said).encode())


def test_each_event() -> None:
    assert parse("SessionStart", **S, source="resume") == SessionStarted("01a2", "resume")
    assert parse("UserPromptSubmit", **S, prompt="do") == TurnStarted("01a2", "do")
    assert parse("PreModelRequest", **S, transcript_path="/f") == ModelRequest("01a2")
    made = {"transcript_path": None}  # a thread of a title
    assert parse("SessionStart", **S, **made, source="startup") == OtherEvent("SessionStart")
    assert parse("UserPromptSubmit", **S, **made, prompt="a title") == OtherEvent("UserPromptSubmit")
    assert parse("PreToolUse", **CALL, **made) == parse("PreToolUse", **CALL)
    assert parse("PermissionRequest", **S, tool_name="Bash") == AwaitingApproval("01a2", "Bash")
    assert parse("PreCompact", **S, trigger="auto", turn_id="t") == Compacting("01a2", done=False, trigger="auto")
    assert parse("SessionStart", **S, source="compact") == ContextRequested("01a2")
    said = json.loads(hooks.render("SessionStart", Allow("look")).removeprefix(b"wal-agent:say ").rstrip(b"\0"))
    assert said["hookSpecificOutput"]["additionalContext"] == "look"
    assert parse("PostCompact", **S, trigger="auto", turn_id="t") == Compacting("01a2", done=True)
    assert parse("PreCompact", **S, agent_id="a") == OtherEvent("PreCompact")
    assert parse("Stop", **S) == TurnCompleted("01a2")
    assert parse("PreToolUse", **CALL) == ToolStarting("01a2", "Bash", b'{"command": "ls"}', "call_1", "", "/w/sub")
    assert parse("SubagentStart", **S) == OtherEvent("SubagentStart")


def test_half_a_pair() -> None:
    """Of surrogates: the call is understood, and what is logged is JSON to everybody."""
    call = CODEX.parse("PreToolUse", json.dumps({**CALL, "tool_input": {"command": "echo \ud83d"}}).encode())
    assert isinstance(call, ToolStarting) and json.loads(call.input) == {"command": "echo \ufffd"}


def test_a_subagents_turn_is_no_turn_of_the_session() -> None:
    for event in ("UserPromptSubmit", "PreModelRequest", "Stop", "SessionStart"):
        assert parse(event, **S, agent_id="sub") == OtherEvent(event)
    call = parse("PreToolUse", **CALL, agent_id="sub")
    assert isinstance(call, ToolStarting) and call.inner == "sub"


def test_how_a_call_ended(tmp_path: Path) -> None:
    unknown = parse("PostToolUse", **CALL, tool_response="out")
    assert unknown == ToolEnded("01a2", "Bash", b'{"command": "ls"}', b'"out"', False, "call_1", clean=False)
    file = tmp_path / "rollout"
    file.write_text(item("call_1", 0) + item("call_2", 3) + "torn")
    ended = parse("PostToolUse", **CALL, tool_response="out", transcript_path=str(file))
    assert isinstance(ended, ToolEnded)
    assert (ended.clean, ended.result) == (True, b'{"exit_code":0,"output":"out"}')
    other = parse("PostToolUse", **{**CALL, "tool_use_id": "call_2"}, tool_response="", transcript_path=str(file))
    assert isinstance(other, ToolEnded) and not other.clean
    patch = {**CALL, "tool_name": "apply_patch"}
    for response, clean in (("Exit code: 0\nWall time: 0", True), ("Exit code: 1\n", False), ("apply failed", False)):
        told = parse("PostToolUse", **patch, tool_response=response)
        assert isinstance(told, ToolEnded) and told.clean is clean


def item(id: str, code: object, **more: object) -> str:
    about = {"type": "CommandExecution", "id": id, "exit_code": code, **more}
    return json.dumps({"type": "event_msg", "payload": {"type": "item_completed", "item": about}}) + "\n"


def test_an_exit_code_is_looked_for_no_further_than_it_can_be(tmp_path: Path) -> None:
    file = tmp_path / "rollout"
    file.write_text(item("call_1", 4) + "x" * (1 << 20) + "\n" + item("call_2", "x") + '"call_1" item_completed\n')
    assert read_exit_code(str(file), "call_1") == 4
    assert read_exit_code(str(file), "call_2") is None
    assert read_exit_code(str(file), "call_9") is None
    (tmp_path / "link").symlink_to(file)
    for path in (None, "", str(tmp_path), str(tmp_path / "link"), str(tmp_path / "none"), "a\0b"):
        assert read_exit_code(path, "call_1") is None


@pytest.mark.parametrize("event", EVENTS)
@given(
    data=st.binary()
    | st.text().map(str.encode)
    | st.dictionaries(st.text(), st.integers()).map(lambda d: json.dumps(d).encode())
)
def test_hostile_payloads(event: str, data: bytes) -> None:
    with pytest.raises(ValueError):
        CODEX.parse(event, data)


@pytest.mark.parametrize("wrong", [{"tool_input": "ls"}, {"tool_use_id": ""}, {"tool_name": 3}, {"session_id": None}])
def test_a_call_that_is_not_understood(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parse("PreToolUse", **{**CALL, **wrong})


def test_answers() -> None:
    assert CODEX.render("PreToolUse", Allow()) == ALLOW
    assert CODEX.render("Stop", Deny("no")) == ALLOW, "a hook that guards no tool never disturbs"
    said = CODEX.render("PreToolUse", Deny("no\n\0'", stop=True)).partition(b" ")[2].rstrip(b"\0")
    told = json.loads(said)
    assert told["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert told["hookSpecificOutput"]["permissionDecisionReason"] == "no\n\0'"
    assert "continue" not in told, "with it the tool would run"


def setup_in(folder: Path, **more: object) -> HookSetup:
    return HookSetup("run-1", folder, ("/opt/it's/client", "-x"), protocol="Be \x7f “safe”.", **more)  # type: ignore[arg-type]


def test_the_flags(tmp_path: Path) -> None:
    """One `-c` for each event, and one table of trust for all: what Codex reads there is TOML."""
    made = CODEX.inject(setup_in(tmp_path), {})
    assert made.paths == (), "all of it is in the run's folder"
    words = hooks.run_flags(made.env)
    assert set(words[::2]) == {"-c"}
    given = tomllib.loads("\n".join(words[1::2]))
    assert given["features"] == {"unified_exec_tty": False}
    settings = given["hooks"]
    assert set(settings) == {*EVENTS, "state"}
    hashes: dict[str, list[str]] = {}
    for event in EVENTS:
        (group,) = settings[event]
        assert "matcher" not in group
        hashes[event.lower()] = [hook["command"] for hook in group["hooks"]]
    assert len(settings["state"]) == sum(len(commands) for commands in hashes.values()) == len(EVENTS) + 1
    for key, value in settings["state"].items():
        _, event, group, n = key.rsplit(":", 3)
        command = hashes[event.replace("_", "")][int(n)]
        assert value == {"enabled": True, "trusted_hash": hooks.trust_hash(event, command, None)}
    assert json.loads((tmp_path / hooks.PROTOCOL).read_text())["hookSpecificOutput"]["additionalContext"] == (
        "Be \x7f “safe”."
    )


def test_a_hash_as_codex_makes_it() -> None:
    """Compact, the keys sorted; that Codex takes it, the contract suite shows."""
    hook = '{"async":false,"command":"x","timeout":86400,"type":"command"}'
    text = f'{{"event_name":"stop","hooks":[{hook}],"matcher":"a"}}'
    assert hooks.trust_hash("stop", "x", "a") == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_flags_that_cannot_be_made_or_are_gone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot carry"):
        CODEX.inject(HookSetup("run-1", tmp_path / "a\nb", ("client",)), {})
    with pytest.raises(ConfigError, match="cannot carry"):
        CODEX.inject(HookSetup("run-1", tmp_path, ("/opt/\udcff/client",)), {})
    with pytest.raises(ConfigError, match="cannot be written"):
        CODEX.inject(HookSetup("run-1", tmp_path / "none", ("client",)), {})
    with pytest.raises(ConfigError, match="gone"):
        hooks.run_flags({})


NAMES = st.lists(st.text("abWr_.*", min_size=1, max_size=4), min_size=1, max_size=5)


@given(NAMES, st.text("abWr_.*", min_size=1, max_size=5))
def test_a_pattern_for_all_but_some(names: list[str], tool: str) -> None:
    pattern = hooks.pattern_excluding(tuple(names))
    assert "(?!" not in pattern
    assert (re.search(pattern, tool) is None) == (tool in names)
    assert all(re.search(pattern, name) is None for name in names)


def test_a_patch_goes_by_other_names_too() -> None:
    pattern = hooks.pattern_excluding(("apply_patch",))
    assert [t for t in ("apply_patch", "Edit", "Write", "Bash") if re.search(pattern, t)] == ["Bash"]
