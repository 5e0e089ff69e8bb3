"""On the real CLIs: a job goes from one agent to another, and back (docs/HANDOFF.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.tiers import deep, once
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.rehearsal.model import HistoryText, Model, Turn

TASK = "move the shop to v2"
PHRASE = "the heron sleeps in building seven"
THERE_AND_BACK = (  # all ordered pairs of the first three, and one each way for the others
    ("gemini", "claude"),
    ("gemini", "codex"),
    ("claude", "codex"),
    ("claude", "qwen"),
    ("claude", "copilot"),
    ("claude", "opencode"),
    ("claude", "pi"),
)


class Pair:
    """Two agents, each with a model and a HOME of its own, on one bucket and one working tree."""

    def __init__(self, scene: Scene, other: Machine) -> None:
        self.scene, self.first, self.other = scene, scene.machine("vm-1"), other

    def requests(self, machine: Machine) -> list[str]:
        return ["\n".join(part.text for part in machine.model.history(n) if isinstance(part, HistoryText)) for n in
                range(len(machine.model.requests))]  # fmt: skip

    def lose_the_first(self) -> None:
        """Its machine ends in its second call, behind a turn with PHRASE."""
        scene, first = self.scene, self.first
        scene.script(
            Turn(PHRASE, calls=[first.rehearsal.shell("echo one >> side")]),
            Turn(calls=[first.rehearsal.shell("echo two >> side; sleep 1000")]),
        )
        run = first.run(*first.rehearsal.args(TASK))
        until(lambda: "two" in scene.side(), "the second call runs")
        run.kill()
        run.died()
        first.end()


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path, agent_cli: Callable[[str], Path]) -> Iterator[Pair]:
    first, second = request.param
    with ExitStack() as stack:
        models = []
        for name in (first, second):
            rehearsal = rehearsal_of(AGENTS[name])
            assert rehearsal is not None
            models.append(stack.enter_context(Model(rehearsal.dialect)))
        scene = Scene(tmp_path, agent_cli(first), models[0], first)
        stack.callback(scene.close)
        other = Machine(
            tmp_path, "vm-2", scene.url, models[1], agent_cli(second), scene.workspace, kernel="vm-1", agent=second
        )
        scene.machines.append(other)
        yield Pair(scene, other)


def transcript(text: str) -> Sequence[Path]:
    found = re.search(r"in Markdown: `?(\S+?part-1\.md)`?", text)
    assert found is not None, text
    return sorted(Path(found[1]).parent.iterdir())


@pytest.mark.parametrize("pair", once(THERE_AND_BACK, ("claude", "codex")), indirect=True, ids="-".join)
def test_a_job_goes_to_another_agent_and_back(pair: Pair) -> None:
    """I8: the call in flight is reported to the other agent. I1: no effect happens twice. On its way back the first
    agent has its own conversation, and learns what the other one did."""
    scene, first, other = pair.scene, pair.first, pair.other
    pair.lose_the_first()

    refused = other.run(*other.rehearsal.args("go on now"), wait=True)
    assert refused.process.returncode == 78 and "--handoff" in refused.stderr()
    assert f"belongs to {first.agent}" in refused.stderr()

    other.model.turns[:] = [Turn(calls=[other.rehearsal.shell("echo three >> side")]), Turn("All is done.")]
    taken = other.run(*other.rehearsal.args("go on now"), options=("--handoff",), wait=True)
    assert taken.process.returncode == 0, taken.stderr()
    notice = next(text for text in pair.requests(other) if "[wal-agent handoff]" in text)
    assert TASK in notice and "go on now" in notice and f"`{first.agent}` had it before you" in notice
    assert "echo one >> side" in notice and "echo two >> side" in notice
    (part,) = transcript(notice)
    assert PHRASE in part.read_text() and part.stat().st_mode & 0o077 == 0

    scene.script(Turn("I see."))
    back = first.run(*first.rehearsal.args("finish it"), options=("--from-agent", other.agent), wait=True)
    assert back.process.returncode == 0, back.stderr()
    last = pair.requests(first)[-1]
    assert PHRASE in last or any(PHRASE in text for text in pair.requests(first)[-2:])
    assert "[wal-agent handoff]" in last and "echo three >> side" in last and "finish it" in last
    assert scene.side() == ["one", "two", "three"]
    assert [(r["before"], r["agent"]) for r in scene.records() if r["type"] == "handoff"] == [
        (first.agent, other.agent),
        (other.agent, first.agent),
    ]


@pytest.mark.parametrize("pair", [("gemini", "claude")], indirect=True, ids="-".join)
def test_killed_in_the_middle_the_job_has_one_owner(pair: Pair) -> None:
    """I2, I8: behind the record the job is the new agent's; the same command carries on, and nothing runs twice."""
    scene, first, other = pair.scene, pair.first, pair.other
    scene.script(Turn(calls=[first.rehearsal.shell("echo one >> side; sleep 1000")]))
    run = first.run(*first.rehearsal.args(TASK))
    until(lambda: "one" in scene.side(), "the call runs")
    run.kill()
    run.died()
    first.end()
    other.model.turns[:] = [Turn("I looked.")]
    args = other.rehearsal.args("go on now")
    other.run(*args, options=("--handoff",), WAL_AGENT_FAILPOINT="handoff.after_record").died()
    other.run(*args, options=("--handoff",), WAL_AGENT_FAILPOINT="recovery.after_record").died()
    assert "--handoff" in first.run(*first.rehearsal.args(TASK), wait=True).stderr()
    taken = other.run(*args, wait=True)
    assert taken.process.returncode == 0, taken.stderr()
    notices = [text for text in pair.requests(other) if "[wal-agent handoff]" in text]
    assert "echo one >> side" in notices[0] and TASK in notices[0]
    assert scene.side() == ["one"] and len([r for r in scene.records() if r["type"] == "handoff"]) == 1


