"""The one decision of a recovery (DESIGN 7): from what the log says, to what is done. Pure data to data.

`TABLE` is read from the top and the first row that matches decides, so adding a condition means placing it. Two rules
order it: whatever could lose a call in flight stands below the rows that keep it (I8), and what a person must decide
stands above what wal-agent may. `REMARKS` are told beside the decision, all that hold, and never make one.

docs/RECOVERY.md shows both as `table()` renders them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from wal_agent.errors import ConfigError, CrashLoop, Damaged, PersonNeeded, WalAgentError
from wal_agent.records import Opening, Payload
from wal_agent.recovery.case import Ambiguity, Before, Case, LocalFacts, Policy
from wal_agent.recovery.damage import damaged
from wal_agent.recovery.identity import foreign, project
from wal_agent.recovery.quote import safe
from wal_agent.recovery.words import counted
from wal_agent.wal.state import EndedCall, OpenCall

__all__ = [
    "REMARKS",
    "TABLE",
    "Alert",
    "Ambiguity",
    "Before",
    "LocalFacts",
    "Plan",
    "Policy",
    "Refuse",
    "Resume",
    "Start",
    "StartAgain",
    "plan",
    "table",
]

# Why the agent must be told: it was cut off with calls in flight; its host gave it up in good order; it ended by itself
# with calls in flight; it was cut off without any.
Alert = Literal["crash", "preempted", "unsettled", "cut_off"]


@dataclass(frozen=True, slots=True)
class Start:
    """Start the agent with the user's arguments; nothing of an earlier run matters."""

    args: tuple[str, ...]
    why: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StartAgain:
    """No captured session can be resumed: begin the task anew. With `alert`, tell first what is known of the calls;
    `prompt` is then what the lost conversation began with last (None: the arguments hold it). For `alone` and
    `warnings` see Resume."""

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
    `alone`: nobody is to be asked about a call whose fate cannot be told; the agent looks and decides by itself.
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


def plan(before: Before, opening: Opening, local: LocalFacts, policy: Policy) -> Plan:
    """What to do, now that our opening has landed. Total, and no call in flight is dropped (I8)."""
    case = Case(before, opening, local, policy)
    decided = next(row.then(case) for row in TABLE if row.when(case))
    if isinstance(decided, Refuse):
        return decided
    return replace(decided, warnings=tuple(remark.says(case) for remark in REMARKS if remark.when(case)))


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


def _foreign(c: Case) -> bool:
    return foreign(_captured_identity(c), c.local.identity)


def _refuse_foreign(c: Case) -> Plan:
    theirs, ours = project(_captured_identity(c)), project(c.local.identity)
    what = f"This job belongs to another repository ({theirs}), not to the one here ({ours}). Nothing was run."
    return Refuse(ConfigError, what, "Run it in that repository, or choose another name with --job.")


def _captured_identity(c: Case) -> tuple[str, ...]:
    captured = c.state.workspace
    return captured.repository.identity if captured is not None and captured.repository is not None else ()


def _crash_loop(c: Case) -> bool:
    return 0 < c.policy.crash_limit <= len(c.crashes)


def _halt_crash_loop(c: Case) -> Plan:
    last = f" The last tool was {c.state.last_tool}." if c.state.last_tool else ""
    what = (
        f"{len(c.crashes)} crashes in {c.policy.crash_window / 60:.0f} minutes.{last}"
        f"{_in_flight(c)} Stopped; a person is needed."
    )
    return Refuse(CrashLoop, what, "See: wal-agent log --crashes")


def _halts(c: Case) -> bool:
    return c.policy.on_ambiguity == "halt" and bool(c.doubtful)


def _halt_unknown(c: Case) -> Plan:
    calls = ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in c.state.open[:5])
    what = f"Cannot tell what became of calls in flight ({calls}). Stopped, as the policy says; a person is needed."
    return Refuse(PersonNeeded, what, _SETTLE)


def _forgets(c: Case) -> bool:
    return c.policy.fresh and bool(c.state.open)


def _refuse_to_forget(c: Case) -> Plan:
    calls = ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in c.state.open[:5])
    return Refuse(PersonNeeded, f"--fresh would forget calls that are not settled ({calls}).", _SETTLE)


# ---- going on ------------------------------------------------------------------------------------------------------


def _fresh(c: Case) -> bool:
    return c.policy.fresh


def _start_as_asked(c: Case) -> Plan:
    return Start(c.opening.args, "a new session, as asked")


def _goes_on(c: Case) -> bool:
    return c.policy.on_ambiguity == "resume" and bool(c.doubtful)


def _resume_alone(c: Case) -> Plan:
    decided = _resume_dangling(c)
    assert isinstance(decided, Resume | StartAgain)
    return replace(decided, alone=True)


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


# ---- what is told beside it ----------------------------------------------------------------------------------------


