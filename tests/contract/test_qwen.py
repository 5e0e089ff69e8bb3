"""What is peculiar to Qwen Code, on the real program: its hazards by name."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.agent_box import Box, Run, done, wait_until
from tests.tiers import deep
from wal_agent.agents import qwen as QWEN
from wal_agent.agents.base import (
    Allow,
    Decision,
    HookEvent,
    HookSetup,
    ModelRequest,
    ToolStarting,
    TurnCompleted,
    TurnStarted,
)
from wal_agent.agents.qwen.rehearsal import SETTINGS
from wal_agent.errors import ConfigError
from wal_agent.rehearsal.model import Called, HistoryText, Returned, Turn

pytestmark = deep

TURN = ["TurnStarted", "ToolStarting", "ToolEnded", "ModelRequest", "TurnCompleted"]
UNMARKED = {key: value for key, value in SETTINGS.items() if key != "$version"}


@pytest.fixture
def box(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[..., Path]) -> Box:
    return Box(tmp_path, agent_cli("qwen", getattr(request, "param", "")), QWEN)


EACH_VERSION = pytest.mark.parametrize(
    "box", ["", *QWEN.also], ids=lambda version: version or QWEN.tested, indirect=True
)


@pytest.fixture
def run(box: Box) -> Iterator[Run]:
    made = Run(box)
    yield made
    made.close()


def shout(path: Path) -> dict[str, Any]:
    """A hook of the user's own, for every event of a tool."""
    hook = {"type": "command", "command": f"echo x >> {path}"}
    return {"PreToolUse": [{"hooks": [hook]}], "PostToolUse": [{"hooks": [hook]}]}


class Settled(Box):
    """With settings of the user's instead of the rehearsal's."""

    def __init__(self, box: Box, **settings: Any) -> None:
        self.__dict__.update(box.__dict__)
        self.settings = settings

    def env(self, model: Any) -> dict[str, str]:
        env = super().env(model)
        self.settings = {**UNMARKED, **self.settings}
        (self.home / ".qwen/settings.json").write_text(json.dumps(self.settings))
        return env


def check_rewritten(box: Box, settings: dict[str, Any]) -> None:
    """Qwen's own habit at a first start: what settings without a version become. No start of ours does more. (0.15 also
    keeps a copy.)"""
    folder = box.home / ".qwen"
    copy = folder / "settings.json.orig"
    assert (folder / "settings.json").read_text() == json.dumps({**settings, "$version": 4}, indent=2)
    assert not copy.exists() or copy.read_text() == json.dumps(settings)


@EACH_VERSION
def test_the_users_and_the_projects_own_hooks_run_beside_ours(box: Box, run: Run) -> None:
    """Hooks from a system settings file would be lost here without a word. And nothing of the user's is changed that a
    plain start does not change."""
    heard = {name: box.base / f"heard-{name}" for name in ("user", "project")}
    run.box = settled = Settled(box, hooks=shout(heard["user"]))
    (box.ws / ".qwen").mkdir()
    (box.ws / ".qwen/settings.json").write_text(json.dumps({"hooks": shout(heard["project"]), "$version": 4}))
    target = box.ws / "a.txt"
    with box.model(Turn(calls=[box.rehearsal.write(target, "hi")]), Turn("bye")) as model:
        code, out, err = done(run.start(model, "do it", "--extensions", "none", "--yolo"))
    assert (code, out, target.read_text()) == (0, "bye\n", "hi"), err
    assert [name for name in run.heard.names() if name != "SessionStarted"] == TURN  # headless, 0.15 has no such hook
    assert {name: path.read_text() for name, path in heard.items()} == {"user": "x\nx\n", "project": "x\nx\n"}
    check_rewritten(box, settled.settings)


def test_a_home_that_a_file_names_and_a_variable_that_would_take_the_hooks_away(box: Box, run: Run) -> None:
    """Qwen looks where we do, and keeps what we set, whatever the files say."""
    home = box.base / "qh"
    home.mkdir()
    (home / "settings.json").write_text(json.dumps(SETTINGS))
    (home / ".env").write_text("QWEN_RUNTIME_DIR: `~/rt` # mine\n")
    (box.home / ".env").write_text(f"QWEN_HOME=/old\nQWEN_HOME={home} # mine\n")
    (box.ws / ".env").write_text("QWEN_CODE_SIMPLE=1\n")
    with box.model(Turn(calls=[box.shell("echo one > one")]), Turn("bye")) as model:
        code, _, err = done(run.start(model, "do it"))
    assert (code, (box.ws / "one").read_text()) == (0, "one\n"), err
    assert [name for name in run.heard.names() if name != "SessionStarted"] == TURN  # headless, 0.15 has no such hook
    assert run.injected.paths[0].is_relative_to(home)
    assert box.main(run.session).is_relative_to(box.home / "rt")
    assert [path.name for path in (box.home / ".qwen").iterdir()] == ["settings.json"], "nothing is made beside it"


