"""The hooks of an agent module on the real CLI: handshake, refusals, failing closed, and what stays untouched."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.agent_box import popen
from tests.contract.gemini_box import GEMINI, Box, Run, Tty, done, history, wait_until
from tests.mocks.gemini_model import GeminiModel, Turn
from tests.tiers import deep
from wal_agent.agents import hook_line
from wal_agent.agents.base import (
    Allow,
    AwaitingApproval,
    Decision,
    Deny,
    HookEvent,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnStarted,
)

pytestmark = deep

FAILING_CLIENT = Path(__file__).parent / "failing_client.py"
REFUSED = 'wal-agent did not run this: "because"\n$(of) a `test` \'.'
BIG = "x" * 1_000_000


@pytest.fixture
def box(tmp_path: Path, gemini_cli: Path) -> Box:
    return Box(tmp_path, gemini_cli)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


def shell(command: str) -> tuple[str, dict[str, object]]:
    return ("run_shell_command", {"command": command})


def only_wanted(event: HookEvent) -> Decision:
    if isinstance(event, ToolStarting) and b"unwanted" in event.input:
        return Deny(REFUSED)
    return Allow()


def files_of(home: Path) -> dict[str, str]:
    return {
        str(p.relative_to(home)): hashlib.sha256(p.read_bytes()).hexdigest() for p in home.rglob("*") if p.is_file()
    }


def test_a_run(box: Box, runs: list[Run]) -> None:
    """One process, the handshake, allow and deny, calls with results, skipped tools, nothing of the user's changed."""
    run = Run(box, decide=only_wanted, skip=("list_directory",))
    runs.append(run)
    box.env(box.model())
    (box.home / ".gemini/GEMINI.md").write_text("Be brief.")
    (box.home / ".gemini/extensions").mkdir()
    before = files_of(box.home)
    big = box.ws / "big.txt"
    turns = [
        Turn(calls=[shell("touch wanted"), shell("touch unwanted"), ("list_directory", {"dir_path": str(box.ws)})]),
        Turn(calls=[("write_file", {"file_path": str(big), "content": BIG}), shell("exit 3")]),
        Turn(text="bye"),
    ]
    with GeminiModel(turns) as model:
        process = run.go(model, ["-p", "do it", "--yolo"])
        code, out, _ = done(process)
        results = [history(request)[-3:] for request in model.requests[1:]]

    assert (code, out) == (0, "bye\n")
    names = run.heard.names()
    assert names[:3] == ["SessionStarted", "TurnStarted", "ModelRequest"]
    assert names[-1] == "TurnCompleted"
    assert {hello.agent_pid for _, hello, _ in run.heard.heard} == {process.pid}, (
        "one node process, and it runs the hooks"
    )
    assert {e.session for e in run.heard.events if isinstance(e, TurnStarted)} == {run.session}
    wait_until(lambda: len(run.heard.told) == len(names))

    assert (box.ws / "wanted").exists()
    assert not (box.ws / "unwanted").exists()
    refused = [part["functionResponse"]["response"] for _, part in results[0]][1]
    assert refused == {"error": f"Tool execution blocked: {REFUSED}"}
    assert big.read_text() == BIG
    assert "Exit Code: 3" in json.dumps(results[1])

    ended = [e for e in run.heard.events if isinstance(e, ToolEnded)]
    assert [c.tool for c in run.calls()] == [
        "run_shell_command",
        "run_shell_command",
        "write_file",
        "run_shell_command",
    ]
    assert len(ended) == 3, "no end for the refused call"
    assert json.loads(next(e for e in ended if e.tool == "write_file").input)["content"] == BIG
    assert b"originalContent" not in b"".join(e.result for e in ended)

    after = files_of(box.home)
    assert {name: after.get(name) for name in before} == before
    new = {name.split("/")[1] for name in set(after) - set(before)}
    assert new <= {"extensions", "tmp", "history", "projects.json", "installation_id", "state.json"}

    GEMINI.hooks.sweep({"HOME": str(box.home)}, run.dir.parent)
    assert (run.dir / f"extensions/wal-agent-{run.run}").exists()
    assert list((box.home / ".gemini/extensions").iterdir()) == [], "no other Gemini loads it"
    assert [p.name for p in (box.home / ".gemini").glob(".wal*")] == []


ROWS = ("killed", "hung", "stopped", "failed", "silent", "garbage", "truncated", "no-nul", "bad-json-end", "gone")