def _other_version(c: Case) -> bool:
    home = c.before.home
    known = home is not None and home.agent_version and c.opening.agent_version
    return bool(known) and home is not None and home.agent_version != c.opening.agent_version


def _say_version(c: Case) -> str:
    assert c.before.home is not None
    then, now = safe(c.before.home.agent_version, 40), safe(c.opening.agent_version, 40)
    return f"{c.opening.agent} is {now} here; it was {then} when this session was saved."


# ---- the table -----------------------------------------------------------------------------------------------------

_SETTLE = "Settle each with: wal-agent ack N --done | --not-done"


@dataclass(frozen=True, slots=True)
class Row:
    """One condition and what follows from it. `when_says` and `then_says` say the same for people, in a few words."""

    name: str
    when: Callable[[Case], bool]
    then: Callable[[Case], Plan]
    when_says: str
    then_says: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is told beside any decision to start, and decides nothing."""

    name: str
    when: Callable[[Case], bool]
    says: Callable[[Case], str]
    when_says: str
    then_says: str


TABLE = (
    Row(
        "log damaged",
        _damaged,
        _refuse_damaged,
        "a record is missing, or is not what was written",
        "nothing is started (73); told is what can still be had",
    ),
    Row(
        "another agent's job",
        _other_agent,
        _refuse_agent,
        "the job was last run with another agent",
        "nothing is started (78); another name: `--job`",
    ),
    Row(
        "another folder's job",
        _other_workspace,
        _refuse_workspace,
        "the job's folder is another one, and is still on this machine",
        "nothing is started (78); run it there, or `--job`",
    ),
    Row(
        "another repository's job",
        _foreign,
        _refuse_foreign,
        "the saved working tree is of a repository that has neither origin nor first commit in common with this one",
        "nothing is started (78); run it there, or `--job`",
    ),
    Row(
        "crash loop",
        _crash_loop,
        _halt_crash_loop,
        "5 openings in 10 minutes took over from a dead run, and nobody is at the terminal",
        "nothing is started (80); a person looks: `wal-agent log`",
    ),
    Row(
        "calls in flight, fate unknown, halt",
        _halts,
        _halt_unknown,
        "`--on-ambiguity halt`, and of a call that may have changed something it cannot be told what became of it",
        "nothing is started (79); a person settles it: `wal-agent ack`",
    ),
    Row(
        "calls in flight, and `--fresh`",
        _forgets,
        _refuse_to_forget,
        "a new session was asked for, which would forget calls in flight",
        "nothing is started (79); a person settles them: `wal-agent ack`",
    ),
    Row(
        "`--fresh`",
        _fresh,
        _start_as_asked,
        "a new session was asked for, and no call is in flight",
        "start a new session; the saved one and the saved working tree are not put back",
    ),
    Row(
        "calls in flight, fate unknown, resume",
        _goes_on,
        _resume_alone,
        "`--on-ambiguity resume`, and of a call that may have changed something it cannot be told what became of it",
        "restore and resume; each call is told with its verdict; in doubt the agent verifies and decides by itself",
    ),
    Row(
        "calls in flight",
        _dangling,
        _resume_dangling,
        "calls have an intent and no end",
        "restore and resume; each call is told with its verdict; in doubt the agent verifies, then stops and asks",
    ),
    Row(
        "nothing was recorded",
        _never_ran,
        _start,
        "no turn and no call is in the log",
        "start; after a crash with the arguments of before",
    ),
    Row(
        "given up in good order",
        _released,
        _resume_released,
        "the last run was drained, or gave the job up",
        "restore and resume; told that nothing was in flight",
    ),
    Row(
        "cut off",
        _cut_off,
        _resume_cut_off,
        "the last run died, or ended inside a turn",
        "restore and resume; told that nothing was in flight",
    ),
    Row(
        "ended, and `--continue`",
        _asked,
        _resume_closed,
        "the last run had come to its end, and going on was asked for",
        "restore and resume",
    ),
    Row(
        "ended",
        _always,
        _start_fresh,
        "the last run had come to its end",
        "start a new session",
    ),
)

REMARKS = (
    Remark(
        "the agent's version changed",
        _other_version,
        _say_version,
        "the agent here is not the version that the session was saved with",
        "told on the screen and in the prompt",
    ),
)


def table() -> str:
    """`TABLE` and `REMARKS` as Markdown, for docs/RECOVERY.md."""
    head = ["| | When | What follows |", "|---|---|---|"]
    rows = [f"| {n}. {row.name} | {row.when_says} | {row.then_says} |" for n, row in enumerate(TABLE, 1)]
    beside = [f"| {remark.name} | {remark.when_says} | {remark.then_says} |" for remark in REMARKS]
    return "\n".join([*head, *rows, "", "Beside each start, where it holds:", "", *head, *beside])
