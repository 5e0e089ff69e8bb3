"""SIGKILL at every step of a session of an editor: of `wal-agent acp` alone or of the whole machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import acp
import pytest

from tests.e2e.editor import ABLE, NOTICE, Editor, connected, greet, jobs, say, state_of
from tests.e2e.scene import LONG, TASK, TTL, Machine, Scene, opened, shell, until
from tests.tiers import SAME_CODE, deep
from wal_agent.errors import LeaseHeld
from wal_agent.operate.at_rest import JobAccess, act_at_rest
from wal_agent.records import FileGone
from wal_agent.rehearsal.demo import home_environment
from wal_agent.rehearsal.model import Called, HistoryText, Returned, Turn
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.keys import Keys

FIRST = "copilot"  # the first to answer of those that ask the editor
SHORT = "echo begun >> side; touch started"
LOOK = "cat side; ls"  # a look that fails is none
ASKS = ("claude", "copilot", "kimi", "qwen")
WRITES = {"kimi": ("Write", "path"), "qwen": ("write_file", "file_path")}  # by the editor
UNSAID = ("initialize", "new", "opened")  # nothing is lost where nobody has said anything
CUT = ("tool", "cancel", "load")  # a call is in flight, and what became of it is not known
MOMENTS = (*UNSAID, "unsaved", "thinking", "permission", "file", *CUT, "result", "close")
ENDS = {"alone": "a", "machine": "a", "lost": "b"}  # what is killed, and the machine of the next client
ONCE = ((FIRST, "tool", "lost"), (FIRST, "opened", "machine"), ("kimi", "file", "lost"))


def is_played(agent: str, moment: str, end: str) -> bool:
    """Each moment on the first agent, on the others those that differ between agents. A kill in a load has one in a
    tool before it."""
    if agent == FIRST:
        return end == "lost" or moment in ("opened", "tool", "load")
    return agent not in SAME_CODE and moment in ("load", "file") and end == "lost"


CASES = [
    pytest.param(agent, moment, end, marks=() if (agent, moment, end) in ONCE else deep)
    for agent in ABLE
    for moment in MOMENTS
    for end in ENDS
    if is_played(agent, moment, end)
    and (moment != "permission" or agent in ASKS)
    and (moment != "file" or agent in WRITES)
]


def drop_files(job: OpenedJob) -> None:
    job.writer.append(*(FileGone(time=time.time(), path=path) for path in job.writer.state.files))


async def wait_for(what: Callable[[], Any], why: str) -> None:
    await asyncio.to_thread(until, what, why)


class Story:
    """One session, from the first client to the one after the kill."""

    def __init__(self, scene: Scene, moment: str, end: str) -> None:
        self.scene, self.moment, self.end = scene, moment, end
        self.session = ""
        self.call = shell(LONG if moment in CUT else SHORT, scene.agent)
        if moment == "file":
            tool, path = WRITES[scene.agent]
            self.call = tool, {path: str(scene.workspace / "side"), "content": "begun\n"}
        self.cwd = str(scene.workspace)

    async def reach(self, agent: Any, editor: Editor) -> Awaitable[Any] | None:
        """Bring a first client to the moment. Return what it still waits for."""
        if self.moment == "initialize":
            return asyncio.create_task(greet(agent, editor))
        await greet(agent, editor)
        if self.moment == "new":
            opening = asyncio.create_task(agent.new_session(cwd=self.cwd, mcp_servers=[]))
            await wait_for(lambda: jobs(self.scene), "the job is there")
            return opening
        self.session = (await agent.new_session(cwd=self.cwd, mcp_servers=[])).session_id
        if self.moment == "opened":
            return None
        if self.moment in ("permission", "file") and self.scene.agent in ("claude", "qwen"):
            await agent.set_session_mode(session_id=self.session, mode_id="default")
        turns = [Turn(calls=[self.call]), Turn(text="It is done.")]
        self.scene.script(*turns)
        answers = {"unsaved": 0, "thinking": 0, "result": 1}.get(self.moment)
        if answers is not None:
            self.scene.hold_turn(answers)
        turn = asyncio.create_task(agent.prompt(session_id=self.session, prompt=say(TASK)))
        if self.moment in ("permission", "file"):
            await editor.asked.wait()
            (job,) = jobs(self.scene)
            assert [each.intent.call for each in state_of(self.scene, job).open] == [1], "I1"
        elif answers is not None:
            await wait_for(lambda: self._asked() > answers, "the model was asked")
        elif self.moment == "close":
            await turn
            return asyncio.create_task(agent.close_session(session_id=self.session))
        else:
            await wait_for(lambda: (self.scene.workspace / "started").exists(), "the call runs")
        await wait_for(self._saved, "the session is saved")
        if self.moment == "cancel":
            await agent.cancel(session_id=self.session)
        return turn

    async def load(self, agent: Any, editor: Editor) -> Awaitable[Any]:
        """Bring a second client into the middle of its load."""
        await greet(agent, editor)
        loading = asyncio.create_task(agent.load_session(cwd=self.cwd, session_id=self.session, mcp_servers=[]))
        await wait_for(lambda: editor.told or loading.done(), "the conversation is shown again")
        return loading

    def unsave(self, machine: Machine) -> None:
        """Take the session out of the log: an agent may write its file later than the machine is lost."""
        (job,) = jobs(self.scene)

        def is_done() -> bool:
            with opened(self.scene.url) as bucket, suppress(LeaseHeld):
                act_at_rest(JobAccess(bucket, Keys(job), float(TTL), machine.env()), drop_files)
                return True
            return False

        until(is_done, "the lease is over")
        assert not self._saved()

    def _saved(self) -> bool:
        (job,) = jobs(self.scene)
        return bool(state_of(self.scene, job).files)

    def _asked(self) -> int:
        return sum(TASK in json.dumps(request) for request in self.scene.model.requests)

    async def cut(self, machine: Machine, reach: Callable[[Any, Editor], Awaitable[Any]]) -> None:
        editor = Editor(hesitates=self.moment, writes=self.moment == "file")
        with suppress(acp.RequestError, ConnectionError, asyncio.CancelledError):
            async with connected(machine, editor, initialize=False) as (agent, process):
                waits = await reach(agent, editor)
                await asyncio.sleep(0)  # so that it is sent
                process.kill()
                if self.end != "alone":
                    await asyncio.to_thread(machine.end)
                if waits is not None:
                    with suppress(acp.RequestError, ConnectionError):
                        await waits

    @asynccontextmanager
    async def again(self, machine: Machine, editor: Editor) -> AsyncIterator[tuple[Any, str]]:
        """The next client, in the old session, or in a new one where nothing was said in the old one."""
        async with connected(machine, editor) as (agent, _):
            session = ""
            if self.session:
                try:
                    await agent.load_session(cwd=self.cwd, session_id=self.session, mcp_servers=[])
                    session = self.session
                except acp.RequestError:
                    assert self.moment in UNSAID
            if not session:
                session = (await agent.new_session(cwd=self.cwd, mcp_servers=[])).session_id
            yield agent, session


@pytest.mark.parametrize(("scene", "moment", "end"), CASES, indirect=["scene"])
def test_a_session_survives_a_kill_at_any_moment(scene: Scene, moment: str, end: str) -> None:
    """I8: a call takes effect once, or is not made again before something has looked. I3: what was said is there. No
    agent is left running, and a session in which nothing was said leaves nothing behind that asks for somebody."""
    story, first = Story(scene, moment, end), scene.machine("a")
    asyncio.run(story.cut(first, story.reach))
    for turn in scene.model.turns:
        if turn.hold is not None:
            turn.hold.set()
    scene.model.turns.clear()
    if moment == "load":
        asyncio.run(story.cut(first, story.load))
    until(lambda: not any(home_environment(first.home)), "nothing of the first machine runs")
    if moment == "unsaved":
        story.unsave(first)
    if end == "lost":
        first.lost()
    machine = scene.machine("b") if end == "lost" else first

    def listed() -> list[dict[str, Any]]:
        return list(json.loads(machine.cli("list", "--json").stdout)["jobs"])

    if moment in UNSAID:  # a client that comes before that takes the session for one that runs elsewhere
        until(lambda: not any(job["state"] == "running" for job in listed()), "the lease is over")
    editor = Editor(writes=moment == "file")

    async def go_on() -> None:
        async with story.again(machine, editor) as (agent, session):
            ended = moment in ("result", "close")
            calls = [shell(LOOK, scene.agent)] if ended else [story.call, shell(LOOK, scene.agent)]
            scene.script(*(Turn(calls=[call]) for call in calls), Turn(text="I looked."))
            asked = len(scene.model.requests)
            done = await agent.prompt(session_id=session, prompt=say("go on"))
            assert done.stop_reason == "end_turn"
            if not scene.side():  # the call was refused, and it had not happened
                scene.script(Turn(calls=[story.call]), Turn(text="Now it is done."))
                await agent.prompt(session_id=session, prompt=say("do it"))
            history = scene.model.history(asked)
            said = [part.text for part in history if isinstance(part, HistoryText) and part.role == "user"]
            notices = [text for text in said if NOTICE in text]
            assert moment in UNSAID or any(TASK in text for text in said), said
            assert (moment in CUT) <= len(notices) <= 1 + (moment == "load"), notices  # the second replaces the first
            if ended:
                made = {part.id for part in history if isinstance(part, Called)}
                assert made & {part.id for part in history if isinstance(part, Returned)}, "I3"

    asyncio.run(go_on())
    assert scene.side() == ["begun"]
    assert "cut off" not in editor.text() or moment not in UNSAID
    assert [job["job"] for job in listed() if job["needs_host"]] == []