def test_a_relative_home_is_another_one_in_each_project(box: Box) -> None:
    """So it is refused, and nothing is made anywhere."""
    box.extra["QWEN_HOME"] = "qh"
    (box.ws / "qh").mkdir()
    (box.ws / "qh/settings.json").write_text(json.dumps(SETTINGS))
    with box.model(Turn("bye")) as model:
        env = box.env(model)
        assert "QWEN_HOME='qh' is no absolute path" in str(QWEN.hooks_off_reason([], box.ws, env))
        with pytest.raises(ConfigError):
            QWEN.inject(HookSetup("r1", box.base, ("client",)), env)
        assert [path.name for path in (box.ws / "qh").iterdir()] == ["settings.json"]
        assert done(box.start(model, "hi"))[0] == 0
    assert list((box.ws / "qh/projects").rglob("*.jsonl"))


def test_another_qwen_of_the_user_has_no_hooks_of_this_run(box: Box, run: Run) -> None:
    with box.model(Turn(calls=[box.rehearsal.write(box.ws / "b.txt", "x")]), Turn("bye")) as model:
        run.command(model, box.rehearsal.args("x"), None, tty=False)
        settled = Settled(box)
        assert done(settled.start(model, "hi"))[0] == 0
        said = json.dumps(model.requests[0])
    assert (box.ws / "b.txt").exists() and run.heard.events == []
    assert "[wal-agent recovery]" not in said
    check_rewritten(box, settled.settings)


def test_the_hidden_memory_run_breaks_no_turn_and_no_session(box: Box, run: Run) -> None:
    """After a turn of words alone Qwen asks the model again, with tools, to keep its memory. Its calls are guarded and
    logged, under a name of their own; they are not put back into the session."""
    run.box = Settled(box, memory={"enableManagedAutoMemory": True})
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in str(box.ws))
    note = box.home / ".qwen/projects" / name / "memory/user/x.md"
    with box.model(Turn("Only words."), Turn(calls=[box.rehearsal.write(note, "kept")]), Turn("ok")) as model:
        code, out, err = done(run.start(model, "hello"))
    assert (code, out) == (0, "Only words.\n"), err
    (begun,) = [e for e in run.heard.events if isinstance(e, ToolStarting)]
    assert (begun.inner, begun.session, note.read_text()) == ("memory", run.session, "kept")
    names = run.heard.names()
    assert names.index("TurnCompleted") < names.index("ToolStarting")
    main = box.main(run.session).read_bytes()
    assert len(QWEN.seen_calls(main)) == 1 and b"functionCall" not in main


def test_a_torn_first_line_and_a_lost_record_lose_nothing_else(box: Box, run: Run) -> None:
    """By itself Qwen finds no session at all in another folder, and ends the history at a record that is gone."""
    run.session = session = str(uuid.uuid4())

    def record(n: int, kind: str, **part: Any) -> bytes:
        head = {"uuid": f"u{n}", "parentUuid": f"u{n - 1}" if n else None, "sessionId": session, "type": kind}
        message = {"role": "model" if kind == "assistant" else "user", "parts": [part]}
        rest = {"timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/elsewhere", "version": "0.15.10", "message": message}
        return json.dumps(head | rest).encode()

    call = {"id": "c1", "name": "write_file", "args": {"file_path": "/x", "content": "one"}}
    answer = {"id": "c1", "name": "write_file", "response": {"output": "written"}}
    whole = [
        record(0, "user", text="first")[:40],
        record(1, "user", text="second"),
        record(2, "assistant", functionCall=call),
        record(3, "system")[:30],
        record(4, "tool_result", functionResponse=answer),
        record(5, "assistant", text="told"),
    ]
    found = QWEN.reconcile(b"\n".join(whole), session, box.ws, [])
    with box.model(Turn("bye")) as model:
        box.env(model)
        box.restore(found.data, session)
        assert QWEN.resumable(session, box.ws, box.user_env)
        code, _, err = done(run.start(model, "next", resume=""))
        heard = model.history(0)
    assert code == 0, err
    assert [e.session for e in run.heard.events if isinstance(e, TurnStarted)] == [session]
    assert [(c.tool, c.input["content"]) for c in heard if isinstance(c, Called)] == [("write_file", "one")]
    assert [r.text for r in heard if isinstance(r, Returned)] == ["written"]
    said = [s.text for s in heard if isinstance(s, HistoryText) and s.role != "system"]
    assert [text for text in said if text in ("second", "told", "next")] == ["second", "told", "next"]


