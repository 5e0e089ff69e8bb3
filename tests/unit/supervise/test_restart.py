"""supervise/restart.py: what follows a run, as a table; and the loop around runs that are not real."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.wal.world import FakeClock
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Cli
from wal_agent.config import Settings
from wal_agent.errors import (
    ConfigError,
    CrashLoop,
    Denied,
    Fenced,
    LeaseHeld,
    PersonNeeded,
    Unavailable,
    UsageError,
    WalAgentError,
)
from wal_agent.events import AgentBegan, Event, Halted, LeaseTaken, Restarting
from wal_agent.records import ExitClass
from wal_agent.supervise.exits import RESTARTED
from wal_agent.supervise.lease_keeper import Interrupted
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.restart import (
    Again,
    Loop,
    RestartPolicy,
    Stop,
    decide_restart,
    restart_line,
    run_with_restarts,
)
from wal_agent.supervise.run_end import EndNotSaved, RunResult

OFF, ON = RestartPolicy(), RestartPolicy("on")
CODES: dict[ExitClass, int] = {"killed": 137, "out_of_memory": 137, "heap": 134, "hung": 137, "incomplete": 0}


def decide(finished: RunResult, policy: RestartPolicy = ON, *history: float) -> Stop | Again | Loop:
    return decide_restart(history, finished, 1000.0, random.Random(1), policy)


@pytest.mark.parametrize("cls", sorted(RESTARTED))
def test_what_died_is_restarted_only_where_that_was_asked_for(cls: ExitClass) -> None:
    finished = RunResult(CODES[cls], cls)
    assert decide(finished, OFF) == Stop(CODES[cls] or 74)
    again = decide(finished)
    assert isinstance(again, Again) and again.attempt == 1 and 0.5 <= again.delay <= 1


@pytest.mark.parametrize(
    ("finished", "code"),
    [
        (RunResult(0, "completed"), 0),
        (RunResult(3, "failed"), 3),
        (RunResult(1, "quota"), 1),  # its pause could not be saved
        (RunResult(1, "context"), 79),
        (RunResult(130, "interrupted"), 130),
        (RunResult(0, "interrupted"), 74),
        (RunResult(139, "killed", completed=True), 139),  # the task was done before
        (RunResult(137, "hung", completed=True), 137),
        (RunResult(0, "interrupted", interactive=True), 0),
        (RunResult(143, "drained"), 143),
    ],
)
def test_these_are_never_restarted(finished: RunResult, code: int) -> None:
    assert decide(finished) == Stop(code)
    assert decide(finished, OFF) == Stop(1 if code == 79 else code)


@pytest.mark.parametrize("policy", [ON, OFF])
@pytest.mark.parametrize("cls", ["paused", "quota"])
def test_a_paused_run_is_begun_again_at_once(policy: RestartPolicy, cls: ExitClass) -> None:
    assert decide(RunResult(1, cls, until=5000.0), policy) == Again(0.0, 0)


def test_at_a_terminal_only_who_asked_in_this_command_gets_a_restart() -> None:
    died = RunResult(137, "killed", interactive=True)
    assert decide(died) == Stop(137)
    assert isinstance(decide(died, RestartPolicy("on", explicit=True)), Again)
    idle = RunResult(137, "out_of_memory", interactive=True, completed=True)
    assert isinstance(decide(idle, RestartPolicy("on", explicit=True)), Again), "its conversation is not over"
    left = RunResult(0, "incomplete", interactive=True)
    assert decide(left, RestartPolicy("on", explicit=True)) == Stop(0)


@given(st.integers(0, 40), st.integers(0, 2**32))
def test_the_delay_grows_with_jitter_up_to_a_minute_and_is_never_none(restarts: int, seed: int) -> None:
    policy = RestartPolicy("on", limit=0)
    got = decide_restart([999.0] * restarts, RunResult(137, "killed"), 1000.0, random.Random(seed), policy)
    assert isinstance(got, Again) and got.attempt == restarts + 1
    most = min(60.0, 2.0**restarts)
    assert most / 2 <= got.delay <= most


def test_a_run_that_lived_long_begins_the_count_anew() -> None:
    got = decide(RunResult(137, "killed"), ON, 100.0, 200.0, 300.0)
    assert isinstance(got, Again) and got.attempt == 1


def test_what_the_plan_will_refuse_is_not_waited_for_long() -> None:
    got = decide(RunResult(137, "killed"), ON, 996.0, 997.0, 998.0, 999.0)
    assert isinstance(got, Again) and got.attempt == 5 and 0.5 <= got.delay <= 1


def test_what_the_plan_did_not_refuse_is_halted_by_our_own_count() -> None:
    """The plan counts by the hosts' clocks, which may jump; this process counts by one that does not."""
    history = (995.0, 996.0, 997.0, 998.0, 999.0)
    assert decide(RunResult(137, "killed"), ON, *history) == Loop(6)
    assert isinstance(decide(RunResult(137, "killed"), RestartPolicy("on", limit=0), *history), Again)


