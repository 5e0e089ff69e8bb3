"""supervise/rewrite_first.py: which starts go on in the conversation, so that its old turns are compacted first."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.recovery.cases import captured, intent, opening, run_ended, started, state_of, turn
from wal_agent.agents import AGENTS
from wal_agent.config import Settings
from wal_agent.records import AnyRecord, Cause
from wal_agent.supervise.options import RunOptions
from wal_agent.supervise.recovery_input import Situation
from wal_agent.supervise.rewrite_first import will_resume

SESSION = "6f1c2f0e-8f5e-4a43-9a3e-0d4bb4d6c111"
ASKED = ("-p", "do it")
DONE = (turn("started", SESSION), turn("completed", SESSION), run_ended())


def resumes(agent: str, *records: AnyRecord, cause: Cause = "closed", options: str = "", args: object = ASKED) -> bool:
    home = opening(1, agent=agent, workspace="/w")
    main = captured(SESSION, AGENTS[agent].main_file)
    before = state_of(home, started(SESSION), main, *records)
    words = tuple(str(word).format(session=SESSION) for word in (args if isinstance(args, tuple) else ()))
    at = Situation(opening(2, cause, agent=agent, workspace="/w", args=words), before, None, {})
    wish = RunOptions(AGENTS[agent], words, Settings("memory://", "j"), Path("/w"), {})
    return will_resume(replace(wish, go_on=options == "--continue", fresh=options == "--fresh"), at)


@pytest.mark.parametrize("agent", ["claude", "codex", "copilot", "gemini", "opencode", "pi", "qwen"])
def test_the_policy_holds_at_every_resume(agent: str) -> None:
    """I8: `--compact` compacts behind a turn that ended too, where the start goes on with the conversation."""
    assert resumes(agent, *DONE, options="--continue")
    assert resumes(agent, turn("started", SESSION), cause="dead"), "a crash"
    assert resumes(agent, turn("started", SESSION), intent(session=SESSION), cause="dead"), "a call in flight"
    assert resumes(agent, *DONE[:2], run_ended(False, until=9.0), cause="released"), "a pause"
    assert not resumes(agent, *DONE), "another conversation begins"
    assert not resumes(agent, turn("started", SESSION), cause="dead", options="--fresh")


@pytest.mark.parametrize(
    ("agent", "args"),
    [
        ("claude", ("--continue", *ASKED)),
        ("claude", ("--resume", "{session}", *ASKED)),
        ("codex", ("exec", "resume", "--last", "do it")),
        ("pi", ("--continue", *ASKED)),
    ],
)
def test_the_agents_own_words_for_a_resume_count(agent: str, args: tuple[str, ...]) -> None:
    assert resumes(agent, *DONE, args=args)
    other = tuple(word.replace("{session}", SESSION.replace("6", "7")) for word in args)
    assert resumes(agent, *DONE, args=other) is ("{session}" not in args)
