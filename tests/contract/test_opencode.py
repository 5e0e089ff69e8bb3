"""Hazards of OpenCode, and of what is built from it, by name, on the real programs. What every agent promises is in
test_agents.py."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.contract.agent_box import Box, Run, done, wait_until
from tests.tiers import deep
from wal_agent.agents import AGENTS
from wal_agent.agents.base import ModelRequest, SessionStarted, ToolEnded, ToolStarting, TurnCompleted
from wal_agent.agents.opencode.database import load_rows
from wal_agent.agents.opencode.hooks import OFFLINE
from wal_agent.agents.opencode.resume import move_back, not_after
from wal_agent.rehearsal.model import HistoryText, Part, Returned, Turn

pytestmark = deep

TALKING = ("--auto", "--prompt=hello there")


BOTH = pytest.mark.parametrize("box", ["opencode", "kilo"], indirect=True)  # what depends on the folders of each


@pytest.fixture(params=["opencode"])
def box(agent_cli: Callable[[str], Path], request: pytest.FixtureRequest, tmp_path: Path) -> Box:
    return Box(tmp_path, agent_cli(request.param), AGENTS[request.param])


def variable(box: Box, name: str) -> str:
    return f"{box.agent.name.upper()}_{name}"


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    made: list[Run] = []
    yield made
    for run in made:
        run.close()


def said_in(history: Sequence[Part]) -> list[HistoryText]:
    """What was said, without what Kilo Code adds to each prompt."""
    texts = [part for part in history if isinstance(part, HistoryText) and part.role != "system"]
    return [part for part in texts if not part.text.startswith("\n\n<environment_details>")]


def started(box: Box, runs: list[Run], session: str = "") -> Run:
    run = Run(box, session=session) if session else Run(box)
    runs.append(run)
    return run


def users_files(box: Box) -> dict[str, str]:
    base = box.home / ".config"
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in base.rglob("*") if p.is_file()}


@BOTH
def test_no_network_no_stall_and_nothing_in_the_users_folder(box: Box, runs: list[Run]) -> None:
    """With a plugin OpenCode asks npm for its package, for 75 s where nothing answers, and waits a minute for a dead
    process's lock. The words that keep npm quiet do not reach the tools."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    config = box.home / ".config" / box.agent.name
    config.mkdir(parents=True)
    (config / ".gitignore").write_text("made by OpenCode at its first start")
    (config / ".bash-permission-migrated").touch()  # else Kilo Code's first start rewrites its settings
    key = hashlib.sha1(f"npm-install:{config}".encode()).hexdigest()
    lock = box.home / ".local/state" / box.agent.name / "locks" / f"{key}.lock"
    lock.mkdir(parents=True)
    meta = {"token": "t", "pid": dead.pid, "hostname": socket.gethostname(), "createdAt": ""}
    (lock / "meta.json").write_text(json.dumps(meta))
    (lock / "heartbeat").write_text("")
    run = started(box, runs)
    with (
        socket.create_server(("127.0.0.1", 0)) as registry,
        box.model(Turn(calls=[box.shell("env")]), Turn("bye")) as model,
    ):
        box.extra["npm_config_registry"] = f"http://127.0.0.1:{registry.getsockname()[1]}"
        box.env(model)
        before = users_files(box)
        starts = run.start(model, "do it")
        assert not lock.exists(), "it goes before the agent starts"
        code, _, err = done(starts)
        registry.setblocking(False)
        with pytest.raises(BlockingIOError):
            registry.accept()  # nothing has asked
        shown = "\n".join(h.text for h in model.history() if isinstance(h, Returned))
    assert code == 0, err
    assert users_files(box) == before
    assert f"{variable(box, 'PID')}=" in shown
    assert not [name for name in OFFLINE if f"{name}=" in shown]


@BOTH
def test_a_turn_without_our_plugin_shows(box: Box) -> None:
    """Nobody knows the session's id then; its first turn is found in the database."""
    wish, journal = str(uuid.uuid4()), box.agent.capabilities.journal
    assert journal is not None
    with box.model(Turn("hello")) as model:
        journal.update(wish, box.ws, box.env(model))
        assert done(box.start(model, "hi"))[0] == 0
        journal.update(wish, box.ws, box.user_env)
    [file] = box.agent.session_files(wish, box.ws, box.user_env)
    assert box.agent.proves_turn(file.path.read_bytes())


