"""Hazards of Kimi Code by name, on the real program; what every agent promises is in test_agents.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.agent_box import Box, Run, done, wait_until
from tests.tiers import deep
from wal_agent.agents import AGENTS
from wal_agent.agents.base import ToolEnded, ToolStarting, TurnStarted
from wal_agent.rehearsal.model import Called, HistoryText, Returned, Turn

pytestmark = deep

KIMI = AGENTS["kimi"]
Program = Callable[[str], Path]


@pytest.fixture
def box(tmp_path: Path, agent_cli: Program) -> Box:
    return Box(tmp_path, agent_cli("kimi"), KIMI)


@pytest.fixture
def run(box: Box) -> Iterator[Run]:
    made = Run(box)
    yield made
    made.close()


def test_a_batch_that_was_not_saved_is_put_back(box: Box, run: Run) -> None:
    """I8: the file of the machine that is lost ends before the model's second message; the log has its calls."""
    script = [
        Turn("First.", [box.shell("echo one-is-done")]),
        Turn("Then.", [box.shell("echo two-is-done"), box.shell("echo three >&2; exit 3")]),
        Turn("bye", hold=threading.Event()),
    ]
    with box.model(*script) as model:
        process = run.start(model, "do it")
        wait_until(lambda: run.heard.names().count("ToolEnded") == 3)  # it ends such a hook with its turn
        assert script[2].hold is not None
        script[2].hold.set()
        assert done(process)[0] == 0
    run.session = run.heard_session
    main = box.main(run.session)
    lines = main.read_bytes().splitlines(keepends=True)
    second = next(n for n, line in enumerate(lines) if b"two-is-done" in line)
    made = KIMI.reconcile(b"".join(lines[: second - 2]), run.session, box.ws, run.calls())
    assert made.put_back == 2
    main.write_bytes(made.data)
    with box.model(Turn("on")) as model:
        assert done(run.start(model, "go on", resume=""))[0] == 0
        heard = model.history()
    asked = [part for part in heard if isinstance(part, Called)]
    told = {part.id: part.text for part in heard if isinstance(part, Returned)}
    assert [part.input["command"].split()[1] for part in asked] == ["one-is-done", "two-is-done", "three"]
    words = ("one-is-done", "two-is-done", "exit code: 3")
    assert all(word in told[part.id] for part, word in zip(asked, words, strict=True))
    assert [part.text for part in heard if isinstance(part, HistoryText)].count("go on") == 1


def test_a_command_in_the_background_stays_open_until_it_has_ended(box: Box, run: Run) -> None:
    """I1: Kimi calls it done at once; that it has ended is in the session only."""
    name, input = box.shell("sleep 1; touch made")
    call, hold = (name, {**input, "run_in_background": True, "description": "x"}), threading.Event()
    with box.model(Turn(calls=[call]), Turn("bye", hold=hold)) as model:
        process = run.start(model, "do it")
        wait_until(lambda: "ToolEnded" in run.heard.names())
        hold.set()
        assert done(process)[0] == 0
    ended = next(e for e in run.heard.events if isinstance(e, ToolEnded))
    assert ended.runs_on and ended.task and (box.ws / "made").exists()
    seen = KIMI.seen_calls(box.main(run.heard_session).read_bytes())
    assert [(call.status, call.task) for call in seen] == [("runs_on", ended.task), ("done", ended.task)]


def test_a_subagents_calls_are_in_a_file_that_is_saved(box: Box, run: Run) -> None:
    agent = ("Agent", {"prompt": "look around", "description": "look"})
    script = [Turn(calls=[agent]), Turn(calls=[box.shell("echo inside")]), Turn("found"), Turn("bye")]
    with box.model(*script) as model:
        assert done(run.start(model, "do it"))[0] == 0
    begun = {e.tool: e.call_id for e in run.heard.events if isinstance(e, ToolStarting)}
    files = KIMI.session_files(run.heard_session, box.ws, box.user_env)
    of_other = [file for file in files if file.name.endswith(".jsonl") and file.name != KIMI.main_file]
    seen = [call for file in of_other for call in KIMI.seen_calls(file.path.read_bytes())]
    assert [(call.call_id, call.status) for call in seen] == [(begun["Bash"], "done")]
    assert [e.prompt for e in run.heard.events if isinstance(e, TurnStarted)] == ["do it"]


def test_its_own_hooks_of_the_users_still_run(box: Box, run: Run) -> None:
    """I6."""
    with box.model(Turn(calls=[box.shell("touch made")]), Turn("bye")) as model:
        made = run.command(model, box.rehearsal.args("do it"), None, tty=False)
        settings = box.home / ".kimi-code/config.toml"
        settings.write_text(
            settings.read_text() + '\n[[hooks]]\nevent = "PreToolUse"\ncommand = "echo no >&2; exit 2"\n'
        )
        assert done(run.popen(made))[0] == 0
        assert [part.text for part in model.history() if isinstance(part, Returned)] != []
    assert not (box.ws / "made").exists()
