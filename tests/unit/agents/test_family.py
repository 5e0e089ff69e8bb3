"""Agents that are described by one file: their hooks in the user's settings, and what a recovery writes."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from wal_agent.agents import family
from wal_agent.agents.base import Allow, Deny, HookSetup, LoggedCall, OtherEvent, ResumeSession, ToolEnded, ToolStarting
from wal_agent.agents.base import Cli as Program
from wal_agent.agents.hook_line import ALLOW, GONE, is_hook_line
from wal_agent.agents.installed_hooks import (
    insert_entries,
    install_hooks,
    is_installed,
    missing_hooks,
    remove_entries,
    uninstall_hooks,
)
from wal_agent.errors import ConfigError, Unreadable

KIMI = family.load(family.FOLDER / "kimi.toml")
MINE = '# mine\ndefault_model = "m" # why\n\n[[hooks]]\nevent = "Stop"\ncommand = "beep"\n[models.m]\nx = [\n [1],\n]\n'
SESSION = "session_1"


def test_an_installation_is_taken_out_byte_for_byte(tmp_path: Path) -> None:
    """I7: also where the user or the agent has edited the file meanwhile."""
    wanted = KIMI.hooks_to_install({"HOME": str(tmp_path)})
    wanted.settings.parent.mkdir()
    wanted.settings.write_text(MINE)
    assert not is_installed(wanted) and set(missing_hooks(wanted)) == set(wanted.hooks)
    install_hooks(wanted, tmp_path / "state")
    install_hooks(wanted, tmp_path / "state")  # renewed, not doubled
    assert is_installed(wanted) and missing_hooks(wanted) == []
    there = tomllib.loads(wanted.settings.read_text())
    assert len(there["hooks"]) == 1 + sum(map(len, wanted.hooks.values()))
    with wanted.settings.open("a") as file:
        file.write("[later]\ny = 1\n")
    uninstall_hooks(wanted, tmp_path / "state")
    assert tomllib.loads(wanted.settings.read_text()) == tomllib.loads(MINE + "[later]\ny = 1\n")
    wanted.settings.write_text(MINE)
    install_hooks(wanted, tmp_path / "state")
    uninstall_hooks(wanted, tmp_path / "state")
    assert wanted.settings.read_text() == MINE


def test_settings_without_an_end_of_line_and_none_at_all(tmp_path: Path) -> None:
    wanted = KIMI.hooks_to_install({"HOME": str(tmp_path)})
    for text in ("", 'a = "b"'):
        put = insert_entries(text, wanted.hooks).text
        assert tomllib.loads(remove_entries(put)) == tomllib.loads(text)
    install_hooks(wanted, tmp_path / "state")
    uninstall_hooks(wanted, tmp_path / "state")
    assert not wanted.settings.exists()


@pytest.mark.parametrize("text", ["hooks = []", "hooks = 3", "[hooks]", "a = "])
def test_settings_to_which_no_hook_can_be_added_are_left_alone(text: str, tmp_path: Path) -> None:
    wanted = KIMI.hooks_to_install({"HOME": str(tmp_path)})
    wanted.settings.parent.mkdir()
    wanted.settings.write_text(text)
    with pytest.raises(ConfigError):
        install_hooks(wanted, tmp_path / "state")
    assert wanted.settings.read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        lambda hook: hook | {"matcher": "Bash"},
        lambda hook: hook | {"command": "true"},
        lambda hook: hook | {"event": "Stop"},
    ],
)
def test_a_start_is_refused_unless_each_hook_is_there(change: Any, tmp_path: Path) -> None:
    """I5: found before anything is started, with the command that mends it."""
    env = {"HOME": str(tmp_path)}
    why = KIMI.hooks_off_reason([], tmp_path, env)
    assert why is not None and "wal-agent configure-hooks --agent kimi --install" in why
    wanted = KIMI.hooks_to_install(env)
    install_hooks(wanted, tmp_path / "state")
    assert KIMI.hooks_off_reason([], tmp_path, env) is None
    assert KIMI.hooks_off_reason(["acp"], tmp_path, env) is not None
    hooks = tomllib.loads(wanted.settings.read_text())["hooks"]
    first = next(n for n, hook in enumerate(hooks) if hook["event"] == "PreToolUse")
    hooks[first] = change(hooks[first])
    lines = ["\n".join(["[[hooks]]", *(f"{key} = {json.dumps(value)}" for key, value in h.items())]) for h in hooks]
    wanted.settings.write_text("\n".join(lines))
    assert KIMI.hooks_off_reason([], tmp_path, env) is not None


def standing(event: str, env: Mapping[str, str], stdin: str = "{}") -> tuple[int, str, str]:
    line = KIMI.hooks_to_install({"HOME": "/h"}).hooks[event][0]["hooks"][0]["command"]
    done = subprocess.run(["/bin/sh", "-c", line], env=env, input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_line_in_the_settings(tmp_path: Path) -> None:
    """I5, I6: it does nothing outside a run, and in one it refuses a tool when the run's own line is gone or dumb."""
    path = {"PATH": "/usr/bin:/bin"}
    assert standing("PreToolUse", path) == (0, "", "")
    gone = path | {"KIMI_WAL_AGENT_HOOKS": str(tmp_path / "gone")}
    assert standing("PreToolUse", gone) == (2, "", GONE + "\n")
    assert standing("Stop", gone) == (0, "", "")
    setup = HookSetup("r1", tmp_path, ("false",), (), "the words")
    ours = path | KIMI.inject(setup, {}).env
    code, out, _ = standing("PreToolUse", ours)
    assert (code, json.loads(out)["hookSpecificOutput"]["permissionDecision"]) == (0, "deny")
    assert is_hook_line(["sh", "-c", (tmp_path / "hooks/PreToolUse").read_text()])