def test_subagents(box: Box, runs: list[Run]) -> None:
    """Their calls are told as theirs, their end is not the turn's, and their sessions are in the journal."""
    run = started(box, runs)
    task = ("task", {"description": "look", "prompt": "inner words", "subagent_type": "general"})
    inner = Turn(calls=[box.shell("echo from-inside")], when="inner words")
    with box.model(inner, Turn("found", when="from-inside"), Turn(calls=[task]), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[0] == 0
    begun = [e for e in run.heard.events if isinstance(e, ToolStarting)]
    assert [(e.tool, bool(e.inner)) for e in begun] == [("task", False), ("bash", True)]
    assert {e.session for e in run.heard.events if isinstance(e, ToolEnded | ToolStarting)} == {run.heard_session}
    assert len([e for e in run.heard.events if isinstance(e, TurnCompleted)]) == 1
    assert len([e for e in run.heard.events if isinstance(e, ModelRequest)]) == 2, "the subagent's tell nothing of ours"
    told = box.main(run.heard_session).read_bytes()
    assert begun[1].inner.encode() in told
    assert {c.call_id for c in box.agent.seen_calls(told)} == {e.call_id for e in begun}


def test_an_opencode_that_a_tool_starts_is_only_a_part_of_its_call(box: Box, runs: list[Run]) -> None:
    """It must not take the job over; with the variable as it was, or with ours, which a program may hand on."""
    run = started(box, runs)
    inner = f"{box.program} run --auto innerword </dev/null; cat /proc/$PPID/environ | tr '\\0' '\\n' > outer"
    content = variable(box, "CONFIG_CONTENT")
    ours = f'export "$(grep ^{content}= outer)"'
    again = f"{ours}; echo ${content}; {box.program} run --auto secondword </dev/null"
    turns = (
        Turn("first inside", when="innerword"),
        Turn("second inside", when="secondword"),
        Turn(calls=[box.shell(inner)]),
        Turn(calls=[box.shell(again)]),
        Turn("bye"),
    )
    with box.model(*turns) as model:
        code, _, err = done(run.start(model, "do it"))
    assert code == 0, err
    begun = [e for e in run.heard.events if isinstance(e, ToolStarting)]
    assert len(begun) == 2 and {e.session for e in begun} == {run.heard_session}
    assert len([e for e in run.heard.events if isinstance(e, SessionStarted)]) == 1
    results = [e.result for e in run.heard.events if isinstance(e, ToolEnded)]
    assert b"first inside" in results[0] and b"second inside" in results[1] and b"wal-agent.js" in results[1]


def test_an_api_that_fails_is_no_completion(box: Box, runs: list[Run]) -> None:
    """OpenCode says that it is idle after an error too."""
    run = started(box, runs)
    with box.model(Turn(status=400)) as model:
        assert done(run.start(model, "do it"))[0] == 1
    assert not [e for e in run.heard.events if isinstance(e, TurnCompleted)]


def test_on_a_terminal(box: Box, runs: list[Run]) -> None:
    """The TUI takes no prompt for a known session; it arrives all the same, byte for byte."""
    prompt = '/x @README.md !ls "two words" $X\n`a` ünï\n-x  y'
    run = started(box, runs)
    with box.model(Turn("one"), Turn("two")) as model:
        tty = run.on_tty(model, TALKING)
        wait_until(lambda: "TurnCompleted" in run.heard.names())
        tty.quit()
        again = started(box, runs, run.heard_session)
        tty = again.on_tty(model, TALKING, resume=prompt)
        wait_until(lambda: "TurnCompleted" in again.heard.names())
        tty.quit()
        said = [h.text for h in said_in(model.history(1)) if h.role == "user"]
    assert said == ["hello there", prompt]
    assert again.heard_session == run.heard_session


def test_a_clock_that_is_behind_the_conversation(box: Box, runs: list[Run]) -> None:
    """OpenCode orders by times and ids: a new prompt would stand in front of the answers, and its model be asked on and
    on, or never."""
    run = started(box, runs)
    with box.model(Turn(calls=[box.shell("echo one")]), Turn("first")) as model:
        assert done(run.start(model, "do it"))[0] == 0
    session = run.heard_session
    ahead = b"".join(move_back(load_rows(box.main(session).read_bytes()), -300_000))
    made = box.agent.reconcile(ahead, session, box.ws, run.calls())
    assert made.put_back == 0
    box.restore(b"".join(not_after(made.data, time.time())), session)
    again = started(box, runs, session)
    with box.model(Turn("second")) as model:
        assert done(again.start(model, "do it", resume="and more"))[0] == 0
        said = [h.text for h in said_in(model.history())]
        assert len(model.requests) == 1
    assert said[1:] == ["first", "and more"]
    made = box.agent.reconcile(box.main(session).read_bytes(), session, box.ws, run.calls())
    assert made.put_back == 0, "its calls are still those of the log"
