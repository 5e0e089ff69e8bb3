"""Define the plan's inputs (the log, this machine, the user's policy) and its outcomes: data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wal_agent.errors import WalAgentError
from wal_agent.records import Cause, Finding, Opening, Payload, RunEnded
from wal_agent.recovery import crash_history
from wal_agent.recovery.crash_history import CRASH_CLASSES, Crash, Stuck
from wal_agent.wal.reader import Damage
from wal_agent.wal.state import EndedCall, OpenCall, State

Ambiguity = Literal["ask", "halt", "resume"]


@dataclass(frozen=True, slots=True)
class PriorLog:
    """The log before this run's opening (R2: read after that landed).

    `home`: the newest opening under which the agent was started (None: never); a refused run leaves an opening too,
    and must not pass for the job's home."""

    state: State
    home: Opening | None


def prior_args(before: PriorLog) -> tuple[str, ...]:
    """Return the arguments of the home run by the log; a run started without any went on with the earlier ones."""
    home = before.home
    if home is None:
        return ()
    for opening in (home, *(o.opening for o in reversed(before.state.openings) if o.opening.epoch < home.epoch)):
        if opening.args or opening.cause in ("first", "closed"):
            return opening.args
    return ()


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """What this machine knows. `home_exists`: the folder of the home opening's workspace is here.
    `talked`: the captured session holds a conversation; read only where the log has no turn of it.
    `findings`: of open calls, by call; a missing call counts as unknown. `identity`: of the
    repository around the workspace here, as `records.Repository` has it; empty outside of one. `unlogged`: the
    agent has no hooks, so the log knows of no call."""

    main_file: str  # logical name of the agent's main session file
    home_exists: bool = False
    damage: Damage | None = None
    findings: tuple[tuple[int, Finding], ...] = ()
    identity: tuple[str, ...] = ()
    unlogged: bool = False
    talked: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user decided. `crash_limit` 0: never halt for crashes.

    `on_ambiguity`: of calls with unknown outcome. ask: the agent verifies, and stops and asks if in doubt; halt: no
    agent is started; resume: the agent verifies, then decides by itself."""

    on_ambiguity: Ambiguity = "ask"
    resume_closed: bool = False  # asked to continue a session that had come to its end
    fresh: bool = False  # asked to begin a new session, whatever the last one was
    crash_limit: int = 5
    crash_window: float = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """All that the rows of the plan depend on."""

    before: PriorLog
    opening: Opening
    local: LocalFacts
    policy: Policy

    @property
    def state(self) -> State:
        return self.before.state

    @property
    def home(self) -> Opening:
        """The home opening, in a log that has one."""
        assert self.before.home is not None
        return self.before.home

    @property
    def cause(self) -> Cause:
        """How the home run ended, as the opening after it found it; openings of refused runs may follow."""
        home = self.before.home
        if home is None:
            return self.opening.cause
        later = (o.opening for o in self.state.openings if o.opening.epoch > home.epoch)
        after = next(later, self.opening)
        ended = self.state.ended
        closed = ended is not None and ended.completed and ended.until <= 0 and ended.cls not in CRASH_CLASSES
        if after.epoch > home.epoch + 1 and closed:
            return "closed"  # the run that took the job next died before its opening, and the log has only that death
        return after.cause

    @property
    def pause(self) -> RunEnded | None:
        """The home run's end, if it was paused and has rested since."""
        ended = self.state.ended
        return ended if ended is not None and ended.until > 0 and self.cause == "released" else None

    @property
    def identity(self) -> tuple[str, ...]:
        """Of the repository whose working tree is saved, as `records.Repository` has it."""
        captured = self.state.workspace
        return captured.repository.identity if captured is not None and captured.repository is not None else ()

    @property
    def args(self) -> tuple[str, ...]:
        """The arguments of this start; without any, those of an earlier start that the job has not completed since."""
        return self.opening.args or prior_args(self.before)

    @property
    def captured(self) -> bool:
        """The newest session's main file is in the log."""
        main = self.state.files.get(self.local.main_file)
        return bool(self.state.session) and main is not None and main.session == self.state.session

    @property
    def finished(self) -> tuple[EndedCall, ...]:
        """Calls of the newest session that ended and that its captured file may lack."""
        return tuple(e for e in self.state.unsettled if e.intent.session == self.state.session)

    @property
    def crashes(self) -> tuple[Crash, ...]:
        return crash_history.recent(self.state, self.opening, self.policy.crash_window)

    @property
    def stuck(self) -> Stuck | None:
        return crash_history.find_stuck(self.state, self.before.home, self.opening)

    @property
    def died(self) -> bool:
        """Whether the agent did, and its supervisor lived to release the job."""
        return self.cause == "released" and self.state.ended is not None and self.state.ended.cls in CRASH_CLASSES

    @property
    def doubtful(self) -> tuple[OpenCall, ...]:
        """Calls in flight that may have changed something, and whose outcome the evidence leaves unknown."""
        found = dict(self.local.findings)
        may_change = (o for o in self.state.open if o.intent.cls != "read_only")
        return tuple(o for o in may_change if found.get(o.intent.call, "unknown") == "unknown")


# Why the agent gets a notice: cut off with calls in flight; released by its host in good order; paused; ended by itself
# with calls in flight; cut off without any.
Alert = Literal["crash", "preempted", "paused", "unsettled", "cut_off"]


@dataclass(frozen=True, slots=True)
class Start:
    """Start the agent with the user's arguments; nothing of an earlier run matters."""

    args: tuple[str, ...]
    why: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Begin the task anew: no captured session can be resumed. With `alert`, the notice on the calls comes first, and
    `prompt` is the newest one that began a turn of the lost conversation (None: the arguments hold it). `alone` and
    `warnings` as in Resume."""

    args: tuple[str, ...]
    alert: Alert | None
    prompt: Payload | None
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str
    alone: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """Restore and resume `session`. `finished` calls may be missing in its file and are put back, then `dangling`.
    `alone`: nobody is asked about a call with unknown outcome; the agent verifies and decides by itself.
    `warnings`: sentences for the screen and the prompt."""

    session: str
    args: tuple[str, ...]
    alert: Alert
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str
    alone: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    """Start nothing: raise `error()`, whose class knows the exit code. The log keeps what it holds."""

    kind: type[WalAgentError]
    what: str
    hint: str

    def error(self) -> WalAgentError:
        return self.kind(self.what, self.hint)


Plan = Start | StartAgain | Resume | Refuse