def test_the_standing_protocol_is_told_once(tmp_path: Path) -> None:
    wanted = KIMI.hooks_to_install({"HOME": "/h"}).hooks["UserPromptSubmit"]
    line = wanted[1]["hooks"][0]["command"]
    setup = HookSetup("r1", tmp_path, ("false",), (), "the words")
    env = {"PATH": "/usr/bin:/bin", **KIMI.inject(setup, {}).env}
    told = [subprocess.run(["/bin/sh", "-c", line], env=env, capture_output=True, text=True).stdout for _ in range(2)]
    assert told == ["the words", ""]
    (tmp_path / "hooks/told").unlink()
    resumed = KIMI.command(Program(Path("/kimi"), "1"), [], ResumeSession(SESSION, "p"), False, {"HOME": "/h"}).env
    assert subprocess.run(["/bin/sh", "-c", line], env=env | resumed, capture_output=True, text=True).stdout == ""


def hook(event: str, **fields: Any) -> Any:
    return KIMI.parse(event, json.dumps({"session_id": SESSION, "tool_name": "Bash", **fields}).encode())


def test_what_hooks_say() -> None:
    input = '{"command": "a",  "n": 1.0}'
    payload = f'{{"session_id": "s", "tool_name": "Bash", "tool_input": {input}, "tool_call_id": "c"}}'
    started = KIMI.parse("PreToolUse", payload.encode())
    assert isinstance(started, ToolStarting) and started.input == input.encode()
    failed = hook("PostToolUseFailure", tool_input={}, error={"message": "exit code: 3"})
    assert isinstance(failed, ToolEnded) and failed.failed and not failed.clean
    for why in ("wal-agent did not run this: x", 'Tool "Bash" was not run because the user rejected it.'):
        assert hook("PostToolUseFailure", tool_input={}, error={"message": why}) == OtherEvent("refused")
    moved = hook("PostToolUse", tool_input={}, tool_output="task_id: bash-1\npid: 2\nstatus: running\nnext: x")
    assert isinstance(moved, ToolEnded) and (moved.runs_on, moved.task, moved.clean) == (True, "bash-1", False)
    for why in ("a line\nInterrupted by user", 'The user manually interrupted "Write" (and', 'Tool "Edit" was aborted'):
        stopped = hook("PostToolUseFailure", tool_input={}, error={"message": why})
        assert isinstance(stopped, ToolEnded) and stopped.cut, why
    quoted = hook("PostToolUse", tool_input={}, tool_output="wal-agent did not run this: a line of a file")
    assert isinstance(quoted, ToolEnded) and quoted.clean
    append = hook("PreToolUse", tool_name="Write", tool_input={"path": "a", "mode": "append"})
    assert append.tool == "Write:append"
    for bad in ({"tool_name": ""}, {"tool_input": [1]}, {"session_id": "../x", "tool_input": {}}):
        with pytest.raises(ValueError):
            hook("PreToolUse", **bad)


