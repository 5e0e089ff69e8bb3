"""The one decision of a recovery (DESIGN 7): from what the log says, to what is done. Pure data to data.

`TABLE` is read from the top and the first row that matches decides, so adding a condition means placing it. Two rules
order it: whatever could lose a call in flight stands below the rows that keep it (I8), and what a person must decide
stands above what wal-agent may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from wal_agent.errors import ConfigError, CrashLoop, Damaged, PersonNeeded, WalAgentError
from wal_agent.records import Cause, Finding, Opening, Payload
from wal_agent.recovery.damage import damaged
from wal_agent.recovery.words import counted
from wal_agent.wal.reader import Damage
from wal_agent.wal.state import EndedCall, OpenCall, State

# Why the agent must be told: it was cut off with calls in flight; its host gave it up in good order; it ended by itself
# with calls in flight; it was cut off without any.
Alert = Literal["crash", "preempted", "unsettled", "cut_off"]


@dataclass(frozen=True, slots=True)
class Before:
    """The log as it stood before our own opening (R2: read after that landed).

    `home`: the newest opening under which the agent was started (None: never); a refused run leaves an opening too,
    and must not pass for the job's home."""

    state: State
    home: Opening | None


@dataclass(frozen=True, slots=True)
class LocalFacts:
    """What was looked up on this machine. `home_exists`: the folder of the home opening's workspace is here.
    `findings`: what the evidence says of open calls, by call; a call that is missing counts as unknown."""

    main_file: str  # logical name of the agent's main session file
    home_exists: bool = False
    damage: Damage | None = None
    findings: tuple[tuple[int, Finding], ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user decided. `crash_limit` 0: never halt for it."""

    halt_on_unknown: bool = False
    resume_closed: bool = False  # asked to continue a session that had come to its end
    crash_limit: int = 5
    crash_window: float = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Start:
    """Start the agent with the user's arguments; nothing of an earlier run matters."""

    args: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class StartAgain:
    """No captured session can be resumed: begin the task anew. With `alert`, tell first what is known of the calls;
    `prompt` is then what the lost conversation began with last (None: the arguments hold it)."""

    args: tuple[str, ...]
    alert: Alert | None
    prompt: Payload | None
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Restore and resume `session`. `finished` calls may be missing in its file and are put back, then `dangling`."""

    session: str
    args: tuple[str, ...]
    alert: Alert
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Start nothing: raise `error()`, whose class knows the exit code. The log keeps what it holds."""

    kind: type[WalAgentError]
    what: str
    hint: str

    def error(self) -> WalAgentError:
        return self.kind(self.what, self.hint)


Plan = Start | StartAgain | Resume | Refuse


@dataclass(frozen=True, slots=True)
class Case:
    """All that the rows look at."""

    before: Before
    opening: Opening
    local: LocalFacts
    policy: Policy

    @property
    def state(self) -> State:
        return self.before.state

    @property
    def cause(self) -> Cause:
        """How the home run ended, as the opening after it found it; openings of refused runs stand in between."""
        home = self.before.home
        if home is None:
            return self.opening.cause
        later = (o.opening for o in self.state.openings if o.opening.epoch > home.epoch)
        after = next(later, self.opening)
        ended = self.state.ended
        if after.epoch > home.epoch + 1 and ended is not None and ended.completed:
            return "closed"  # it had; who took the job then died before its opening, and only that one's death is seen
        return after.cause

    @property
    def args(self) -> tuple[str, ...]:
        """What the user typed now; where that is nothing, what was typed before."""
        home = self.before.home
        return self.opening.args or (home.args if home else ())

    @property
    def captured(self) -> bool:
        """The newest session's main file is in the log."""
        main = self.state.files.get(self.local.main_file)
        return bool(self.state.session) and main is not None and main.session == self.state.session

    @property
    def finished(self) -> tuple[EndedCall, ...]:
        """Calls of the newest session that ended and that its captured file may not tell."""
        return tuple(e for e in self.state.unsettled if e.intent.session == self.state.session)

    @property
    def crashes(self) -> tuple[Opening, ...]:
        """The openings in the window that took over from a dead owner, ours with them."""
        edge = self.opening.time - self.policy.crash_window
        taken = (*(o.opening for o in self.state.openings), self.opening)
        return tuple(o for o in taken if o.cause == "dead" and o.time > edge)


def plan(before: Before, opening: Opening, local: LocalFacts, policy: Policy) -> Plan:
    """What to do, now that our opening has landed. Total, and no call in flight is dropped (I8)."""
    case = Case(before, opening, local, policy)
    return next(row.then(case) for row in TABLE if row.when(case))


# ---- refusals ------------------------------------------------------------------------------------------------------


def _damaged(c: Case) -> bool:
    return c.local.damage is not None


def _refuse_damaged(c: Case) -> Plan:
    assert c.local.damage is not None
    error = damaged(c.local.damage)
    return Refuse(Damaged, error.what, error.hint)


def _other_agent(c: Case) -> bool:
    return c.before.home is not None and c.before.home.agent != c.opening.agent


def _refuse_agent(c: Case) -> Plan:
    assert c.before.home is not None
    what = f"This job belongs to {c.before.home.agent}, not to {c.opening.agent}. Nothing was run."
    return Refuse(ConfigError, what, "Choose another name with --job.")


def _other_workspace(c: Case) -> bool:
    home = c.before.home
    if home is None or home.workspace == c.opening.workspace or not c.local.home_exists:
        return False
    return home.host.name == c.opening.host.name or home.host.boot == c.opening.host.boot


def _refuse_workspace(c: Case) -> Plan:
    assert c.before.home is not None
    what = f"This job belongs to the folder {c.before.home.workspace}, not to {c.opening.workspace}. Nothing was run."
    return Refuse(ConfigError, what, "Run it there, or choose another name with --job.")


def _crash_loop(c: Case) -> bool:
    return 0 < c.policy.crash_limit <= len(c.crashes)


def _halt_crash_loop(c: Case) -> Plan:
    last = f" The last tool was {c.state.last_tool}." if c.state.last_tool else ""
    what = (
        f"{len(c.crashes)} crashes in {c.policy.crash_window / 60:.0f} minutes.{last}"
        f"{_in_flight(c)} Stopped; a person is needed."
    )
    return Refuse(CrashLoop, what, "See: wal-agent log --crashes")


def _not_known(c: Case) -> bool:
    found = dict(c.local.findings)
    doubtful = (o for o in c.state.open if o.intent.cls != "read_only")
    return c.policy.halt_on_unknown and any(found.get(o.intent.call, "unknown") == "unknown" for o in doubtful)


def _halt_unknown(c: Case) -> Plan:
    calls = ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in c.state.open[:5])
    what = f"Cannot tell what became of calls in flight ({calls}). Stopped, as the policy says; a person is needed."
    return Refuse(PersonNeeded, what, "Settle each with: wal-agent ack N --done | --not-done")