def test_a_pause_right_behind_one_is_not_begun_again_at_once() -> None:
    paused = RunResult(1, "quota", until=5000.0)
    soon = decide_restart([], paused, 1000.0, random.Random(1), ON, rested=999.0)
    assert isinstance(soon, Again) and soon.attempt == 0 and 0.5 <= soon.delay <= 1
    assert decide_restart([], paused, 1000.0, random.Random(1), ON, rested=100.0) == Again(0.0, 0)


# ---- the loop


class Play:
    """`keep` around scripted runs."""

    def __init__(self, *runs: RunResult | Exception, restart: str = "on", **wish: Any) -> None:
        settings = Settings("file:///b", "j", restart=cast(Any, restart), sources={"restart": "flag"})
        self.wish = RunOptions(AGENTS["gemini"], (), settings, Path("/w"), {}, emit=self._hear)
        self.wish = replace(self.wish, **{"attended": True, **wish})
        self.clock, self.happens = FakeClock(), list[tuple[Event, ...]]()
        self.began = self.clock.boot()
        self.runs = list(runs)
        self.wishes: list[RunOptions] = []
        self.heard: list[Event] = []
        self.said: list[str] = []

    @property
    def waited(self) -> float:
        return self.clock.boot() - self.began

    def _hear(self, event: Event) -> None:
        self.heard.append(event)

    def _run(self, wish: RunOptions, screen: Screen) -> RunResult:
        self.wishes.append(wish)
        for happening in self.happens.pop(0) if self.happens else ():
            wish.emit(happening)
        got = self.runs.pop(0)
        if isinstance(got, Exception):
            raise got
        return got

    def go(self) -> int:
        screen = Screen(self.said.append, lambda rows: None)
        return run_with_restarts(self.wish, screen, self._run, self.clock, random.Random(1))


TAKEN = LeaseTaken("j", "file:///b", "r", 1, "first", "h", "gemini", "1", "/w", 30.0)
AWAY = Unavailable("It is away.")
KILLED, DONE = RunResult(137, "killed", "killed by SIGKILL"), RunResult(0, "completed", "completed")


def test_it_goes_on_until_it_is_done() -> None:
    play = Play(KILLED, KILLED, DONE, fresh=True, accept_loss=True)
    assert play.go() == 0 and not play.runs
    assert [w.accept_loss for w in play.wishes] == [True, False, False], "that was for one owner's spool"
    assert [w.fresh for w in play.wishes] == [True, False, False], "a restart must not throw the session away"
    assert [w.attended for w in play.wishes] == [True, False, False], "nobody typed the restarts"
    assert [(h.attempt, h.cls) for h in play.heard if isinstance(h, Restarting)] == [(1, "killed"), (2, "killed")]
    first, second = play.said
    assert first == "gemini: killed by SIGKILL. Starting it again now."
    assert second.startswith("gemini: killed by SIGKILL. Starting it again ")


@pytest.mark.parametrize(
    ("attempt", "delay", "limit", "says"),
    [
        (1, 0.5, 5, "Starting it again now."),
        (1, 1.0, 5, "Starting it again now."),
        (2, 1.9, 5, "Starting it again in 2 s."),
        (7, 31.6, 0, "Starting it again in 32 s."),
    ],
)
def test_a_restart_is_told_with_its_delay(attempt: int, delay: float, limit: int, says: str) -> None:
    assert restart_line(attempt, delay, limit) == says


