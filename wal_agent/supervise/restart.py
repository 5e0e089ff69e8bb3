"""Run an agent again where its restart policy says so; and say whether a job is complete.

A run that was paused is begun again at once (its start waits until it is due), and with `--restart` an agent that died
is. Each time the whole recovery decides anew, and its plan knows the crash loop. A bucket that is away is waited for,
once there is something to go on with. `is_complete` is for engines that start the same command again at each boot (`run
--once`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from wal_agent.agents import AGENTS
from wal_agent.bucket import open_bucket
from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import (
    NOT_DONE,
    ConfigError,
    CrashLoop,
    Exhausted,
    NotThisJob,
    NotYourJob,
    PersonNeeded,
    Unavailable,
    WalAgentError,
)
from wal_agent.events import AgentBegan, Halted, LeaseTaken, Restarting, emit_after
from wal_agent.limits import explain
from wal_agent.recovery.lease_policy import classify_stop, is_removed
from wal_agent.supervise import run as runs
from wal_agent.supervise.exits import RESTARTED
from wal_agent.supervise.lease_keeper import sleep_unless_signalled
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.run_end import EndNotSaved, RunResult
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys

FIRST_DELAY = 1.0  # seconds, doubled at each restart
MAX_DELAY = 60.0
PAUSES_APART = 60.0  # seconds; a pause sooner after one is no pause at all, and is not begun again at once
NOBODY = PersonNeeded.exit_code
SHORTEN = "Shorten it at a terminal (the same command, then the agent's own way), or begin anew with --fresh."
GO_ON = "Go on with the task."  # with the notice in front of it
STILL_TRIED = "It is tried again until the bucket answers."


class RestartPolicy(msgspec.Struct, frozen=True):
    """`explicit`: a person asked for restarts in this very command. `limit` in `window` seconds: 0 is no limit."""

    restart: Literal["off", "on"] = "off"
    explicit: bool = False
    limit: int = 5
    window: float = 600.0


class Stop(msgspec.Struct, frozen=True):
    code: int


class Again(msgspec.Struct, frozen=True):
    """`attempt` counts restarts from 1; 0: it was paused, and this is none."""

    delay: float
    attempt: int


class Loop(msgspec.Struct, frozen=True):
    """The plan should have halted it by what the log says, and did not: this process has counted too."""

    crashes: int


def decide_restart(
    history: Sequence[float],
    finished: RunResult,
    now: float,
    rng: random.Random,
    policy: RestartPolicy,
    rested: float = -math.inf,
) -> Stop | Again | Loop:
    """Decide what follows a run. `history`: when this process has restarted the agent, oldest first; `rested`: when it
    last began one anew behind a pause; `now`: the same clock. Restarts within the window count, so that a run that
    lived for longer than it begins anew."""
    if finished.until > 0:
        return Again(0.0 if now - rested >= PAUSES_APART else backoff(0, rng), 0)
    code = finished.code
    if code == 0 and finished.cls != "completed" and not finished.interactive:
        code = NOT_DONE
    if policy.restart == "on" and finished.cls == "context":
        return Stop(NOBODY)
    if policy.restart == "off" or finished.cls not in RESTARTED:
        return Stop(code)
    if finished.completed and not finished.interactive:
        return Stop(code)  # the task was done; what died then was only the process
    if finished.interactive and (finished.code == 0 or not policy.explicit):
        return Stop(code)
    row = sum(at > now - policy.window for at in history)
    if 0 < policy.limit <= row:
        return Loop(row + 1)
    last = row + 1 == policy.limit  # the plan will most likely refuse it, and nobody needs to wait long for that
    return Again(backoff(0 if last else row, rng), row + 1)


def backoff(row: int, rng: random.Random) -> float:
    """Seconds, never none: doubled from the first on, of which the half is left to chance."""
    return min(MAX_DELAY, FIRST_DELAY * float(2 ** min(row, 10))) * rng.uniform(0.5, 1.0)


def restart_policy(options: RunOptions) -> RestartPolicy:
    settings = options.settings
    explicit = settings.sources.get("restart") in ("flag", "environment")
    return RestartPolicy(settings.restart, explicit, settings.restart_limit, settings.restart_window)


class _RestartLoop:
    """What the loop remembers. `options`: what the next run is asked for."""

    def __init__(self, options: RunOptions, screen: Screen, clock: Clock, rng: random.Random) -> None:
        self.emit = options.emit
        emit = emit_after({LeaseTaken: self._on_lease_taken, AgentBegan: self._on_agent_began}, self.emit)
        self.options = replace(options, emit=emit)
        self.screen, self.clock, self.rng, self.policy = screen, clock, rng, restart_policy(options)
        self.history: list[float] = []
        self.rested = -math.inf
        self.handed = False  # the next run is that of a successor
        self.begun = False  # a run has ended, and what follows it is ours to start
        self.away = 0  # how often in a row the bucket was

    def _on_lease_taken(self, event: LeaseTaken) -> None:
        self.options = replace(self.options, accept_loss=False)  # it was for what that owner had spooled
        self.begun = self.begun or (self.policy.restart == "on" and not self.options.attended)

    def _on_agent_began(self, event: AgentBegan) -> None:
        self.options = replace(self.options, fresh=False)

    def follow(self, finished: RunResult, unsaved: EndNotSaved | None) -> int | None:
        """The exit code, or None for another run, once that is due. `unsaved`: the bucket does not know of the end."""
        name, now = self.options.agent.name, self.clock.boot()
        decided = decide_restart(self.history, finished, now, self.rng, self.policy, self.rested)
        if unsaved is not None and not isinstance(decided, Again):
            raise unsaved
        self.away = 0
        # One that got the job and failed before its first call is most likely not logged in (decision 044).
        vain = self.handed and finished.cls == "failed" and not finished.acted
        if (finished.cls == "quota" or vain) and not finished.interactive and self.options.successors:
            self._hand_over(finished.why)
            return None
        match decided:
            case Stop(code):
                if code == NOT_DONE and finished.code == 0:
                    self.screen.say(not_done_line(self.options, finished))
                if code == NOBODY and finished.cls == "context":
                    raise PersonNeeded(f"{name}: {finished.why}, so it is not started again.", SHORTEN)
                return code
            case Loop(crashes):
                what = f"{crashes} crashes in {self.policy.window / 60:.0f} minutes, the last one: {finished.why}."
                raise CrashLoop(f"{what} Stopped; a person is needed.", "See: wal-agent log --crashes")
            case Again(delay, attempt):
                self.begun = True
                self.options = replace(self.options, fresh=False, accept_loss=False)
                if unsaved is not None:
                    self.screen.say(str(unsaved))
                    delay = max(delay, backoff(0, self.rng))
                    if finished.until > 0:  # nor of the pause, which no start will wait for
                        delay = max(delay, finished.until - self.clock.now())
                if attempt == 0:
                    self.rested = now
                    sleep_unless_signalled(delay, self.clock)
                    return None
                self.history.append(now)
                self.emit(Restarting(attempt, delay, finished.cls))
                self.screen.say(f"{name}: {finished.why}. {restart_line(attempt, delay, self.policy.limit)}")
                sleep_unless_signalled(delay, self.clock)
                self.options = replace(self.options, attended=False)  # nobody has typed this one
                return None

    def _hand_over(self, why: str) -> None:
        """Make the next run that of the first successor that is still installed; where none is, the same agent runs
        again, and waits for its quota then."""
        before = self.options.agent.name
        self.begun = True
        self.options = replace(self.options, fresh=False, accept_loss=False, attended=False)
        while self.options.successors:
            name, *rest = self.options.successors
            self.options = replace(self.options, successors=tuple(rest))
            agent = AGENTS[name]
            try:
                agent.locate(self.options.env)
            except ConfigError as error:
                self.screen.say(f"The job cannot be handed to {name}: {error}")
                continue
            args = (*agent.capabilities.headless, GO_ON)
            self.options = replace(self.options, agent=agent, args=args, handoff=True)
            self.handed = True
            self.screen.say(f"{before}: {why}. Handing the job to {name}.")
            return

    def wait(self, error: Unavailable) -> None:
        """The bucket is away: the same again later, if there is anything to go on with."""
        if not self.begun:
            raise error
        if self.away == 0:
            self.screen.say(f"waiting: {error}")
            self.emit(Halted(error.exit_code, error.what, STILL_TRIED))
        sleep_unless_signalled(backoff(self.away, self.rng), self.clock)
        self.away += 1


def run_with_restarts(
    options: RunOptions,
    screen: Screen,
    run: Callable[[RunOptions, Screen], RunResult] = runs.run,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> int:
    """Run the agent, and again where its policy says so; return the exit code. What this raises was emitted."""
    loop = _RestartLoop(options, screen, clock or SystemClock(), rng or random.Random())
    try:
        while True:
            try:
                code = loop.follow(run(loop.options, screen), None)
            except EndNotSaved as left:
                code = loop.follow(left.finished, left)
            except Unavailable as error:
                loop.wait(error)
                continue
            if code is not None:
                return code
    except Exception as error:
        if (halted := halted_event(error)) is not None:
            loop.emit(halted)
        raise


def halted_event(error: Exception) -> Halted | None:
    """What is emitted of an end by `error`; None where a signal asked for it, or a notice."""
    if isinstance(error, NotThisJob | NotYourJob):
        return None
    known = explain(error)
    if known is None:
        what = f"wal-agent ended by a defect of its own ({type(error).__name__})."
        return Halted(
            WalAgentError.exit_code, what, "Its report is on that machine; the same command continues the job."
        )
    if known.exit_code > 128:
        return None
    return Halted(known.exit_code, known.what, known.hint, isinstance(known, Exhausted))


def restart_line(attempt: int, delay: float, limit: int) -> str:
    """`attempt` counts from 1; the plan decides in the start itself, and mostly refuses the one that fills `limit`."""
    if attempt == limit:
        return f"That is crash {attempt} of --restart-limit {limit}: looking whether it may be started again."
    return f"Starting it again {'now' if delay < 1.5 else f'in {delay:.0f} s'}."


def not_done_line(options: RunOptions, finished: RunResult) -> str:
    name = options.agent.name
    why = "" if finished.cls == "incomplete" else f" ({finished.why})"
    return (
        f"{name} ended with 0, but not its turn{why}, so the task may not be done. The same command continues the job."
    )


def is_complete(url: str, job: str) -> bool:
    """By its lease alone, which is never encrypted; an agent that failed has not done its task. Raises what the bucket
    does, and Damaged."""
    bucket = open_bucket(url)
    try:
        seen = leases.read_lease(bucket, Keys(job))
    finally:
        bucket.close()
    if seen is None or is_removed(seen):
        return False
    return seen.doc.state == "closed" and not classify_stop(seen.doc.reason)