# ---- going on ------------------------------------------------------------------------------------------------------


def _dangling(c: Case) -> bool:
    return bool(c.state.open)


def _resume_dangling(c: Case) -> Plan:
    alert: Alert
    if c.cause == "released":
        alert = "preempted"
    elif c.state.ended is not None or c.cause in ("closed", "first"):
        alert = "unsettled"
    else:
        alert = "crash"
    return _go_on(c, alert, f"{_how(c)}{_in_flight(c)}")


def _never_ran(c: Case) -> bool:
    return not c.state.ran


def _start(c: Case) -> Plan:
    if c.before.home is None or c.cause in ("first", "closed"):
        return Start(c.opening.args, "nothing to recover")
    why = f"{_how(c)} before anything was recorded: starting it again"
    return StartAgain(c.args, None, None, (), (), why)


def _released(c: Case) -> bool:
    return c.cause == "released"


def _resume_released(c: Case) -> Plan:
    return _go_on(c, "preempted", f"{_how(c)}; nothing was in flight")


def _cut_off(c: Case) -> bool:
    return c.state.turn == "started" or c.cause in ("dead", "unlocked", "first")


def _resume_cut_off(c: Case) -> Plan:
    return _go_on(c, "cut_off", f"{_how(c)}; nothing was in flight")


def _asked(c: Case) -> bool:
    return c.policy.resume_closed


def _resume_closed(c: Case) -> Plan:
    return _go_on(c, "cut_off", "its last run had come to its end; continuing it, as asked")


def _always(c: Case) -> bool:
    return True


def _start_fresh(c: Case) -> Plan:
    return Start(c.opening.args, "its last run had come to its end")


def _go_on(c: Case, alert: Alert, why: str) -> Plan:
    if c.captured:
        return Resume(c.state.session, c.args, alert, c.state.open, c.finished, why)
    prompt = c.state.prompt.prompt if c.state.prompt else None
    told = alert if c.state.open or c.finished else None
    why = f"{why}; its session was not saved yet: starting it again"
    return StartAgain(c.args, told, prompt, c.state.open, c.finished, why)


def _how(c: Case) -> str:
    host = c.before.home.host.name if c.before.home else "its host"
    match c.cause:
        case "released":
            return f"was given up in good order on {host}"
        case "closed":
            return f"ended on {host} without completing its turn"
        case _:
            return f"was cut off on {host}"


def _in_flight(c: Case) -> str:
    return f" with {counted(len(c.state.open), 'call')} in flight" if c.state.open else ""


@dataclass(frozen=True, slots=True)
class Row:
    """One condition and what follows from it."""

    name: str
    when: Callable[[Case], bool]
    then: Callable[[Case], Plan]


TABLE = (
    Row("log damaged", _damaged, _refuse_damaged),
    Row("another agent's job", _other_agent, _refuse_agent),
    Row("another folder's job", _other_workspace, _refuse_workspace),
    Row("crash loop", _crash_loop, _halt_crash_loop),
    Row("calls in flight, unknown, and the policy halts", _not_known, _halt_unknown),
    Row("calls in flight", _dangling, _resume_dangling),
    Row("nothing was recorded", _never_ran, _start),
    Row("given up in good order", _released, _resume_released),
    Row("cut off", _cut_off, _resume_cut_off),
    Row("ended, and asked to continue", _asked, _resume_closed),
    Row("ended", _always, _start_fresh),
)