def test_what_the_plan_will_refuse_is_not_promised() -> None:
    said = restart_line(5, 0.7, 5)
    assert "--restart-limit 5" in said and "looking whether" in said and "Starting" not in said


def test_a_pause_is_no_restart_and_keeps_the_person() -> None:
    play = Play(RunResult(1, "paused", until=9.0), DONE, restart="off", fresh=True, accept_loss=True)
    assert play.go() == 0 and play.heard == []
    assert [(w.fresh, w.attended) for w in play.wishes] == [(True, True), (False, True)]
    assert [w.accept_loss for w in play.wishes] == [True, False]


def test_zero_inside_a_turn_is_told() -> None:
    play = Play(RunResult(0, "incomplete", "the agent ended with 0, but not its turn"), restart="off")
    assert play.go() == 74
    assert len(play.said) == 1 and "The same command continues the job." in play.said[0]


def test_a_conversation_that_is_too_long_waits_for_a_person() -> None:
    play = Play(RunResult(1, "context", "the conversation is too long for the model"))
    with pytest.raises(PersonNeeded, match="too long"):
        play.go()
    assert [type(h) for h in play.heard] == [Halted]


@pytest.mark.parametrize(
    "error",
    [
        CrashLoop("5 crashes", "See: log"),
        PersonNeeded("x"),
        ConfigError("x"),
        Fenced("x"),
        LeaseHeld("x"),
        UsageError("x"),
    ],
)
def test_each_error_that_ends_the_loop_is_told(error: WalAgentError) -> None:
    play = Play(KILLED, error)
    with pytest.raises(type(error)):
        play.go()
    assert play.heard[1:] == [Halted(error.exit_code, error.what, error.hint)]


def test_a_defect_of_ours_is_told_without_its_words() -> None:
    play = Play(KeyError("a secret"))
    with pytest.raises(KeyError):
        play.go()
    (halted,) = play.heard
    assert isinstance(halted, Halted) and halted.code == 70
    assert "KeyError" in halted.what and "secret" not in halted.what


def test_who_ends_the_waiting_needs_not_be_told() -> None:
    play = Play(KILLED, Interrupted(15))
    with pytest.raises(Interrupted):
        play.go()
    assert [type(h) for h in play.heard] == [Restarting]


# ---- a quota, and agents that carry on


OVER = RunResult(1, "quota", "429 no quota")


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def locate(name: str) -> Callable[[object], Cli]:
        def found(env: object) -> Cli:
            if name in names:
                return Cli(Path(name), "1")
            raise ConfigError(f"{name} is not installed.")

        return found

    for name in ("claude", "codex"):
        monkeypatch.setattr(AGENTS[name], "locate", locate(name))


def test_a_quota_hands_the_job_to_the_next_agent_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "codex")
    play = Play(OVER, DONE, successors=("claude", "codex"), fresh=True)
    assert play.go() == 0
    first, second = play.wishes
    assert (second.agent.name, second.args[0], second.handoff, second.fresh) == ("codex", "exec", True, False)
    assert not second.attended and second.successors == () and first.agent.name == "gemini"
    assert "claude is not installed" in play.said[0]


def test_nobody_is_left_or_a_person_is_there_so_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    play = Play(OVER, DONE, successors=("claude",))
    assert play.go() == 0 and [w.agent.name for w in play.wishes] == ["gemini", "gemini"]
    installed(monkeypatch, "claude")
    person = Play(replace(OVER, interactive=True), successors=("claude",), restart="off")
    assert person.go() == 1 and len(person.wishes) == 1


@pytest.mark.parametrize("acted", [False, True])
def test_an_agent_that_fails_before_its_first_call_hands_on(monkeypatch: pytest.MonkeyPatch, acted: bool) -> None:
    """Such as one that is not logged in. One that has worked is kept, and the first one's failure is its own."""
    installed(monkeypatch, "claude", "codex")
    failed = RunResult(1, "failed", acted=acted)
    play = Play(OVER, failed, DONE, successors=("claude", "codex"))
    assert play.go() == (1 if acted else 0)
    assert [w.agent.name for w in play.wishes] == ["gemini", "claude", *([] if acted else ["codex"])]
    alone = Play(failed, DONE, successors=("claude",))
    assert alone.go() == 1 and len(alone.wishes) == 1