@deep
@pytest.mark.parametrize("pair", [("claude", "gemini")], indirect=True, ids="-".join)
def test_the_third_agent_has_what_the_first_said_although_the_second_is_not_logged_in(
    pair: Pair, tmp_path: Path, agent_cli: Callable[[str], Path]
) -> None:
    """I8: Codex finds no key, and ends without a word. Gemini reads Claude's transcript, and its calls as Claude's."""
    scene, last = pair.scene, pair.other
    pair.lose_the_first()

    codex = Machine(
        tmp_path, "vm-3", scene.url, last.model, agent_cli("codex"), scene.workspace, kernel="vm-1", agent="codex"
    )
    scene.machines.append(codex)
    codex.agent_env.pop("SCRIPTED_KEY")
    failed = codex.run(*codex.rehearsal.args("go on now"), options=("--handoff",), wait=True)
    assert failed.process.returncode == 1 and "SCRIPTED_KEY" in failed.stderr(), failed.stderr()
    assert last.model.requests == []

    last.model.turns[:] = [Turn(calls=[last.rehearsal.shell("echo three >> side")]), Turn("All is done.")]
    taken = last.run(*last.rehearsal.args("finish it"), options=("--from-agent", "codex"), wait=True)
    assert taken.process.returncode == 0, taken.stderr()
    notice = next(text for text in pair.requests(last) if "[wal-agent handoff]" in text)
    assert "What `claude` ran" in notice and TASK in notice and "finish it" in notice
    assert PHRASE in "".join(part.read_text() for part in transcript(notice))
    assert scene.side() == ["one", "two", "three"]


HOOKLESS_FAILURE = """
import wal_agent.agents.claude.hooks as hooks

hooks.EVENTS = tuple(event for event in hooks.EVENTS if event != "StopFailure")
"""


@deep
@pytest.mark.parametrize("reported", [True, False], ids=["hook", "session"])
@pytest.mark.parametrize("pair", [("claude", "codex")], indirect=True, ids="-".join)
def test_a_quota_that_is_used_up_hands_the_job_over(
    pair: Pair, reported: bool, tmp_path: Path, agent_cli: Callable[[str], Path]
) -> None:
    """Without a person, past an agent that is not logged in, and the agent that takes the job has its task.
    Also where Claude is gone before its hook has reported the failure: the session's file has it."""
    scene, first, other = pair.scene, pair.first, pair.other
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("" if reported else HOOKLESS_FAILURE)
    site = f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    scene.script(
        Turn(calls=[first.rehearsal.shell("echo one >> side")]), Turn(status=429, headers={"retry-after": "7200"})
    )
    other.model.turns[:] = [Turn(calls=[other.rehearsal.shell("echo two >> side")]), Turn("All is done.")]
    env = other.rehearsal.home(first.home, scene.workspace, other.model.url)
    program = {"WAL_AGENT_CODEX": str(other.program), "WAL_AGENT_GEMINI": str(agent_cli("gemini"))}
    names = "gemini,codex" if reported else "codex"
    run = first.run(
        *first.rehearsal.args(TASK),
        options=("--restart", "--on-quota", f"handoff:{names}"),
        wait=True,
        **{**env, **program, "PYTHONPATH": site},
    )
    assert [f"Handing the job to {name}" in run.stderr() for name in names.split(",")] == [True] * len(names.split(","))
    notice = next(text for text in pair.requests(other) if "[wal-agent handoff]" in text)
    assert TASK in notice and "echo one >> side" in notice
    assert scene.side()[:1] == ["one"]
    assert run.process.returncode == 0, run.stderr()


SHUT_OUT = [("gemini", "claude"), ("claude", "gemini"), ("claude", "qwen"), ("claude", "copilot")]  # the others ask not


@pytest.mark.parametrize("pair", once(SHUT_OUT, ("gemini", "claude")), indirect=True, ids="-".join)
def test_an_agent_that_its_permissions_shut_out_does_not_complete_the_job(pair: Pair) -> None:
    """Without a person: it is said at the first refusal, and the job stays unfinished although the turn ends well."""
    scene, first, other = pair.scene, pair.first, pair.other
    scene.script(Turn(calls=[first.rehearsal.shell("echo one >> side")]), Turn("paused here"))
    run = first.run(*first.rehearsal.args(TASK), wait=True)
    assert run.process.returncode == 0, run.stderr()
    other.model.turns[:] = [Turn(calls=[other.rehearsal.shell("echo two >> side")]), Turn("All is done.")]
    taken = other.run("-p", "go on", options=("--handoff",), wait=True)
    assert taken.process.returncode == 79 and "by its own permissions" in taken.stderr(), taken.stderr()
    assert scene.side() == ["one"] and other.status()["state"] != "closed"