def test_a_tool_that_tool_call_runs(box: Box, run: Run) -> None:
    """I8: 0.24 runs deferred tools through `tool_call`; hooks and telemetry name the tool itself. Such a
    call is not put back a second time."""
    script = [
        Turn(calls=[("tool_search", {"query": "select:monitor"})]),
        Turn(calls=[("tool_call", {"name": "monitor", "arguments": {"command": "echo hi > made"}})]),
        Turn("bye"),
        Turn("bye"),
    ]
    with box.model(*script) as model:
        assert done(run.start(model, "do it"))[0] == 0
    calls = run.calls()
    assert [call.tool for call in calls] == ["tool_search", "monitor"]
    main = box.main(run.heard_session).read_bytes()
    assert [(c.tool, c.input) for c in QWEN.seen_calls(main)] == [(c.tool, c.input) for c in calls]
    assert QWEN.reconcile(main, run.heard_session, box.ws, calls).put_back == 0


def told(main: bytes) -> int:
    """Of how many calls these lines tell with their results."""
    return len(QWEN.seen_calls(main[: QWEN.session.settled_length(main)]))


def check_told(main: bytes, calls: int) -> None:
    """Wherever the file ends, what it is said to tell has its result in it."""
    assert told(main) == calls
    lines = main.splitlines(keepends=True)
    begun = [b"".join(lines[:n]) for n in range(len(lines))]
    assert all(told(each) <= each.count(b'"functionResponse"') for each in begun)
    assert any(told(each) < len(QWEN.seen_calls(each)) for each in begun), "it tells of some before"


def test_whatever_the_file_is_said_to_tell_has_its_result_in_it(box: Box, run: Run) -> None:
    """I8: Qwen calls the next request's hook while results are on their way to its file, which may end anywhere then.
    They get there while the hook has no answer yet."""
    ended: list[int] = []

    def look(event: HookEvent) -> Decision:
        if isinstance(event, ModelRequest):
            calls = run.heard.names().count("ToolEnded")
            ended.append(calls)
            wait_until(lambda: told(box.main(run.session).read_bytes()) >= calls)
        return Allow()

    run.heard.decide = look
    calls = [box.shell("echo one"), box.shell("echo one")]
    with box.model(Turn(calls=calls), Turn("And then.", calls=calls[1:]), Turn("bye")) as model:
        assert done(run.start(model, "do it"))[0] == 0
    assert ended == [2, 3]
    check_told(box.main(run.session).read_bytes(), 3)


def test_on_a_terminal(box: Box, run: Run) -> None:
    """SessionStart is a handshake too, the turn begins and completes; Ctrl-C leaves."""
    with box.model(Turn(calls=[box.rehearsal.write(box.ws / "c.txt", "x")]), Turn("all done")) as model:
        args = box.rehearsal.interactive_args("do it")
        assert args is not None
        tty = run.on_tty(model, args)
        try:
            wait_until(lambda: any(isinstance(e, TurnCompleted) for e in run.heard.events))
            wait_until(lambda: "all done" in tty.screen)
        finally:
            tty.quit()
    names = run.heard.names()
    # Qwen runs the turn's first hook beside this one: on a terminal it does not wait for it before the first prompt.
    assert "SessionStarted" in names and (box.ws / "c.txt").exists()
    assert [name for name in names if name in TURN] == TURN
    assert {e.session for e in run.heard.events if isinstance(e, ToolStarting)} == {run.session}
    check_told(box.main(run.session).read_bytes(), 1)


@EACH_VERSION
@pytest.mark.parametrize("where", ["user", "project"])
def test_hooks_that_are_off_run_no_hook(where: str, box: Box, run: Run) -> None:
    """What `hooks_off` refuses is what the program does; and what the session shows is noticed."""
    off: dict[str, Any] = {"disableAllHooks": True} if where == "user" else {}
    run.box = Settled(box, **off)
    if where == "project":
        (box.ws / ".qwen").mkdir()
        (box.ws / ".qwen/settings.json").write_text('{"disableAllHooks": true, "$version": 4}')
    with box.model(Turn("bye")) as model:
        assert done(run.start(model, "hi"))[0] == 0
        why = QWEN.hooks_off_reason([], box.ws, run.box.user_env)
    assert run.heard.events == [] and "disableAllHooks is true" in str(why)
    assert QWEN.proves_turn(box.main(run.session).read_bytes())
