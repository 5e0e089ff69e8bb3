"""Codex's own hazards, each by name, on the real CLI; what all agents promise is in test_agents.py."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.contract.agent_box import Box, Run, done, popen, wait_until
from tests.processes import still_runs
from tests.tiers import deep
from wal_agent.agents import codex as CODEX
from wal_agent.agents.base import ACT, LoggedCall, OtherEvent, ToolEnded, ToolStarting, TurnStarted
from wal_agent.agents.codex import hooks
from wal_agent.agents.codex.resume import NOT_BEGUN
from wal_agent.rehearsal.model import Called, HistoryText, Part, Returned, Turn

pytestmark = deep

CODE_MODE = ("-m", "gpt-6-sol")
PROMPT = "!touch banged\n$skill-creator /quit @README.md `ls` ünï \u2028\n  "

Program = Callable[[str], Path]


@pytest.fixture
def box(tmp_path: Path, agent_cli: Program) -> Box:
    return Box(tmp_path, agent_cli("codex"), CODEX)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


def starting(run: Run, *words: bytes) -> bool:
    inputs = [e.input for e in run.heard.events if isinstance(e, ToolStarting)]
    return all(any(word in input for input in inputs) for word in words)


def ended(run: Run, *words: bytes) -> bool:
    inputs = [e.input for e in run.heard.events if isinstance(e, ToolEnded)]
    return all(any(word in input for input in inputs) for word in words)


def result(heard: list[Part], words: str) -> str:
    """Of the one call with these words in its input."""
    (id,) = [part.id for part in heard if isinstance(part, Called) and words in json.dumps(part.input)]
    (text,) = [part.text for part in heard if isinstance(part, Returned) and part.id == id]
    return text


def elsewhere(box: Box, name: str) -> Box:
    base = box.base / name
    base.mkdir()
    return Box(base, box.program, CODEX)


def resumed(box: Box, runs: list[Run], main: bytes, session: str, calls: list[LoggedCall], *more: str) -> list[Part]:
    """What the model is sent in another home and folder, after a recovery."""
    there = elsewhere(box, "there")
    child = CODEX.reconcile(main, session, there.ws, calls)
    assert CODEX.reconcile(child.data, session, there.ws, calls).data == child.data
    told = b"".join(CODEX.resume.inject_prompt(child.data, session, there.ws, PROMPT))
    assert told is not None
    there.restore(told, session)
    run = Run(there, session=session)
    runs.append(run)
    with there.model(Turn("verified")) as model:
        code, out, err = done(run.start(model, "do it", *more, resume=PROMPT))
        assert (code, out) == (0, "verified\n"), err
        return model.history(0)


# ---- the machine is lost -------------------------------------------------------------------------------------------


def test_aborted_is_not_the_truth(box: Box, runs: list[Run]) -> None:
    """One batch: a command is over that only the file tells, one whose line of the file is lost, one in flight, and a
    patch that never began. Codex alone would call each of them aborted."""
    run = Run(box)
    runs.append(run)
    commands = [box.shell("exec sleep 30"), box.shell("echo two; exit 7"), box.shell("echo three")]
    with box.model(Turn("Then.", [*commands, box.rehearsal.write(box.ws / "never", "x")])) as model:
        process = run.start(model, "do it")
        wait_until(lambda: ended(run, b"two", b"three") and starting(run, b"sleep"))
        wait_until(lambda: box.tells(run.heard_session, b"echo two"))
        box.kill(process)
    session = run.heard_session
    lines = box.main(session).read_bytes().splitlines(keepends=True)
    main = b"".join(line for line in lines if b"echo three" not in line)
    calls = [call for call in run.calls() if b"two" not in call.input]
    assert b"never" not in b"".join(call.input for call in calls)
    heard = resumed(box, runs, main, session, calls)
    assert "outcome unknown" in result(heard, "sleep 30")
    assert "code 7\nOutput:\ntwo\n" in result(heard, "echo two")
    assert "code 0\nOutput:\nthree\n" in result(heard, "echo three")
    assert result(heard, "never") == NOT_BEGUN
    assert not any("aborted" in part.text for part in heard if isinstance(part, Returned))
    users = [part.text for part in heard if isinstance(part, HistoryText) and part.role == "user"]
    assert users.count(PROMPT) == 1
    assert users[-1] == ACT


SCRIPT = """
await Promise.all([tools.exec_command({cmd: "echo n1; exit 4"}), tools.exec_command({cmd: "echo n2"})]);
text(await tools.apply_patch("*** Begin Patch\\n*** Add File: made\\n+hi\\n*** End Patch"));
await tools.exec_command({cmd: "exec sleep 30"});
await tools.exec_command({cmd: "touch never"});
"""


def test_code_mode_tells_what_its_script_did(box: Box, runs: list[Run]) -> None:
    """The session file has the script, and its calls as they end; what was in flight only the log has."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[("exec", {"input": SCRIPT})])) as model:
        process = run.start(model, "do it", *CODE_MODE)
        wait_until(lambda: ended(run, b"n1", b"n2", b"made") and starting(run, b"sleep"))
        over = {call.call_id for call in run.calls() if call.result is not None}
        session = box.main(run.heard_session)
        wait_until(lambda: over <= {call.call_id for call in CODEX.seen_calls(session.read_bytes())})
        box.kill(process)
    calls = run.calls()
    assert all(call.call_id.startswith("exec-") for call in calls)
    main = box.main(run.heard_session).read_bytes()
    assert b"exec sleep" in main and b'"command":["/bin/bash","-lc","exec sleep' not in main
    seen = {call.call_id: call for call in CODEX.seen_calls(main)}
    assert [seen[c.call_id].status for c in calls if c.result is not None] == ["done"] * 3
    clean = {e.input[:30]: e.clean for e in run.heard.events if isinstance(e, ToolEnded)}
    assert sorted(clean.values()) == [False, True, True], "the exit code is read in the file"

    heard = resumed(box, runs, main, run.heard_session, calls[1:], *CODE_MODE)
    told = result(heard, "Promise.all")
    assert "code 4\nOutput:\nn1\n" in told
    assert "code 0\nOutput:\nn2\n" in told
    assert "Success. Updated the following files:\nA made" in told or "A made" in told
    assert told.count("outcome unknown") == 1
    assert "touch never" not in told


