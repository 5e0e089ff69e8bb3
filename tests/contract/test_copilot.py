"""Hazards of Copilot CLI by name, on the real program; what every agent promises is in test_agents.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.agent_box import Box, Run, done, wait_until
from tests.tiers import deep
from wal_agent.agents import copilot as COPILOT
from wal_agent.agents import hook_line
from wal_agent.agents.base import (
    AwaitingApproval,
    LoggedCall,
    SessionStarted,
    ToolEnded,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.copilot.hooks import platform_builds
from wal_agent.rehearsal.model import Called, HistoryText, Returned, Turn

pytestmark = deep

FAILING_CLIENT = Path(__file__).parent / "failing_client.py"
Program = Callable[[str], Path]


@pytest.fixture
def box(tmp_path: Path, agent_cli: Program) -> Box:
    return Box(tmp_path, agent_cli("copilot"), COPILOT)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


def in_ws(box: Box) -> list[str]:
    return sorted(p.name for p in box.ws.iterdir() if not p.name.startswith("."))


def events(main: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(text) for text in main.read_bytes().splitlines()]
    return [event["data"] for event in found if event["type"] == kind]


ROWS = ("hung", "killed", "garbage", "silent", "truncated")


def test_a_hook_that_hangs_or_talks_nonsense_denies(
    box: Box, runs: list[Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Copilot lets the tool run on a timeout and on words that are no JSON; our line answers before, and in JSON. Its
    hooks of one batch come one after the other, each with a time of its own."""
    monkeypatch.setattr(hook_line, "SHELL_SECONDS", {True: 8, False: 2})
    monkeypatch.setattr(hook_line, "CLIENT_SECONDS", {True: 7, False: 1})
    client = tmp_path / "client.py"
    client.write_text(FAILING_CLIENT.read_text())
    run = Run(box, client=(sys.executable, "-I", "-S", "-E", str(client)))
    runs.append(run)
    with box.model(Turn(calls=[box.shell(f"touch ran-{row}") for row in (*ROWS, "sound")]), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[0] == 0
        told = [part.text for part in model.history() if isinstance(part, Returned)]
    assert in_ws(box) == ["ran-sound"]
    assert sum("Denied by preToolUse hook: wal-agent did not run this" in text for text in told) == len(ROWS)


def test_beside_the_users_own_plugin_and_instructions(box: Box, runs: list[Run]) -> None:
    """`--plugin-dir` twice: both load. The user's instructions stay, ours come, also on a resume."""
    own = box.base / "own"
    hook = {"type": "command", "bash": f"cat >> {own}/heard"}
    (own / "hooks").mkdir(parents=True)
    (own / "plugin.json").write_text(json.dumps({"name": "own", "version": "1.0.0", "hooks": "hooks/hooks.json"}))
    (own / "hooks/hooks.json").write_text(json.dumps({"version": 1, "hooks": {"preToolUse": [hook]}}))
    (box.home / ".copilot").mkdir()
    (box.home / ".copilot/copilot-instructions.md").write_text("Be brief, says the user.")
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[box.shell("touch ran")]), Turn("bye"), Turn("bye")) as model:
        assert done(run.start(model, "do it", "--plugin-dir", str(own)))[0] == 0
        assert done(run.start(model, "do it", "--plugin-dir", str(own), resume="go on"))[0] == 0
        system = [
            "\n".join(p.text for p in model.history(n) if isinstance(p, HistoryText) and p.role == "system")
            for n in (0, 2)
        ]
    assert b"touch ran" in (own / "heard").read_bytes()
    assert [type(e) for e in run.heard.events].count(ToolStarting) == 1
    assert [e.source for e in run.heard.events if isinstance(e, SessionStarted)] == ["new", "resume"]
    for text in system:
        assert "[wal-agent recovery]" in text and "says the user" in text


