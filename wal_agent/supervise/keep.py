"""The loop around `run`: a run that was paused is begun again at once (its start waits until it is due), and with
`--restart` an agent that died is. Each time the whole recovery decides anew, and its plan knows the crash loop."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from wal_agent.clock import Clock, SystemClock
from wal_agent.errors import PersonNeeded, WalAgentError
from wal_agent.happened import Halted, Restarting
from wal_agent.records import ExitClass
from wal_agent.supervise import run as runs
from wal_agent.supervise.run import Finished
from wal_agent.supervise.take import pause
from wal_agent.supervise.wish import Screen, Wish

FIRST_DELAY = 1.0  # seconds, doubled at each restart
LONGEST_DELAY = 60.0
NOT_DONE = 75
NOBODY = PersonNeeded.exit_code
SHORTEN = "Shorten it at a terminal (the same command, then the agent's own way), or begin anew with --fresh."
PERSON = frozenset({73, 76, 77, 78, 79, 80})  # exit codes that time does not change

# Not `context`: it would end the same way. Not `failed`: that is the agent's own answer.
RESTARTED: Final[frozenset[ExitClass]] = frozenset({"killed", "out_of_memory", "heap", "hung", "incomplete"})


@dataclass(frozen=True, slots=True)
class Policy:
    """`explicit`: a person asked for restarts in this very command. `limit` in `window` seconds: 0 is no limit."""

    restart: Literal["off", "on"] = "off"
    explicit: bool = False
    limit: float = 5
    window: float = 600.0


@dataclass(frozen=True, slots=True)
class Stop:
    code: int


@dataclass(frozen=True, slots=True)
class Again:
    """`attempt` counts restarts from 1; 0: it was paused, and this is none."""

    delay: float
    attempt: int


def after(history: Sequence[float], finished: Finished, now: float, rng: random.Random, policy: Policy) -> Stop | Again:
    """What follows a run. `history`: when this process has restarted the agent, oldest first; `now`: the same clock.
    Those within the window count, so that a run that lived for longer than it begins anew."""
    if finished.until > 0:
        return Again(0.0, 0)
    code = finished.code
    if code == 0 and finished.cls != "completed" and not finished.interactive:
        code = NOT_DONE
    if policy.restart == "on" and finished.cls == "context":
        return Stop(NOBODY)
    if policy.restart == "off" or finished.cls not in RESTARTED:
        return Stop(code)
    if finished.interactive and (finished.code == 0 or not policy.explicit):
        return Stop(code)
    row = sum(at > now - policy.window for at in history)
    if 0 < policy.limit <= row + 1:
        return Again(0.0, row + 1)  # the plan says that it is one too many, and why
    return Again(rng.uniform(0.0, min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(row, 10))), row + 1)


def policy_of(wish: Wish) -> Policy:
    settings = wish.settings
    explicit = settings.sources.get("restart") in ("flag", "environment")
    return Policy(settings.restart, explicit, settings.restart_limit, settings.restart_window)


def keep(
    wish: Wish,
    screen: Screen,
    run: Callable[[Wish, Screen], Finished] = runs.run,
    clock: Clock | None = None,
    rng: random.Random | None = None,
) -> int:
    """The exit code. Raises WalAgentError where ours is the last word; whoever looks on has been told."""
    clock, rng, policy = clock or SystemClock(), rng or random.Random(), policy_of(wish)
    history: list[float] = []
    try:
        while True:
            finished = run(wish, screen)
            match after(history, finished, clock.boot(), rng, policy):
                case Stop(code):
                    if code == NOT_DONE and finished.code == 0:
                        screen.say(not_done(wish, finished))
                    if code == NOBODY and finished.cls == "context":
                        raise PersonNeeded(f"{wish.agent.name}: {finished.why}, so it is not started again.", SHORTEN)
                    return code
                case Again(_, 0):
                    wish = replace(wish, fresh=False)
                case Again(delay, attempt):
                    history.append(clock.boot())
                    wish.tell(Restarting(attempt, delay, finished.cls))
                    screen.say(f"{wish.agent.name}: {finished.why}. Starting it again in {delay:.0f} s.")
                    pause(delay, clock)
                    wish = replace(wish, fresh=False, attended=False)  # nobody has typed this one
    except WalAgentError as error:
        if error.exit_code in PERSON:
            wish.tell(Halted(error.exit_code, error.what, error.hint))
        raise


def not_done(wish: Wish, finished: Finished) -> str:
    name = wish.agent.name
    return (
        f"{name} ended with 0, but not its turn ({finished.why}), so the task may not be done. "
        f"The same command carries on."
    )