def test_a_command_that_the_turn_leaves_running(box: Box, runs: list[Run]) -> None:
    """It outlives its yield, and Codex ends it with the turn: no after-hook, and the file says so at its end, unless
    Codex is gone before."""
    run = Run(box)
    runs.append(run)
    yields = ("exec_command", {"cmd": "sleep 30; touch late", "yield_time_ms": 300})
    bad = ("apply_patch", {"input": "*** Begin Patch\n*** Update File: none\n@@\n-a\n+b\n*** End Patch"})
    with box.model(Turn(calls=[yields, bad]), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[:2] == (0, "bye\n")
    assert not any(isinstance(e, ToolEnded) for e in run.heard.events)
    main = box.main(run.heard_session).read_bytes()
    left, failed, *ended = CODEX.seen_calls(main)
    assert (left.tool, left.status) == ("Bash", "runs_on")
    assert (failed.tool, failed.status) == ("apply_patch", "failed")
    assert [(call.tool, call.status) for call in ended] in ([], [("Bash", "cancelled")])
    wait_until(lambda: not still_runs(box.home, "touch late"))
    assert not (box.ws / "late").exists()

    with box.model(Turn(status=400)) as model:
        failing = Run(box)
        runs.append(failing)
        assert done(failing.start(model, "do it"))[0] == 1
    assert "task_complete" in box.main(failing.heard_session).read_text(), "which is no sign of success"
    assert "TurnCompleted" not in failing.heard.names()


def test_a_session_of_only_the_notice(box: Box, runs: list[Run]) -> None:
    """For a task whose own session was never saved: under an id of ours."""
    session = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff"
    planted = b"".join(CODEX.resume.inject_prompt(b"", session, box.ws, PROMPT))
    assert planted is not None
    box.restore(planted, session)
    run = Run(box, session=session)
    runs.append(run)
    with box.model(Turn("begun")) as model:
        assert done(run.start(model, "do it", resume=PROMPT))[:2] == (0, "begun\n")
        users = [part.text for part in model.history(0) if isinstance(part, HistoryText) and part.role == "user"]
    assert (users[0], users[-1]) == (PROMPT, ACT)
    assert run.heard_session == session
    assert CODEX.resumable(session, box.ws, box.user_env)


def test_the_index_names_another_file(box: Box, runs: list[Run]) -> None:
    """A copied home: its index names the file of the home that it was copied from; Codex would go on there."""
    first = Run(box)
    runs.append(first)
    with box.model(Turn("one")) as model:
        assert done(first.start(model, "do it"))[0] == 0
    session = first.heard_session
    old = box.main(session)
    before = old.read_bytes()
    copy = elsewhere(box, "copy")
    shutil.copytree(box.home, copy.home, dirs_exist_ok=True)
    there = copy.main(session)
    index = copy.home / ".codex/state_5.sqlite"
    with closing(sqlite3.connect(f"{index.as_uri()}?mode=ro", uri=True)) as db:
        assert db.execute("select rollout_path from threads").fetchall() == [(str(old),)]
    run = Run(copy, session=session)
    runs.append(run)
    with copy.model(Turn("two")) as model:
        assert done(run.start(model, "and more", resume=""))[:2] == (0, "two\n")
    assert old.read_bytes() == before
    assert b"and more" in there.read_bytes()
    assert run.heard_session == session

    old.rename(old.with_name("elsewhere"))  # and one that the index of its own home still names
    path = CODEX.restore_path(CODEX.main_file, session, box.ws, box.user_env)
    assert path == old


# ---- the order of what is heard ------------------------------------------------------------------------------------


PATCH = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: made\n+hi\n*** End Patch\nEOF\n"


def test_a_command_that_is_a_patch(box: Box, runs: list[Run]) -> None:
    """The before-hook says Bash, the file a changed file by the same id; no after-hook fires."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[box.shell(PATCH)]), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[:2] == (0, "bye\n")
    assert (box.ws / "made").read_text() == "hi\n"
    (begun,) = [e for e in run.heard.events if isinstance(e, ToolStarting)]
    assert not any(isinstance(e, ToolEnded) for e in run.heard.events)
    (seen,) = CODEX.seen_calls(box.main(run.heard_session).read_bytes())
    assert (seen.tool, seen.call_id, seen.status) == (begun.tool, begun.call_id, "done") == ("Bash", seen.id, "done")


def test_a_turn_that_a_stop_hook_keeps_going(box: Box, runs: list[Run]) -> None:
    """Ours has told that the turn is over; the user's own blocks that, and the model goes on without a new prompt."""
    once = box.base / "once"
    block = '{"decision":"block","reason":"go on"}'
    line = f"[ -e {once} ] || {{ touch {once}; echo '{block}'; }}"
    run = Run(box)
    runs.append(run)
    with box.model(Turn("first"), Turn(calls=[box.shell("touch ran")]), Turn("bye")) as model:
        made = run.command(model, box.rehearsal.args("do it"), None, tty=False)
        config = box.home / ".codex/config.toml"
        hook = hooks.toml_value({"hooks": [hooks.hook_handler(line)]})
        state = hooks.toml_value({f"{config}:stop:0:0": {"trusted_hash": hooks.trust_hash("stop", line, None)}})
        config.write_text(f"{config.read_text()}\n[hooks]\nStop = [{hook}]\nstate = {state}\n")
        assert done(popen(made.argv, made.env, box.ws))[0] == 0
    turn = ["SessionStarted", "TurnStarted", "ModelRequest", "TurnCompleted"]
    more = ["ModelRequest", "ToolStarting", "ToolEnded", "ModelRequest", "TurnCompleted"]
    assert run.heard.names() == turn + more


# ---- hooks ---------------------------------------------------------------------------------------------------------


def test_hooks_that_are_off_are_found(box: Box, runs: list[Run]) -> None:
    """Codex passes over them without a word. By the settings before the start; else by its own open session file, since
    no handshake tells which it is, before a tool can run."""
    (box.ws / ".codex").mkdir()
    (box.ws / ".codex/config.toml").write_text("[features]\nhooks = false\n")
    why = CODEX.hooks_off_reason(["exec", "do it"], box.ws, box.user_env)
    assert why is not None and ".codex/config.toml: features.hooks is false" in why

    run = Run(box)
    runs.append(run)
    answer = threading.Event()
    with box.model(Turn(calls=[box.shell("touch ran")], hold=answer)) as model:
        process = run.start(model, "do it")
        (run.dir / "agent.pid").write_text(f"{process.pid}\n")
        env = box.user_env | run.injected.env
        model.wait_for(1, 120)
        wait_until(lambda: bool(CODEX.session_files(run.session, box.ws, env)))
        (file,) = CODEX.session_files(run.session, box.ws, env)
        appended = file.path.read_bytes()
        box.kill(process)
    assert run.heard.events == []
    assert CODEX.proves_turn(appended)
    assert CODEX.session_files(run.session, box.ws, box.user_env) == []


def test_the_users_own_hooks_and_tools_without_one(box: Box, runs: list[Run]) -> None:
    """Theirs run beside ours as they did before; for a tool in `skip` none of ours starts."""
    line = "cat >> theirs"
    run = Run(box, skip=("apply_patch", "apply", "Basher"))
    runs.append(run)
    with box.model(Turn(calls=[box.shell("true"), box.rehearsal.write(box.ws / "made", "x")]), Turn("bye")) as model:
        box.env(model)
        config = box.home / ".codex/config.toml"
        key = f"{config}:post_tool_use:0:0"
        theirs = hooks.trust_hash("post_tool_use", line, None)
        hook = hooks.toml_value({"hooks": [hooks.hook_handler(line)]})
        state = hooks.toml_value({key: {"trusted_hash": theirs}})
        users = f"\n[hooks]\nPostToolUse = [{hook}]\nstate = {state}\n"
        made = run.command(model, box.rehearsal.args("do it"), None, tty=False)
        config.write_text(config.read_text() + users)
        assert done(popen(made.argv, made.env, box.ws))[:2] == (0, "bye\n")
        assert config.read_text().endswith(users)
    assert [e.tool for e in run.heard.events if isinstance(e, ToolStarting | ToolEnded)] == ["Bash", "Bash"]
    assert (box.ws / "theirs").read_text().count('"PostToolUse"') == 2


def test_a_hook_of_ours_that_the_user_switched_off(box: Box, runs: list[Run]) -> None:
    """By its key, which is the same in every run: the tool would run without a before-hook, all else would be heard."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[box.shell("true")]), Turn("bye")) as model:
        made = run.command(model, box.rehearsal.args("do it"), None, tty=False)
        config = box.home / ".codex/config.toml"
        state = f'[hooks.state."{hooks.SOURCE}:pre_tool_use:0:0"]\nenabled = false\n'
        config.write_text(f"{config.read_text()}\n{state}")
        assert done(popen(made.argv, made.env, box.ws))[:2] == (0, "bye\n")
    assert run.heard.names().count("ToolStarting") == 1


TYPING = """
let said = "";
try {
  const r = await tools.exec_command({cmd: "cat > typed", yield_time_ms: 300, tty: true});
  await tools.write_stdin({session_id: r.session_id, chars: "hi\\n", yield_time_ms: 300});
} catch (e) { said = String(e); }
text(said);
"""


def test_nothing_can_be_typed_into_a_command(box: Box, runs: list[Run]) -> None:
    """No hook tells of `write_stdin`; a shell that one can type into would run anything unlogged (I1)."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[("exec", {"input": TYPING})]), Turn("bye")) as model:
        assert done(run.start(model, "do it", *CODE_MODE))[:2] == (0, "bye\n")
        assert "TTY execution is disabled" in result(model.history(-1), "write_stdin")
    assert not (box.ws / "typed").exists()


def test_subagents_and_forks(box: Box, runs: list[Run]) -> None:
    """A subagent's calls name it, its turn is no turn of the session, and its file goes with it; so does the file that
    a fork begins in."""
    run = Run(box)
    runs.append(run)
    spawn = ("collaboration::spawn_agent", {"message": "SUBTASK", "task_name": "sub", "fork_turns": "none"})
    script = 'const r = await tools.exec_command({cmd: "echo in-sub"}); text(JSON.stringify(r))'
    waits = ("collaboration::wait_agent", {"timeout_ms": 20000})
    sub_is_over = threading.Event()
    turns = [
        Turn(calls=[spawn]),
        Turn(calls=[("exec", {"input": script})], when="Task name: /root/sub"),
        Turn("sub is done", when="in-sub"),
        Turn(calls=[waits], when="/root/sub", hold=sub_is_over),
        Turn("bye"),
    ]
    with box.model(*turns) as model:
        process = run.start(model, "do it", *CODE_MODE)
        try:
            wait_until(lambda: ended(run, b"in-sub"))
        finally:
            sub_is_over.set()
        assert done(process)[0] == 0
    calls = [e for e in run.heard.events if isinstance(e, ToolStarting)]
    inner = {e.inner for e in calls if b"in-sub" in e.input}
    assert len(inner) == 1 and "" not in inner
    assert {e.inner for e in calls if "spawn" in e.tool} == {""}
    assert len({e.session for e in calls}) == 1
    assert len([e for e in run.heard.events if isinstance(e, TurnStarted)]) == 1
    assert run.heard.names().count("TurnCompleted") == 1
    assert OtherEvent("PreModelRequest") in run.heard.events, "the subagent's says nothing of the batch around it"
    main, sub = CODEX.session_files(run.heard_session, box.ws, box.user_env)
    assert b"in-sub" in sub.path.read_bytes() and b"in-sub" not in main.path.read_bytes()
    assert CODEX.restore_path(sub.name, run.heard_session, box.ws, box.user_env) == sub.path

    fork = Run(box)
    runs.append(fork)
    with box.model(Turn("forked")) as model:
        args = ["exec", "fork", *box.rehearsal.args("")[1:-1], *CODE_MODE, run.heard_session, "and on"]
        made = fork.command(model, args, None, tty=False)
        assert done(popen(made.argv, made.env, box.ws))[:2] == (0, "forked\n")
    names = [f.path for f in CODEX.session_files(fork.heard_session, box.ws, box.user_env)]
    assert fork.heard_session != run.heard_session
    assert main.path in names[1:]


# ---- on a terminal -------------------------------------------------------------------------------------------------


def test_on_a_terminal(box: Box, runs: list[Run]) -> None:
    """Hooks live there; a kill, and a resume in another folder that asks nothing, with the notice as it is."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn("First.", [box.shell("echo one")]), Turn(calls=[box.shell("sleep 60")])) as model:
        tty = run.on_tty(model, box.rehearsal.interactive_args("do it") or ())
        wait_until(lambda: starting(run, b"sleep"))
        tty.process.kill()
        tty.quit()
    session = run.heard_session
    there = elsewhere(box, "there")
    child = CODEX.reconcile(box.main(session).read_bytes(), session, there.ws, run.calls())
    told = b"".join(CODEX.resume.inject_prompt(child.data, session, there.ws, PROMPT))
    assert told is not None
    there.restore(told, session)
    again = Run(there, session=session)
    runs.append(again)
    with there.model(Turn("verified")) as model:
        tty = again.on_tty(model, there.rehearsal.interactive_args("do it") or (), resume=PROMPT)
        wait_until(lambda: "TurnCompleted" in again.heard.names())
        assert tty.quit() == 0
        heard = model.history(0)
    assert "First." in tty.screen
    assert "outcome unknown" in result(heard, "sleep 60")
    users = [part.text for part in heard if isinstance(part, HistoryText) and part.role == "user"]
    assert users.count(PROMPT) == 1
    assert users[-1] == ACT
    assert str(there.ws) in users[-2]
    assert list(there.ws.iterdir()) == []