def test_how_calls_end(box: Box, runs: list[Run]) -> None:
    """A failed command is "success" for Copilot; a bad input and a subagent's call have their own ways."""
    run = Run(box)
    runs.append(run)
    task = {"name": "sub", "agent_type": "task", "description": "d", "prompt": "INNER", "mode": "sync"}
    script = [
        Turn(calls=[box.shell("exit 3"), ("bash", {"nope": 1}), box.rehearsal.write(box.ws / "f", "x")]),
        Turn(calls=[("task", task)]),
        Turn(calls=[box.shell("touch inner")], when="INNER"),
        Turn("inner is done"),
        Turn("bye"),
    ]
    with box.model(*script) as model:
        assert done(run.start(model, "do it"))[0] == 0
    ends = {
        (e.tool, json.loads(e.input).get("command", "")): (e.failed, e.clean)
        for e in run.heard.events
        if isinstance(e, ToolEnded)
    }
    assert ends == {
        ("bash", "exit 3"): (False, False),
        ("bash", ""): (True, False),
        ("create", ""): (False, True),
        ("bash", "touch inner"): (False, True),
        ("task", ""): (False, True),
    }
    assert {e.session for e in run.heard.events if isinstance(e, ToolStarting | ToolEnded)} == {run.session}
    assert [e.prompt for e in run.heard.events if isinstance(e, TurnStarted)] == ["do it"]
    assert len([e for e in run.heard.events if isinstance(e, TurnCompleted)]) == 1
    seen = COPILOT.seen_calls(box.main(run.session).read_bytes())
    assert len(seen) == 5 and sum(b"touch inner" in call.input for call in seen) == 1
    data = box.home / ".copilot/plugin-data/_direct"
    assert set(data.iterdir()) == set(run.injected.paths), "the one folder that Copilot makes for our plugin"


def test_the_version_that_is_told_is_the_one_that_runs(tmp_path: Path, agent_cli: Program) -> None:
    """Copilot's program hands over to a newer one in its cache, unless it is told not to."""
    newer = tmp_path / "cache/pkg" / platform_builds()[0] / "9.9.9"
    newer.mkdir(parents=True)
    (newer / "index.js").write_text('console.log("GitHub Copilot CLI 9.9.9.")')
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "COPILOT_PKG_CACHE_HOME": str(tmp_path / "cache")}
    cli = COPILOT.locate(env | {"WAL_AGENT_COPILOT": str(agent_cli("copilot"))})
    ran = subprocess.run([cli.path, "--version"], env=env, capture_output=True, text=True, timeout=150, check=True)
    assert (cli.version, ran.stdout) == ("9.9.9", "GitHub Copilot CLI 9.9.9.\n")
    fixed = {"WAL_AGENT_COPILOT": str(cli.path), "COPILOT_AUTO_UPDATE": "false"}
    package = json.loads((agent_cli("copilot").resolve().parent / "package.json").read_text())
    assert COPILOT.locate(env | fixed).version == package["version"]


def test_an_api_error_is_no_completion(box: Box, runs: list[Run]) -> None:
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[box.shell("true")]), Turn(status=400)) as model:
        assert done(run.start(model, "do it"))[0] == 1
    assert [type(e) for e in run.heard.events if isinstance(e, ToolEnded | TurnCompleted)] == [ToolEnded]