def test_every_broken_client_denies(box: Box, runs: list[Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """I5, one row each, all in one batch; then the client is deleted. Only the sound client's call runs."""
    monkeypatch.setattr(hook_line, "SHELL_SECONDS", {True: 8, False: 2})
    monkeypatch.setattr(hook_line, "CLIENT_SECONDS", {True: 7, False: 1})
    client = tmp_path / "client.py"
    client.write_text(FAILING_CLIENT.read_text())
    deleted = threading.Event()
    run = Run(box, client=(sys.executable, "-I", "-S", "-E", str(client)))
    runs.append(run)
    turns = [
        Turn(calls=[shell(f"touch ran-{row}") for row in (*ROWS, "sound")]),
        Turn(calls=[shell("touch ran-missing")], hold=deleted),
        Turn(text="bye"),
    ]
    with GeminiModel(turns) as model:
        process = run.go(model, ["-p", "do it", "--yolo"])
        model.wait_for(2, 120)
        client.unlink()
        deleted.set()
        assert done(process)[0] == 0
        for left in tmp_path.glob("client.py.*"):
            os.kill(int(left.suffix[1:]), signal.SIGKILL)
        results = json.dumps([request["contents"][-1] for request in model.requests[1:]])
    assert sorted(p.name for p in box.ws.iterdir()) == ["ran-sound"]
    assert results.count("wal-agent did not run this") == len(ROWS) + 1


def replace_ws(box: Box, ws: Path) -> Box:
    other = copy.copy(box)
    other.ws = ws
    return other


def test_the_portable_client_allows_and_denies(box: Box, runs: list[Run]) -> None:
    """All else here runs with the native one."""
    run = Run(box, client=hook_line.python_client(), decide=only_wanted)
    runs.append(run)
    with GeminiModel([Turn(calls=[shell("touch wanted"), shell("touch unwanted")]), Turn(text="bye")]) as model:
        assert done(run.go(model, ["-p", "do it", "--yolo"]))[:2] == (0, "bye\n")
    assert [path.name for path in box.ws.iterdir()] == ["wanted"]
    wait_until(lambda: len(run.heard.told) == len(run.heard.names()))


def test_two_runs_and_a_foreign_gemini_in_one_home(box: Box, runs: list[Run]) -> None:
    """I7: each hears only its own; the foreign one, with a dead run's extension beside it, notices nothing."""
    one, two, dead = Run(box), Run(box), Run(box, serve=False)
    runs += [one, two, dead]

    def script(name: str) -> list[Turn]:
        return [Turn(calls=[shell(f"touch {name}")]), Turn(text="bye")]

    with GeminiModel(script("one")) as m1, GeminiModel(script("two")) as m2, GeminiModel(script("foreign")) as m3:
        dead.command(m3, [], None, tty=False)  # leaves its extension; no supervisor, no agent
        processes = [one.go(m1, ["-p", "one", "--yolo"]), two.go(m2, ["-p", "two", "--yolo"])]
        wait_until(lambda: "SessionStarted" in one.heard.names() and "SessionStarted" in two.heard.names())
        processes.append(box.begin(m3, ["-p", "foreign", "--yolo", "-m", "gemini-2.5-pro"]))
        ends = [done(process) for process in processes]
        assert [code for code, _, _ in ends] == [0, 0, 0]
        assert "[wal-agent recovery]" in json.dumps(m1.requests[0])
        assert "wal-agent" not in json.dumps(m3.requests).replace(str(box.base), "")
        assert "wal-agent" not in ends[2][2]
        picky = box.base / "picky"
        (picky / ".gemini").mkdir(parents=True)
        (picky / ".gemini/settings.json").write_text('{"security": {"allowedExtensions": ["only/this"]}}')
        listed = done(replace_ws(box, picky).begin(m3, ["--list-extensions"]))
        assert listed[0] == 0, "an extension without install data would keep this Gemini from starting"
    assert sorted(p.name for p in box.ws.iterdir()) == ["foreign", "one", "two"]
    for run in (one, two):
        assert {hello.run for _, hello, _ in run.heard.heard} == {run.run}
        assert run.heard.names().count("ToolStarting") == 1


def test_a_stripped_environment_still_denies_when_the_wrapper_is_dead(box: Box, runs: list[Run]) -> None:
    """GITHUB_SHA makes Gemini strip what hooks inherit; the marker passes, and nobody answers."""
    box.extra["GITHUB_SHA"] = "1"
    run = Run(box, serve=False)
    runs.append(run)
    with GeminiModel([Turn(calls=[shell("touch ran")]), Turn(text="bye")]) as model:
        assert done(run.go(model, ["-p", "do it", "--yolo"]))[0] == 0
        assert "wal-agent did not run this" in json.dumps(model.requests[1]["contents"][-1])
    assert list(box.ws.iterdir()) == []


def test_hooks_that_are_off_are_found(box: Box, runs: list[Run]) -> None:
    """Before the start by the project's settings; and by a turn on disk without a handshake, before a tool can run."""
    (box.ws / ".gemini").mkdir()
    (box.ws / ".gemini/settings.json").write_text('{"hooksConfig": {"enabled": false}} // off')
    why = GEMINI.hooks_off_reason([], box.ws, {"HOME": str(box.home)})
    assert why is not None
    assert "(.gemini/settings.json: hooksConfig.enabled is false)" in why

    run = Run(box)
    runs.append(run)
    answer = threading.Event()
    with GeminiModel([Turn(calls=[shell("touch ran")], hold=answer)]) as model:
        process = run.go(model, ["-p", "do it", "--yolo"])
        model.wait_for(1, 120)
        appended = box.main(run.session).read_bytes()
        process.kill()
        process.communicate()
    assert run.heard.events == []
    assert GEMINI.proves_turn(appended)


def test_an_approval_that_is_refused(box: Box, runs: list[Run]) -> None:
    """BeforeTool, the question, Esc: no end by a hook; the session says that it was not run, then goes."""
    run = Run(box)
    runs.append(run)
    with GeminiModel([Turn(text="I will.", calls=[shell("touch ran")])]) as model:
        tty: Tty = run.talk(model, ["-i", "do it now"])
        wait_until(lambda: any(isinstance(e, AwaitingApproval) for e in run.heard.events))
        wait_until(lambda: "Allow once" in tty.screen)
        time.sleep(0.5)
        main = box.main(run.session)
        tty.send(b"\x1b")
        wait_until(lambda: bool(GEMINI.seen_calls(main.read_bytes())))
        wait_until(lambda: b"Request cancelled" in main.read_bytes())
        time.sleep(0.3)
        cut_off = main.read_bytes()
        assert tty.quit() == 0
    assert [call.status for call in GEMINI.seen_calls(cut_off)] == ["refused"]
    assert not any(isinstance(e, ToolEnded) for e in run.heard.events)
    assert not GEMINI.session_files(run.session, box.ws, {"HOME": str(box.home)}), "what the log kept is all there is"

    mended = GEMINI.reconcile(cut_off, run.session, box.ws, [])
    assert any("merged" in repair for repair in mended.repairs)
    box.restore(mended.data, run.session)
    with GeminiModel([Turn(text="back")]) as model:
        assert done(run.go(model, ["-p", "and now?"], resume=""))[:2] == (0, "back\n")
        texts = [part.get("text") for content in model.requests[0]["contents"] for part in content["parts"]]
    assert "do it now" in texts
    assert "and now?" in texts


def test_s14_another_start_deletes_a_young_session(box: Box, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    """Gemini goes on in a file without the head: what stands there is the session, and resumes once it is mended."""
    monkeypatch.setattr(hook_line, "SHELL_SECONDS", {True: 125, False: 125})
    monkeypatch.setattr(hook_line, "CLIENT_SECONDS", {True: 120, False: 120})
    young, may_begin = threading.Event(), threading.Event()

    def decide(event: HookEvent) -> Decision:
        if isinstance(event, SessionStarted) and not young.is_set():
            young.set()
            may_begin.wait(120)
        return Allow()

    run = Run(box, decide=decide)
    runs.append(run)
    with GeminiModel([Turn(text="Now.", calls=[shell("echo one")]), Turn(text="bye")]) as model:
        process = run.go(model, ["-p", "do it now", "--yolo"])
        assert young.wait(120)
        stub = box.main(run.session)
        assert b"do it now" not in stub.read_bytes()
        with GeminiModel([Turn(hold=threading.Event())]) as busy:
            argv = (str(box.program), "-p", "another", "-m", "gemini-2.5-pro")
            other = popen(argv, {**box.env(busy), "GEMINI_CLI_NO_RELAUNCH": "true"}, box.ws)
            wait_until(lambda: not stub.exists())
            other.kill()
            other.communicate()
        may_begin.set()
        assert done(process)[:2] == (0, "Now.\nbye\n")
    (found, *_) = GEMINI.session_files(run.session, box.ws, box.user_env)
    assert found.path == stub
    assert not GEMINI.resumable(run.session, box.ws, box.user_env)

    mended = GEMINI.reconcile(stub.read_bytes(), run.session, box.ws, run.calls())
    stub.unlink()
    box.restore(mended.data, run.session)
    with GeminiModel([Turn(text="back")]) as model:
        assert done(run.go(model, ["-p", "and now?"], resume=""))[:2] == (0, "back\n")
        parts = [part for _, part in history(model.requests[0])]
    texts = [part.get("text") for part in parts]
    assert "do it now" in texts
    assert "bye" in texts
    assert [part["functionCall"]["args"]["command"] for part in parts if "functionCall" in part] == ["echo one"]
