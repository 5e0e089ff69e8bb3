"""supervise/keep.py: what follows a run, as a table; and the loop around runs that are not real."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.wal.world import FakeClock
from wal_agent.agents import AGENTS
from wal_agent.config import Settings
from wal_agent.errors import ConfigError, CrashLoop, Fenced, LeaseHeld, PersonNeeded, Unavailable, WalAgentError
from wal_agent.happened import Halted, Happening, Restarting
from wal_agent.records import ExitClass
from wal_agent.supervise.keep import RESTARTED, Again, Policy, Stop, after, keep
from wal_agent.supervise.run import Finished
from wal_agent.supervise.wish import Screen, Wish

OFF, ON = Policy(), Policy("on")
CODES: dict[ExitClass, int] = {"killed": 137, "out_of_memory": 137, "heap": 134, "hung": 137, "incomplete": 0}


def decide(finished: Finished, policy: Policy = ON, *history: float) -> Stop | Again:
    return after(history, finished, 1000.0, random.Random(1), policy)


@pytest.mark.parametrize("cls", sorted(RESTARTED))
def test_what_died_is_restarted_only_where_that_was_asked_for(cls: ExitClass) -> None:
    finished = Finished(CODES[cls], cls)
    assert decide(finished, OFF) == Stop(CODES[cls] or 75)
    again = decide(finished)
    assert isinstance(again, Again) and again.attempt == 1 and 0 <= again.delay <= 1


@pytest.mark.parametrize(
    ("finished", "code"),
    [
        (Finished(0, "completed"), 0),
        (Finished(3, "failed"), 3),
        (Finished(1, "quota"), 1),  # its pause could not be saved
        (Finished(1, "context"), 79),
        (Finished(130, "interrupted"), 130),
        (Finished(0, "interrupted"), 75),
        (Finished(0, "interrupted", interactive=True), 0),
        (Finished(143, "drained"), 143),
    ],
)
def test_these_are_never_restarted(finished: Finished, code: int) -> None:
    assert decide(finished) == Stop(code)
    assert decide(finished, OFF) == Stop(1 if code == 79 else code)


@pytest.mark.parametrize("policy", [ON, OFF])
@pytest.mark.parametrize("cls", ["paused", "quota"])
def test_a_paused_run_is_begun_again_at_once(policy: Policy, cls: ExitClass) -> None:
    assert decide(Finished(1, cls, until=5000.0), policy) == Again(0.0, 0)


def test_at_a_terminal_only_who_asked_in_this_command_gets_a_restart() -> None:
    died = Finished(137, "killed", interactive=True)
    assert decide(died) == Stop(137)
    assert isinstance(decide(died, Policy("on", explicit=True)), Again)
    left = Finished(0, "incomplete", interactive=True)
    assert decide(left, Policy("on", explicit=True)) == Stop(0)


@given(st.integers(0, 40), st.integers(0, 2**32))
def test_the_delay_grows_with_full_jitter_up_to_a_minute(restarts: int, seed: int) -> None:
    policy = Policy("on", limit=0)
    got = after([999.0] * restarts, Finished(137, "killed"), 1000.0, random.Random(seed), policy)
    assert isinstance(got, Again) and got.attempt == restarts + 1
    assert 0 <= got.delay <= min(60.0, 2.0**restarts)


def test_a_run_that_lived_long_begins_the_count_anew() -> None:
    got = decide(Finished(137, "killed"), ON, 100.0, 200.0, 300.0)
    assert isinstance(got, Again) and got.attempt == 1


def test_what_the_plan_will_refuse_is_not_waited_for() -> None:
    assert decide(Finished(137, "killed"), ON, 996.0, 997.0, 998.0, 999.0) == Again(0.0, 5)


# ---- the loop


class Play:
    """`keep` around scripted runs."""

    def __init__(self, *runs: Finished | WalAgentError, restart: str = "on", **wish: Any) -> None:
        settings = Settings("file:///b", "j", restart=cast(Any, restart), sources={"restart": "flag"})
        self.wish = Wish(AGENTS["gemini"], (), settings, Path("/w"), {}, tell=self._hear, attended=True, **wish)
        self.runs = list(runs)
        self.wishes: list[Wish] = []
        self.heard: list[Happening] = []
        self.said: list[str] = []

    def _hear(self, happening: Happening) -> None:
        self.heard.append(happening)

    def _run(self, wish: Wish, screen: Screen) -> Finished:
        self.wishes.append(wish)
        got = self.runs.pop(0)
        if isinstance(got, WalAgentError):
            raise got
        return got

    def go(self) -> int:
        screen = Screen(self.said.append, lambda rows: None)
        return keep(self.wish, screen, self._run, FakeClock(), random.Random(1))


KILLED, DONE = Finished(137, "killed", "killed by SIGKILL"), Finished(0, "completed", "completed")


def test_it_goes_on_until_it_is_done() -> None:
    play = Play(KILLED, KILLED, DONE, fresh=True)
    assert play.go() == 0 and not play.runs
    assert [w.fresh for w in play.wishes] == [True, False, False], "a restart must not throw the session away"
    assert [w.attended for w in play.wishes] == [True, False, False], "nobody typed the restarts"
    assert [(h.attempt, h.cls) for h in play.heard if isinstance(h, Restarting)] == [(1, "killed"), (2, "killed")]
    assert all(line.startswith("gemini: killed by SIGKILL. Starting it again in") for line in play.said)


def test_a_pause_is_no_restart_and_keeps_the_person() -> None:
    play = Play(Finished(1, "paused", until=9.0), DONE, restart="off", fresh=True)
    assert play.go() == 0 and play.heard == []
    assert [(w.fresh, w.attended) for w in play.wishes] == [(True, True), (False, True)]


def test_zero_inside_a_turn_is_told() -> None:
    play = Play(Finished(0, "incomplete", "the agent ended with 0, but not its turn"), restart="off")
    assert play.go() == 75
    assert len(play.said) == 1 and "The same command carries on." in play.said[0]


def test_a_conversation_that_is_too_long_waits_for_a_person() -> None:
    play = Play(Finished(1, "context", "the conversation is too long for the model"))
    with pytest.raises(PersonNeeded, match="too long"):
        play.go()
    assert [type(h) for h in play.heard] == [Halted]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CrashLoop("5 crashes", "See: log"), True),
        (PersonNeeded("x"), True),
        (ConfigError("x"), True),
        (Fenced("x"), True),
        (Unavailable("x"), False),
        (LeaseHeld("x"), False),
    ],
)
def test_a_halt_is_told_where_a_person_is_needed(error: WalAgentError, told: bool) -> None:
    play = Play(KILLED, error)
    with pytest.raises(type(error)):
        play.go()
    halts = [h for h in play.heard if isinstance(h, Halted)]
    assert halts == ([Halted(error.exit_code, error.what, error.hint)] if told else [])


def test_off_is_one_run() -> None:
    play = Play(KILLED, DONE, restart="off")
    assert play.go() == 137 and len(play.wishes) == 1 and play.said == []


def test_the_settings_reach_the_policy() -> None:
    play = Play(KILLED, KILLED, DONE)
    play.wish = replace(play.wish, settings=replace(play.wish.settings, restart_limit=2.0))
    assert play.go() == 0
    assert [h.delay == 0 for h in play.heard if isinstance(h, Restarting)] == [False, True]