def record(kind: str, time: int = 1_000, **event: Any) -> bytes:
    value = {"type": "context.append_loop_event", "agentId": "main", "event": {"type": kind, **event}, "time": time}
    return json.dumps(value).encode() + b"\n"


ASKED = record("tool.call", uuid="u1", toolCallId="c1", name="Bash", args={"command": "a"})
LOST = LoggedCall(1, "Bash", b'{"command":"a"}', None, True, "the machine was lost.", 0.5, "c1")
NEVER = LoggedCall(2, "Write:append", b'{"path":"b","mode":"append"}', b'"done"', False, "", 0.6, "c2")


def test_lost_calls_are_put_back_once_in_the_agents_own_form(tmp_path: Path) -> None:
    """I8: the call in flight gets its result, and one whose message was lost comes back whole."""
    made = KIMI.reconcile(ASKED + b'{"torn', SESSION, tmp_path, [LOST, NEVER])
    assert made.put_back == 2 and b"torn" not in made.data and made.data.startswith(ASKED)
    again = KIMI.reconcile(made.data, SESSION, tmp_path, [LOST, NEVER])
    assert again.data == made.data and again.put_back == 0
    seen = {call.call_id: (call.tool, call.status) for call in KIMI.seen_calls(made.data)}
    assert seen == {"c1": ("Bash", "failed"), "c2": ("Write:append", "done")}
    assert b"outcome unknown: the machine was lost." in made.data


def test_a_result_whose_call_is_lost_is_left_out_and_named(tmp_path: Path) -> None:
    """I8: no API takes it; the log's call comes back with its own."""
    over = record("tool.result", 2_000, parentUuid="u1", toolCallId="c1", result={"output": "x"})
    made = KIMI.reconcile(b"{torn\n" + over, SESSION, tmp_path, [LOST])
    assert len(made.left_out) == 2 and made.put_back == 1 and over.strip() not in made.data
    assert KIMI.reconcile(made.data, SESSION, tmp_path, [LOST]).data == made.data


def test_an_id_that_comes_again_is_another_call(tmp_path: Path) -> None:
    began = 1_764_000_000
    over = record("tool.result", began * 1000, parentUuid="u1", toolCallId="c1", result={"output": "x"})
    later = record("tool.call", (began + 7) * 1000, uuid="u2", toolCallId="c1", name="Bash", args={"command": "a"})
    second = LoggedCall(2, "Bash", b'{"command":"a"}', None, True, "cut off.", began + 7.0, "c1")
    made = KIMI.reconcile(ASKED + over + later, SESSION, tmp_path, [second])
    assert made.put_back == 1 and b'"parentUuid":"u2"' in made.data


