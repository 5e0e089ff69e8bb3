"""`wal-agent acp`: a real client of the Agent Client Protocol (its SDK), real CLIs, kills and ordinary ends."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import acp
import psutil
import pytest

from tests.e2e.editor import ABLE, NOTICE, Editor, connected, jobs, kill, lease_of, say, state_of
from tests.e2e.scene import LONG, Scene, shell, until
from wal_agent.rehearsal.model import HistoryText, Returned, Turn

FIRST = "kimi"
EACH = [FIRST, *(pytest.param(name, marks=pytest.mark.deep) for name in ABLE if name != FIRST)]


async def begin_long(scene: Scene, agent: Any) -> tuple[str, asyncio.Task[Any]]:
    """A session whose call is in flight."""
    scene.script(Turn(calls=[shell(LONG, scene.agent)]))
    session = (await agent.new_session(cwd=str(scene.workspace), mcp_servers=[])).session_id
    turn = asyncio.create_task(agent.prompt(session_id=session, prompt=say("please do the work")))
    await asyncio.to_thread(until, lambda: (scene.workspace / "started").exists(), "the call runs")
    return session, turn


@pytest.mark.parametrize("scene", EACH, indirect=True)
def test_a_session_that_was_cut_off_is_loaded_with_its_notice(scene: Scene) -> None:
    """I1: the call is in the log while it runs. I8: it is not repeated before something has looked. The client gets the
    session that it knows, and both the person and the model are told."""
    machine = scene.machine("a")

    async def first() -> tuple[str, str]:
        async with connected(machine, Editor()) as (agent, process):
            session, turn = await begin_long(scene, agent)
            (job,) = jobs(scene)
            assert [o.intent.input for o in state_of(scene, job).open], "I1"
            kill(process)
            turn.cancel()
            return session, job

    async def second(session: str) -> Editor:
        editor = Editor()
        async with connected(machine, editor) as (agent, _):
            listed = await agent.list_sessions(cwd=str(scene.workspace))
            assert session in [each.session_id for each in listed.sessions]
            await agent.new_session(cwd=str(scene.workspace), mcp_servers=[])
            await asyncio.to_thread(until, lambda: f"`{session}`" in editor.text(), "the one that was cut off is named")
            await agent.load_session(cwd=str(scene.workspace), session_id=session, mcp_servers=[])
            look = "tail -n 1 side"
            scene.script(
                Turn(calls=[shell(LONG, scene.agent)]), Turn(calls=[shell(look, scene.agent)]), Turn(text="I looked.")
            )
            asked = len(scene.model.requests)
            done = await agent.prompt(session_id=session, prompt=say("go on"))
            assert done.stop_reason == "end_turn"
            history = scene.model.history(asked)
            notices = [p for p in history if isinstance(p, HistoryText) and NOTICE in p.text and LONG in p.text]
            assert len(notices) == 1, history
            answers = [p.text for p in scene.model.history() if isinstance(p, Returned)]
            assert any("wal-agent did not run this" in text for text in answers), answers
            return editor

    with suppress(asyncio.CancelledError, acp.RequestError, ConnectionError):
        session, job = asyncio.run(first())
    editor = asyncio.run(second(session))
    assert scene.side() == ["begun"], "I8"
    assert "was cut off" in editor.text()
    assert lease_of(scene, job) in ("closed", "released")


@pytest.mark.parametrize("scene", [FIRST], indirect=True)
def test_a_session_comes_back_on_another_machine(scene: Scene) -> None:
    """I4: another HOME has nothing of the session but what the log gives."""

    async def first() -> str:
        async with connected(scene.machine("a"), Editor()) as (agent, process):
            session, turn = await begin_long(scene, agent)
            kill(process)
            turn.cancel()
            return session

    with suppress(asyncio.CancelledError, acp.RequestError, ConnectionError):
        session = asyncio.run(first())
    scene.machines[0].lost()
    machine, editor = scene.machine("b"), Editor()

    async def second() -> None:
        async with connected(machine, editor) as (agent, _):
            listed = await agent.list_sessions(cwd=str(scene.workspace))
            assert session in [each.session_id for each in listed.sessions]
            await agent.load_session(cwd=str(scene.workspace), session_id=session, mcp_servers=[])

    asyncio.run(second())
    assert "please do the work" in editor.text("user_message_chunk")


@pytest.mark.parametrize("scene", [FIRST], indirect=True)
def test_two_sessions_of_one_client_are_two_jobs(scene: Scene) -> None:
    """Each folder has its own log, and the end of one session leaves the other alone."""
    machine, other = scene.machine("a"), scene.root / "other"
    other.mkdir()

    async def play() -> None:
        async with connected(machine, Editor()) as (agent, _):
            here = (await agent.new_session(cwd=str(scene.workspace), mcp_servers=[])).session_id
            there = (await agent.new_session(cwd=str(other), mcp_servers=[])).session_id
            for session, word in ((here, "one"), (there, "two")):
                scene.script(Turn(calls=[shell(f"echo {word} > {word}", scene.agent)]), Turn(text="done"))
                await agent.prompt(session_id=session, prompt=say(word))
            await agent.close_session(session_id=here)
            scene.script(Turn(text="still here"))
            await agent.prompt(session_id=there, prompt=say("and you?"))
            with pytest.raises(acp.RequestError):
                await agent.prompt(session_id=here, prompt=say("and you?"))

    asyncio.run(play())
    assert (scene.workspace / "one").read_text() == "one\n"
    assert (other / "two").read_text() == "two\n"
    calls = [[r["call"] for r in scene.records(job) if r["type"] == "intent"] for job in jobs(scene)]
    assert calls == [[1], [1]]
    assert [lease_of(scene, job) for job in jobs(scene)] == ["closed", "closed"]


@pytest.mark.deep
@pytest.mark.parametrize("scene", ["claude", "kimi"], indirect=True)
def test_a_fork_is_a_job_of_its_own(scene: Scene) -> None:
    """I1, I3: the fork's calls are in its own log from the first prompt on; both sessions come back after a crash, on
    another machine too, which has a note of the first one that it loads."""
    machine = scene.machine("a")

    async def first() -> tuple[str, str]:
        async with connected(machine, Editor()) as (agent, process):
            scene.script(Turn(calls=[shell("echo one > one", scene.agent)]), Turn(text="done"))
            source = (await agent.new_session(cwd=str(scene.workspace), mcp_servers=[])).session_id
            await agent.prompt(session_id=source, prompt=say("please do ONE"))
            fork = (await agent.fork_session(cwd=str(scene.workspace), session_id=source, mcp_servers=[])).session_id
            scene.script(Turn(calls=[shell("echo two > two", scene.agent)]), Turn(text="done"))
            await agent.prompt(session_id=fork, prompt=say("please do TWO"))
            kill(process)
            return source, fork

    async def said(session: str) -> str:
        async with connected(machine, Editor()) as (agent, _):
            await agent.load_session(cwd=str(scene.workspace), session_id=session, mcp_servers=[])
            scene.script(Turn(text="fine"))
            await agent.prompt(session_id=session, prompt=say("go on"))
            return "".join(part.text for part in scene.model.history() if isinstance(part, HistoryText))

    with suppress(ConnectionError):
        source, fork = asyncio.run(first())
    calls = [[r["input"]["data"] for r in scene.records(job) if r["type"] == "intent"] for job in jobs(scene)]
    assert sorted("one > one" in only for (only,) in calls) == [False, True], calls
    machine.end()
    machine.lost()
    machine = scene.machine("b")
    whole, old = asyncio.run(said(fork)), asyncio.run(said(source))
    assert "please do ONE" in whole and "please do TWO" in whole
    assert "please do ONE" in old and "please do TWO" not in old


@pytest.mark.deep
@pytest.mark.parametrize("how", ["eof", "term", "kill"])
@pytest.mark.parametrize("scene", [FIRST], indirect=True)
def test_a_client_that_goes_leaves_no_call_behind(scene: Scene, how: str) -> None:
    """I9: however the client or this process ends in the middle of a turn, the run ends its agent and seals the log."""
    machine = scene.machine("a")

    async def play() -> list[psutil.Process]:
        async with connected(machine, Editor()) as (agent, process):
            _, turn = await begin_long(scene, agent)
            runs = process.children(recursive=True)
            if how != "eof":
                process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)
            turn.cancel()
            return runs

    runs: list[psutil.Process] = []
    with suppress(asyncio.CancelledError, acp.RequestError, ConnectionError):
        runs = asyncio.run(play())
    until(lambda: not any(each.is_running() for each in runs), "the run and its agent have ended")
    (job,) = jobs(scene)
    assert lease_of(scene, job) in ("closed", "released")
    open = [o.intent.call for o in state_of(scene, job).open]
    assert open in ([], [1])
    assert scene.side() == ["begun"]


@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_an_agent_whose_hooks_are_silent_is_refused(scene: Scene) -> None:
    """I1: nothing runs that could not be logged first."""
    done = scene.machine("a").cli("acp", "gemini")
    assert (done.returncode, done.stdout) == (64, "")


@pytest.mark.parametrize("scene", [FIRST], indirect=True)
def test_what_a_client_sends_amiss_is_answered(scene: Scene) -> None:
    """A folder that is none, and a line that is no message, end neither the connection nor the program."""

    async def play() -> None:
        async with connected(scene.machine("a"), Editor()) as (agent, _):
            for folder in ("relative", str(scene.root / "none")):
                with pytest.raises(acp.RequestError):
                    await agent.new_session(cwd=folder, mcp_servers=[])
            assert (await agent.list_sessions(cwd=str(scene.workspace))).sessions == []

    asyncio.run(play())
    assert jobs(scene) == []
    assert json.dumps(str(Path.home())) not in (scene.root / "a.err").read_text()
