"""supervise/conversation.py: hooks of agents that a tool started."""

from __future__ import annotations

from pathlib import Path

from tests.unit.supervise.crew import Post, ended, starting
from wal_agent.agents.base import Allow, SessionStarted, TurnCompleted, TurnStarted
from wal_agent.supervise.ancestry import Process
from wal_agent.supervise.conversation import NestedAgents

SPEAKER = Process(4711, 1, 5.0, 4711, ("gemini",))


def nested(tmp_path: Path, living: dict[int, Process]) -> tuple[Post, NestedAgents]:
    post = Post(tmp_path)
    return post, NestedAgents(post.gate, lambda: "outer", living.get)


def test_what_it_says_of_itself_is_not_logged(tmp_path: Path) -> None:
    post, on = nested(tmp_path, {4711: SPEAKER})
    for event in (SessionStarted("inner", "startup"), TurnStarted("inner", "x"), TurnCompleted("inner")):
        assert on.handle("gemini", event, SPEAKER) == Allow()
    post.commit()
    assert len(post.log()) == 1, "only the opening"


def test_a_call_is_logged_under_a_name_of_its_own(tmp_path: Path) -> None:
    """I1: its intent first, like any other's."""
    post, on = nested(tmp_path, {4711: SPEAKER})
    with post.committing():
        assert on.handle("gemini", starting("write_file", path="a"), SPEAKER) == Allow()
    assert on.handle("gemini", ended("write_file", path="a"), SPEAKER) == Allow()
    post.commit()
    assert [(i.session, i.call) for i in post.intents()] == [("outer/gemini:s", 1)]
    assert [(e.call, e.how, e.by) for e in post.ends()] == [(1, "done", "hook")]


def test_a_call_ends_with_its_agent(tmp_path: Path) -> None:
    """I8: no hook tells its end any more. A number that went to another process is not that agent."""
    living = {4711: SPEAKER}
    post, on = nested(tmp_path, living)
    with post.committing():
        on.handle("gemini", starting("write_file", path="a"), SPEAKER)
    on.end_orphaned_calls()
    assert len(post.gate.nested()) == 1
    living[4711] = Process(4711, 1, 6.0, 4711, ("other",))
    on.end_orphaned_calls()
    on.end_orphaned_calls()
    post.commit()
    assert [(e.call, e.how, e.by) for e in post.ends()] == [(1, "failed", "supervisor")]