@pytest.mark.parametrize(
    ("old", "new"),
    [("", "more = 1\n"), ('means = "turn_stopped"', 'means = "x"'), ("A(?:wal", "A((?:wal"), ("[errors]", "[errors")],
)
def test_a_file_that_describes_no_agent_is_refused(old: str, new: str, tmp_path: Path) -> None:
    text = (family.FOLDER / "kimi.toml").read_text()
    assert old in text
    (tmp_path / "x.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError):
        family.load(tmp_path / "x.toml")


PAGE = (Path(__file__).parents[3] / "docs/how-to/add-an-agent.md").read_text()
TOY_TEXT = PAGE.partition("```toml\n")[2].partition("```")[0]
TOY = family.read(TOY_TEXT, "the page")


def test_hooks_in_claude_codes_form_are_put_in_and_taken_out(tmp_path: Path) -> None:
    """I7, I5."""
    mine = '{\n  // mine\n  "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "beep"}]}]},\n}\n'
    wanted = TOY.hooks_to_install({"HOME": str(tmp_path)})
    wanted.settings.parent.mkdir()
    wanted.settings.write_text(mine)
    assert not is_installed(wanted) and set(missing_hooks(wanted)) == set(wanted.hooks)
    install_hooks(wanted, tmp_path / "state")
    install_hooks(wanted, tmp_path / "state")  # renewed, not doubled
    text = wanted.settings.read_text()
    assert is_installed(wanted) and missing_hooks(wanted) == [] and text.count("beep") == 1
    assert TOY.hooks_off_reason([], tmp_path, {"HOME": str(tmp_path)}) is None
    wanted.settings.write_text(text.replace('"hooks": [', '"matcher": "Bash", "hooks": [', 1))
    assert len(missing_hooks(wanted)) == 1, "not for every tool"
    wanted.settings.write_text(text)
    uninstall_hooks(wanted, tmp_path / "state")
    assert wanted.settings.read_text() == mine


def test_what_a_recovery_writes_follows_from_what_is_read(tmp_path: Path) -> None:
    """I8: in the form of the file, at its last time; and sessions that share a folder keep apart."""
    stamp = "2026-01-01T00:00:00+00:00"
    asked = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "a"}, "timestamp": stamp}
    first = json.dumps(asked).encode() + b"\n"
    new = LoggedCall(2, "Write", b'{"file_path":"b"}', b'"done"', False, "", 0.6, "c2")
    made = TOY.reconcile(first, SESSION, tmp_path, [LOST, new])
    lines = [json.loads(line) for line in made.data.splitlines()]
    assert made.put_back == 2 and [line["type"] for line in lines] == ["call", "result", "call", "result"]
    assert {line["timestamp"] for line in lines} == {stamp} and lines[2]["input"] == {"file_path": "b"}
    assert TOY.reconcile(made.data, SESSION, tmp_path, [LOST, new]).data == made.data
    told = b"".join(map(bytes, TOY.inject_prompt(made.data, SESSION, tmp_path, "go on")))
    assert json.loads(told.splitlines()[-1]) == {"type": "user", "text": "go on", "timestamp": stamp}
    env, there = {"HOME": str(tmp_path)}, TOY.restore_path("session.jsonl", SESSION, tmp_path, {"HOME": str(tmp_path)})
    there.parent.mkdir(parents=True)
    there.write_bytes(told)
    assert [file.name for file in TOY.session_files(SESSION, tmp_path, env)] == [TOY.main_file]
    assert TOY.session_files("session_2", tmp_path, env) == [] and TOY.resumable(SESSION, tmp_path, env)


def test_a_tool_by_another_name_is_known_and_comes_back_in_its_own(tmp_path: Path) -> None:
    """I8: in hooks and session alike; what else its input has stays."""
    renamed = '[[renamed]]\ntool = "Shell"\nname = "Bash"\nfields = { cmd = "command" }\n'
    agent = family.read(f"{TOY_TEXT}\n{renamed}", "the page")
    own = {"cmd": "a", "why": "x"}
    payload = {"session_id": SESSION, "tool_name": "Shell", "tool_input": own, "tool_use_id": "c1"}
    event = agent.parse("PreToolUse", json.dumps(payload).encode())
    assert isinstance(event, ToolStarting) and event.tool == "Bash"
    assert json.loads(event.input) == {"command": "a", "why": "x"}
    asked = json.dumps({"type": "call", "id": "c1", "name": "Shell", "input": own}).encode() + b"\n"
    assert agent.requested_calls(asked)["c1"].input == event.input
    lost = LoggedCall(1, "Bash", event.input, None, True, "cut off.", 0.5, "c1")
    assert agent.reconcile(asked, SESSION, tmp_path, [lost]).data.startswith(asked), "it is the same call"
    made = json.loads(agent.reconcile(b"", SESSION, tmp_path, [lost]).data.splitlines()[0])
    assert (made["name"], made["input"]) == ("Shell", own)
    with pytest.raises(ConfigError):
        family.read(f"{TOY_TEXT}\n{renamed}{renamed}", "the page")