def test_only_a_quota_hands_a_job_over(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "claude")
    play = Play(KILLED, DONE, successors=("claude",))
    assert play.go() == 0 and [w.agent.name for w in play.wishes] == ["gemini", "gemini"]


# ---- a bucket that is away


def test_nothing_to_go_on_with_is_not_waited_for() -> None:
    play = Play(AWAY)
    with pytest.raises(Unavailable):
        play.go()
    assert play.heard == [Halted(69, "It is away.", "")]


@pytest.mark.parametrize("before", [KILLED, RunResult(1, "paused", until=9.0)])
def test_behind_a_restart_or_a_pause_it_is_waited_for_and_that_is_told_once(before: RunResult) -> None:
    play = Play(before, *[AWAY] * 12, DONE, restart="on" if before is KILLED else "off")
    assert play.go() == 0 and not play.runs
    assert [h for h in play.heard if isinstance(h, Halted)] == [
        Halted(69, "It is away.", "It is tried again until the bucket answers.")
    ]
    assert sum(line.startswith("waiting: ") for line in play.said) == 1
    assert 150 < play.waited < 500, "a minute at most, and never at once"


def test_unattended_a_job_that_was_ours_is_gone_on_with_from_where_it_was() -> None:
    play = Play(AWAY, DONE, fresh=True, accept_loss=True, attended=False)
    play.happens = [(TAKEN,)]
    assert play.go() == 0
    assert [(w.fresh, w.accept_loss) for w in play.wishes] == [(True, True), (True, False)], "no agent began"
    play = Play(AWAY, DONE, fresh=True, attended=False)
    play.happens = [(TAKEN, AgentBegan(1, "s", False))]
    assert play.go() == 0 and not play.wishes[1].fresh
    play = Play(AWAY, DONE)
    play.happens = [(TAKEN,)]
    with pytest.raises(Unavailable):
        play.go()  # a person is there


@pytest.mark.parametrize("restart", ["on", "off"])
def test_an_end_that_could_not_be_saved_is_followed_like_any_other(restart: str) -> None:
    play = Play(EndNotSaved("Not saved.", "", KILLED), DONE, restart=restart)
    if restart == "on":
        assert play.go() == 0 and "Not saved." in play.said[0] and play.waited >= 0.5
        return
    with pytest.raises(EndNotSaved):
        play.go()
    assert play.heard == [Halted(69, "Not saved.", "")]


def test_an_end_that_the_bucket_refused_has_the_code_of_the_refusal() -> None:
    play = Play(EndNotSaved("Not saved.", "", KILLED, Denied("They have expired.")), DONE, restart="off")
    with pytest.raises(EndNotSaved):
        play.go()
    assert play.heard == [Halted(77, "Not saved.", "")]


def test_what_was_done_is_not_done_again_because_its_end_was_not_saved() -> None:
    play = Play(EndNotSaved("Not saved.", "", DONE), KILLED)
    with pytest.raises(EndNotSaved):
        play.go()
    assert len(play.wishes) == 1


def test_a_pause_that_could_not_be_saved_is_kept_by_us() -> None:
    play = Play(DONE)
    until = play.clock.now() + 500.0
    play.runs.insert(0, EndNotSaved("Not saved.", "", RunResult(1, "quota", until=until)))
    assert play.go() == 0 and play.clock.now() >= until


def test_off_is_one_run() -> None:
    play = Play(KILLED, DONE, restart="off")
    assert play.go() == 137 and len(play.wishes) == 1 and play.said == []


def test_the_settings_reach_the_policy() -> None:
    play = Play(KILLED, KILLED, DONE)
    play.wish = replace(play.wish, settings=replace(play.wish.settings, restart_limit=2))
    play.runs.insert(0, KILLED)
    with pytest.raises(CrashLoop, match="3 crashes in 10 minutes"):
        play.go()
    assert [h.attempt for h in play.heard if isinstance(h, Restarting)] == [1, 2]
