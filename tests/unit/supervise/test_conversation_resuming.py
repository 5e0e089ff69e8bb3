"""A resumed session's first turn waits until the agent has loaded it, and what the resume left is cleared once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.supervise.crew import ScriptAgent
from wal_agent.agents.base import Capabilities, SessionFile
from wal_agent.supervise.conversation import LOADING, NOT_LOADED, Resuming


class EarlyAgent(ScriptAgent):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.tidied: list[str] = []
        self.capabilities = Capabilities(tidy=self.tidy)
        self.write("one", "restored\n")

    def tidy(self, session: str, workspace: Path, env: object) -> None:
        self.tidied.append(session)


class LateAgent(EarlyAgent):
    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.capabilities = Capabilities(tidy=self.tidy, loads_late=True)

    def session_files(self, session: str, workspace: Path, env: Mapping[str, str]) -> list[SessionFile]:
        files = super().session_files(session, workspace, env)
        return [SessionFile(f.name, f.path, lambda fd: os.pread(fd, 8, 0) == b"restored") for f in files]


def resuming(agent: EarlyAgent, session: str = "one") -> Resuming:
    return Resuming(agent.agent, session, Path("/w"), {})


@pytest.fixture
def late(tmp_path: Path) -> LateAgent:
    return LateAgent(tmp_path)


def test_a_turn_waits_until_its_session_is_loaded(late: LateAgent) -> None:
    waits, slept = resuming(late), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            late.write("one", "taken up\n")

    assert not waits.is_loaded() and late.tidied == []
    assert waits.await_loaded("one", lambda: False, sleep) is None
    assert len(slept) == 3 and late.tidied == ["one"]
    assert waits.is_loaded() and waits.await_loaded("one", lambda: False, sleep) is None
    assert late.tidied == ["one"], "once"


def test_a_turn_is_refused_whose_session_is_not_loaded_in_time(late: LateAgent) -> None:
    waits, slept = resuming(late), list[float]()
    assert waits.await_loaded("one", lambda: False, slept.append) == NOT_LOADED
    assert sum(slept) == pytest.approx(LOADING) and late.tidied == []
    assert waits.await_loaded("one", lambda: True, slept.append) == NOT_LOADED
    assert sum(slept) == pytest.approx(LOADING), "an agent that is being ended is not waited for"
    late.write("one", "taken up\n")
    assert waits.await_loaded("one", lambda: False, slept.append) is None


def test_a_session_that_a_person_begins_meanwhile_is_not_waited_for(late: LateAgent) -> None:
    assert resuming(late).await_loaded("two", lambda: False, never) is None


def test_what_the_resume_of_a_session_that_a_person_chose_left_is_cleared_without_a_wait(late: LateAgent) -> None:
    chosen = Resuming(late.agent, "one", Path("/w"), {}, waits=False)
    assert chosen.await_loaded("one", lambda: False, never) is None and late.tidied == []
    late.write("one", "taken up\n")
    assert chosen.await_loaded("one", lambda: False, never) is None and late.tidied == ["one"]


def test_a_session_whose_file_was_deleted_is_loaded_once_the_agent_goes_on_in_another(late: LateAgent) -> None:
    """It never grows to the size that the deleted one had."""
    waits, main = resuming(late), late.folder("one") / late.main_file
    main.unlink()
    assert not waits.is_loaded()
    main.write_text("on\n")
    assert waits.is_loaded()


def test_nothing_is_waited_for_without_a_file(late: LateAgent) -> None:
    assert resuming(late, "none").await_loaded("none", lambda: False, never) is None


def test_an_agent_that_loads_before_its_first_turn_is_not_waited_for(tmp_path: Path) -> None:
    agent = EarlyAgent(tmp_path)
    assert resuming(agent).await_loaded("one", lambda: False, never) is None
    assert agent.tidied == ["one"]


def never(seconds: float) -> None:
    pytest.fail(f"slept {seconds} s")