def test_a_refusal_by_exit_code_alone(tmp_path: Path) -> None:
    """I5: with and without a client, in words that the model reads."""
    agent = family.read(TOY_TEXT.replace("protocol = true", 'protocol = true\ndeny = "exit 2"'), "the page")
    answer = agent.render("PreToolUse", Deny('no "such" thing')).decode().removesuffix("\0")

    def line(*client: str) -> tuple[int, str, str]:
        agent.inject(HookSetup("r1", tmp_path, client), {})
        text = (tmp_path / "hooks/PreToolUse").read_text()
        assert is_hook_line(["sh", "-c", text])
        done = subprocess.run(["/bin/sh", "-c", text], input="{}", capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr.strip()

    assert line("false") == (2, "", GONE)
    assert line("sh", "-c", "printf '%s\\0' \"$0\"", answer) == (2, "", 'no \\"such\\" thing')
    assert line("sh", "-c", "printf 'wal-agent:allow\\0'") == (0, "", "")


def test_records_whose_kind_stands_in_another_field(tmp_path: Path) -> None:
    """I4: they are read, kept at a restore, and written; one without it is damage."""
    text = TOY_TEXT.replace("{ type = ", "{ kind = ")
    with pytest.raises(ConfigError, match=r"where of session\.prompt names no `type`; another field: session\.kind"):
        family.read(text, "the page")
    agent = family.read(text.replace("[session]", '[session]\nkind = "kind"'), "the page")
    asked = b'{"kind":"call","id":"c1","name":"Bash","input":{"command":"a"}}\n'
    assert agent.requested_calls(asked)["c1"].tool == "Bash"
    made = agent.reconcile(asked + b'{"type":"call"}\n', SESSION, tmp_path, [LOST])
    assert made.data.startswith(asked) and b'{"kind":"result"' in made.data and b'"type"' not in made.data
    kept = agent.travels(agent.main_file, tmp_path)
    assert not isinstance(kept, str) and kept.keep({"kind": "assistant", "text": "a", "mode": "yolo"}) == {
        "kind": "assistant",
        "text": "a",
    }


@pytest.mark.parametrize("failed", [True, False])
def test_one_event_for_both_ends_of_a_tool(failed: bool) -> None:
    """I8: the field that it names says how the tool ended."""
    agent = family.read(TOY_TEXT.replace('means = "tool_ended" }', 'means = "tool_ended", failed = "out.bad" }', 1), "")
    about = {"session_id": SESSION, "tool_name": "Bash", "tool_input": {}, "tool_use_id": "c1"}
    event = agent.parse("PostToolUse", json.dumps({**about, "out": {"bad": failed}}).encode())
    assert isinstance(event, ToolEnded) and (event.failed, event.clean) == (failed, not failed)


def test_a_hook_that_obeys_no_json_says_nothing_to_the_model() -> None:
    agent = family.read(TOY_TEXT.replace("protocol = true", 'say = "none"'), "the page")
    assert agent.render("UserPromptSubmit", Allow("read this")) == ALLOW and not agent.capabilities.speaks
    assert TOY.render("UserPromptSubmit", Allow("read this")) != ALLOW and TOY.capabilities.speaks


@pytest.mark.parametrize("stamp", [1_764_400_000.5, 1_764_400_000_500, "2025-11-29T07:06:40.5+00:00"])
def test_times_of_records_in_seconds_milliseconds_and_iso_form(stamp: Any, tmp_path: Path) -> None:
    """I8: a call that has ended in the file is not put back a second time."""
    asked = {"type": "call", "id": "c1", "name": "Bash", "input": {"command": "a"}, "timestamp": stamp}
    over = {"type": "result", "id": "c1", "output": "x", "timestamp": stamp}
    main = b"".join(json.dumps(each).encode() + b"\n" for each in (asked, over))
    call = LoggedCall(1, "Bash", b'{"command":"a"}', b'"x"', False, "", 1_764_400_000.0, "c1")
    made = TOY.reconcile(main, SESSION, tmp_path, [call])
    assert made.put_back == 0 and made.data == main
    assert TOY.times(main) == [(stamp, 1_764_400_000.5)] * 2
    lost = LoggedCall(2, "Bash", b'{"command":"b"}', None, True, "cut off.", 1_764_400_001.0, "c2")
    put = [json.loads(line) for line in TOY.reconcile(main, SESSION, tmp_path, [lost]).data.splitlines()]
    assert {line["timestamp"] for line in put} == {stamp}, "it writes the file's own unit"


def described(*changes: tuple[str, str]) -> family.Declared:
    text = TOY_TEXT
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return family.read(text, "the page")


RECORD_FLAG = ('failed = "error"', 'failed = "!ok"')
EVENT_FLAG = ('PostToolUse = { means = "tool_ended" }', 'PostToolUse = { means = "tool_ended", failed = "!out.ok" }')
NO_RECORD_FLAG = (', failed = "error"', "")
NO_EVENT_FLAG = ('PostToolUseFailure = { means = "tool_ended", failed = true }\n', "")


@pytest.mark.parametrize("ok", [True, False])
def test_a_flag_of_success(ok: bool, tmp_path: Path) -> None:
    """I8: in a payload, in a record, in what travels, and in what a recovery writes."""
    agent = described(RECORD_FLAG, EVENT_FLAG)
    about = {"session_id": SESSION, "tool_name": "Bash", "tool_input": {}, "tool_use_id": "c1", "out": {"ok": ok}}
    event = agent.parse("PostToolUse", json.dumps(about).encode())
    assert isinstance(event, ToolEnded) and (event.failed, event.clean) == (not ok, ok)
    over = json.dumps({"type": "result", "id": "c1", "ok": ok, "output": "x"}).encode()
    assert [call.status for call in agent.seen_calls(over)] == ["done" if ok else "failed"]
    kept = agent.travels(agent.main_file, tmp_path)
    assert not isinstance(kept, str) and kept.keep(json.loads(over)) == json.loads(over)
    call = LoggedCall(1, "Bash", b'{"command":"a"}', b'"x"', not ok, "", 0.5, "c1")
    made = agent.reconcile(b"", SESSION, tmp_path, [call])
    assert json.loads(made.data.splitlines()[1])["ok"] is ok


def test_words_alone_refuse_nothing() -> None:
    """I8: a tool that prints the words of a refusal has run all the same."""
    words = "wal-agent did not run this: x"
    over = json.dumps({"type": "result", "id": "c1", "output": words, "error": False}).encode()
    ended = {"session_id": SESSION, "tool_name": "Bash", "tool_input": {}, "tool_response": words}
    silent = described(NO_RECORD_FLAG, NO_EVENT_FLAG)
    for agent in (silent, TOY):
        assert [call.status for call in agent.seen_calls(over)] == ["done"]
        assert isinstance(agent.parse("PostToolUse", json.dumps(ended).encode()), ToolEnded)
    failed = over.replace(b"false", b"true")
    assert [call.status for call in TOY.seen_calls(failed)] == ["refused"]
    assert TOY.parse("PostToolUseFailure", json.dumps(ended).encode()) == OtherEvent("refused")


def test_renamed_tools_need_the_agent_whose_tools_they_are() -> None:
    renamed = '[[renamed]]\ntool = "Shell"\nname = "Bash"\n'
    with pytest.raises(ConfigError, match=r"\[\[renamed\]\] .* tools_of names no agent"):
        family.read(TOY_TEXT.replace('tools_of = "claude"', "") + renamed, "the page")


@pytest.mark.parametrize(
    ("event", "given", "said"),
    [
        (
            "Pre",
            'PreToolUse = { input = "args",',
            'nothing is at input = "args"; the payload has session_id, p, n, cwd',
        ),
        ("Pre", 'PreToolUse = { input = "p.b",', 'nothing is at input = "p.b"; p has a, q'),
        ("Pre", 'PreToolUse = { input = "p.q.b.c",', 'nothing is at input = "p.q.b.c"; p.q has x'),
        ("Pre", 'PreToolUse = { input = "n",', 'no object is at input = "n"; the payload has session_id, p, n, cwd'),
        ("Pre", 'PreToolUse = { session = "p.id",', 'nothing is at session = "p.id"; p has a, q'),
        ("Pre", 'PreToolUse = { session = "p",', 'no id of a session is at session = "p"; the payload has session_id'),
        ("Pre", 'PreToolUse = { tool = "name",', 'nothing is at tool = "name"; the payload has session_id, p, n, cwd'),
        (
            "Post",
            'PostToolUse = { input = "args",',
            'nothing is at input = "args"; the payload has session_id, p, n, cwd',
        ),
    ],
)
def test_a_path_that_leads_nowhere_is_named_with_what_is_there(event: str, given: str, said: str) -> None:
    """I5: it is an error of words, which the caller reports, and the hook's line refuses. No value is in it."""
    name = f"{event}ToolUse"
    start = 'PreToolUse = { tool = "n", ' if "tool" not in given else "PreToolUse = {"
    made = given if event == "Post" or "tool" in given else given.replace("PreToolUse = {", start)
    agent = described((f"{name} = {{", made if event == "Pre" else made + ' tool = "n",'))
    payload = {"session_id": SESSION, "p": {"a": "SECRET", "q": {"x": 1}}, "n": "Bash", "cwd": "/", "a secret!": 1}
    with pytest.raises(Unreadable) as refused:
        agent.parse(name, json.dumps(payload).encode())
    assert f"{name} of toy: {said}" in str(refused.value) and "ecret" not in str(refused.value).lower()
    assert isinstance(refused.value, ValueError) and isinstance(refused.value, ConfigError)


def test_an_option_of_one_letter_has_one_dash(tmp_path: Path) -> None:
    """I8: a resume says it as the program reads it, and it is read as it is said."""
    agent = described(
        ('value = "prompt resume"', 'value = "m r"'),
        ('short = "p=prompt"\n', ""),
        ('prompt = "prompt"\n', 'prompt = "m"\n'),
        ('session = ["resume"]', 'session = ["r"]'),
    )
    assert agent.prompt_from_args(["-m", "go"]) == "go" and agent.session_from_args(["-r", "s1"]) == "s1"
    made = agent.command(Program(Path("/toy"), "1"), ["-m", "go"], ResumeSession(SESSION, "p"), False, {"HOME": "/h"})
    assert made.argv[:3] == ("/toy", "-r", SESSION) and not [word for word in made.argv if word.startswith("--")]
    assert agent.capabilities.headless == ("-m",) and agent.capabilities.forms.resume == ("-r", "{session}")


def test_the_address_of_the_model_stands_in_variables(tmp_path: Path) -> None:
    agent = described(("[rehearsal]", '[rehearsal]\nenvironment = { TOY_BASE = "{url}/v1" }'))
    assert agent.rehearsal.home(tmp_path, tmp_path, "http://127.0.0.1:1")["TOY_BASE"] == "http://127.0.0.1:1/v1"