def test_hooks_that_are_off_are_found(box: Box, runs: list[Run]) -> None:
    """In a trusted project its settings switch plugins' hooks off too, and Copilot says nothing."""
    place = box.ws / ".github/copilot/settings.json"
    place.parent.mkdir(parents=True)
    place.write_text('{"disableAllHooks": true}')
    assert "disableAllHooks" in str(COPILOT.hooks_off_reason([], box.ws, box.user_env))
    run = Run(box)
    runs.append(run)
    with box.model(Turn(calls=[box.shell("true")]), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[0] == 0
    assert run.heard.events == []
    assert COPILOT.proves_turn(box.main(run.session).read_bytes())


def test_trust_folder_learns_its_session(box: Box, runs: list[Run]) -> None:
    """Copilot refuses `--session-id` beside `--trust-folder`, and both beside `--resume`."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn("bye"), Turn("bye")) as model:
        assert done(run.start(model, "do it", "--trust-folder"))[0] == 0
        run.session = run.heard_session
        code, _, err = done(run.start(model, "do it", "--trust-folder", "--name", "x", resume="go on"))
        assert code == 0, err
        users = [p.text for p in model.history() if isinstance(p, HistoryText) and p.role == "user"]
    assert [text.split("\n")[-1] for text in users] == ["do it", "go on"]
    assert len({e.session for e in run.heard.events if isinstance(e, SessionStarted)}) == 1


def test_a_resume_stays_in_its_workspace(box: Box, runs: list[Run]) -> None:
    """Copilot would go and work in the session's old folder, where that exists. And what it says of a call itself at
    a resume gives way to what the log knows."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn("Working.", [box.shell("sleep 60 # flying")])) as model:
        process = run.start(model, "do it")
        sessions = box.home / ".copilot/session-state"
        wait_until(lambda: b"# flying" in b"".join(p.read_bytes() for p in sessions.glob("*/events.jsonl")))
        wait_until(lambda: any(isinstance(e, ToolStarting) for e in run.heard.events))
        box.kill(process)
    old, box.ws = box.ws, box.base / "other"
    box.ws.mkdir()
    with box.model(Turn(calls=[box.shell("touch here")]), Turn("bye"), Turn("bye")) as model:
        assert done(run.start(model, "do it", resume="go on"))[0] == 0
        said = {p.id: p.text for p in model.history(0) if isinstance(p, Returned)}
        main = box.main(run.session)
        call = next(c for c in run.calls() if b"# flying" in c.input)
        known = LoggedCall(call.call, call.tool, call.input, b'{"text": "it ended well"}', False)
        made = COPILOT.reconcile(main.read_bytes(), run.session, box.ws, [known])
        main.write_bytes(made.data)
        assert done(run.start(model, "do it", resume="and on"))[0] == 0
        calls = {p.id: p.input["command"] for p in model.history() if isinstance(p, Called)}
        truth = {calls[p.id]: p.text for p in model.history() if isinstance(p, Returned)}
    assert (box.ws / "here").exists() and not (old / "here").exists()
    assert "was interrupted before a result was recorded" in "".join(said.values())
    assert made.put_back == 1
    assert truth["sleep 60 # flying"] == "it ended well"


def test_a_session_without_its_first_line(box: Box, runs: list[Run]) -> None:
    """Copilot refuses it as corrupted; reconciled, with a message that was lost put back, it resumes."""
    run = Run(box)
    runs.append(run)
    with box.model(Turn("First."), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[0] == 0
        main = box.main(run.session)
        beheaded = main.read_bytes().partition(b"\n")[2]
        lost = LoggedCall(7, "bash", b'{"command": "echo lost"}', b'{"text": "lost and found"}', False)
        shutil.rmtree(main.parent)
        box.restore(COPILOT.reconcile(beheaded, run.session, box.ws, [lost]).data, run.session)
        code, _, err = done(run.start(model, "do it", resume="go on"))
        assert code == 0, err
        assert [p.text for p in model.history() if isinstance(p, Returned)] == ["lost and found"]
        assert [p.text for p in model.history() if isinstance(p, HistoryText) and p.role == "model"].count(
            "First."
        ) == 1


def test_a_person_refuses_and_goes_on_later(box: Box, runs: list[Run]) -> None:
    """On a terminal: the question is told, Esc leaves no after-hook, and the session tells how it ended; a resume with
    a prompt of the recovery."""
    run = Run(box)
    runs.append(run)
    (box.ws / "f.txt").write_text("a file that must not be read into the prompt")
    prompt = "[wal-agent recovery] @f.txt /help !ls $HOME\n\n```\n`id` \\n ü\n```\n" + "k" * 3000
    with box.model(Turn("I will.", [box.shell("touch ran")]), Turn("bye")) as model:
        tty = run.on_tty(model, ["-i", "do it"])
        wait_until(lambda: any(isinstance(e, AwaitingApproval) for e in run.heard.events))
        wait_until(lambda: "enter to select" in tty.screen)
        wait_until(lambda: bool(COPILOT.session_files(run.session, box.ws, box.user_env)))  # it is saved a little late
        main = box.main(run.session)

        def refused() -> bool:
            tty.send(b"\x1b")
            time.sleep(0.3)
            return bool(COPILOT.seen_calls(main.read_bytes()))

        wait_until(refused)
        seen = COPILOT.seen_calls(main.read_bytes())
        tty.quit()
        assert [call.status for call in seen] in (["refused"], ["cancelled"])
        assert not any(isinstance(e, ToolEnded) for e in run.heard.events)
        asked = len(model.requests)
        tty = run.on_tty(model, ["-i", "do it"], resume=prompt)
        wait_until(lambda: len(model.requests) > asked)
        wait_until(lambda: any(isinstance(e, TurnCompleted) for e in run.heard.events))
        tty.quit()
        users = [p.text for p in model.history(asked) if isinstance(p, HistoryText) and p.role == "user"]
    assert sum(prompt in text for text in users) == 1
    assert "must not be read" not in "".join(users)
    assert in_ws(box) == ["f.txt"]
