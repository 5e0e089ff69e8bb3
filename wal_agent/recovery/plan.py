"""Decide what a recovery does (RECOVERY.md): inputs (the log, this machine, the user's policy) to an outcome. Pure.

`TABLE` is read from the top and the first row that matches decides, so adding a condition means placing it. Two rules
order it: whatever could lose a call in flight is below the rows that keep it (I8), and what a person must decide is
above what wal-agent may. All `REMARKS` that hold are reported beside the outcome, and never decide. docs/RECOVERY.md
explains each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from wal_agent.agents.session_files import SESSION
from wal_agent.calls.quote import safe, show_words
from wal_agent.errors import ConfigError, CrashLoop, Damaged, NotThisJob, PersonNeeded, WalAgentError
from wal_agent.records import Cause, Finding, Opening, Payload, RunEnded
from wal_agent.recovery import lease_policy
from wal_agent.recovery.lease_policy import CRASH_CLASSES, Crash, Stuck
from wal_agent.text import yield_reason
from wal_agent.wal.damage import damaged_log_error
from wal_agent.wal.reader import Damage
from wal_agent.wal.state import EndedCall, OpenCall, State
from wal_agent.wording import messages

Ambiguity = Literal["ask", "halt", "resume"]

SHOWN_NAME = 40  # characters of an agent, or of its version, in a sentence
SHOWN_PROGRAM = 80  # of a command, or of a reason
SHOWN_STEP = 100  # of a step's name, or of an origin
SHOWN_FOLDER = 200
SHOWN_CALLS = 5  # calls, or steps, that a sentence names
ENDED_BY_ITSELF = ("completed", "interrupted")
# Where a repository comes from.
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?(?P<host>[^/:]+)(?::\d+)?/(?P<path>.*)", re.IGNORECASE)
_SCP = re.compile(r"(?:[^/@:]+@)?(?P<host>[^/:]+):(?P<path>.*)")
T = TypeVar("T")


def prior_args(state: State) -> tuple[str, ...]:
    """Return the arguments of the home run by the log; a run started without any went on with the earlier ones. Those
    of another agent, which had the job before, count for nothing."""
    home = state.home_opening
    if home is None:
        return ()
    started = (o.opening for o in reversed(state.openings) if o.opening.epoch <= home.epoch)
    for opening in (o for o in started if o.agent == state.owner_agent):
        if opening.args or opening.cause in ("first", "closed"):
            return opening.args
    return ()


class LocalFacts(msgspec.Struct, frozen=True):
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


class Policy(msgspec.Struct, frozen=True):
    """What the user decided. `crash_limit` 0: never halt for crashes.

    `on_ambiguity`: of calls with unknown outcome. ask: the agent verifies, and stops and asks if in doubt; halt: no
    agent is started; resume: the agent verifies, then decides by itself."""

    on_ambiguity: Ambiguity = "ask"
    resume_closed: bool = False  # asked to continue a session that had come to its end
    fresh: bool = False  # asked to begin a new session, whatever the last one was
    crash_limit: int = 5
    crash_window: float = 600.0  # seconds
    named: bool = False  # the client knows the session by its id, so one that was not saved is made again


class PlanInputs(msgspec.Struct, frozen=True):
    """All that the rows of the plan depend on. `state`: of the log before this run's opening (R2: read after that
    landed)."""

    state: State
    opening: Opening
    local: LocalFacts
    policy: Policy

    @property
    def home(self) -> Opening:
        """The home opening, in a log that has one."""
        assert self.state.home_opening is not None
        return self.state.home_opening

    @property
    def cause(self) -> Cause:
        """How the home run ended, as the opening after it found it; openings of refused runs may follow."""
        home = self.state.home_opening
        if home is None:
            return self.opening.cause
        later = (o.opening for o in self.state.openings if o.opening.epoch > home.epoch)
        after = next(later, self.opening)
        ended = self.state.ended
        closed = ended is not None and ended.completed and ended.until <= 0 and ended.cls not in CRASH_CLASSES
        if after.epoch > home.epoch + 1 and closed:
            return "closed"  # the run that took the job next died before its opening, and the log has only that death
        if after.cause == "released" and closed and ended is not None and ended.cls in ENDED_BY_ITSELF:
            return "closed"  # it was released only because nothing has looked at a call (R6)
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
        return self.opening.args or prior_args(self.state)

    @property
    def captured(self) -> bool:
        """The newest session's main file is in the log."""
        return bool(self.state.session_files(self.local.main_file))

    @property
    def finished(self) -> tuple[EndedCall, ...]:
        """Calls of the newest session that ended and that its captured file may lack."""
        return tuple(e for e in self.state.unsettled if e.intent.session == self.state.session)

    @property
    def pending(self) -> tuple[OpenCall, ...]:
        """The calls in flight that the agent has not answered for."""
        return self.state.unanswered

    @property
    def crashes(self) -> tuple[Crash, ...]:
        return lease_policy.recent(self.state, self.opening, self.policy.crash_window)

    @property
    def stuck(self) -> Stuck | None:
        return lease_policy.find_stuck(self.state, self.state.home_opening, self.opening)

    @property
    def died(self) -> bool:
        """Whether the agent did, and its supervisor lived to release the job."""
        return self.cause == "released" and self.state.ended is not None and self.state.ended.cls in CRASH_CLASSES

    @property
    def doubtful(self) -> tuple[OpenCall, ...]:
        """Calls in flight that may have changed something, and whose outcome the evidence leaves unknown."""
        found = dict(self.local.findings)
        may_change = (o for o in self.pending if o.intent.cls != "read_only")
        return tuple(o for o in may_change if found.get(o.intent.call, "unknown") == "unknown")


# Why the agent gets a notice: cut off with calls in flight; released by its host in good order; paused; ended by itself
# with calls in flight; cut off without any; ended and continued as asked; the job was another agent's.
Alert = Literal["crash", "preempted", "paused", "unsettled", "cut_off", "over", "handoff"]


class Start(msgspec.Struct, frozen=True):
    """Start the agent with the user's arguments; nothing of an earlier run matters."""

    args: tuple[str, ...]
    why: str
    warnings: tuple[str, ...] = ()


class StartAgain(msgspec.Struct, frozen=True):
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


class Resume(msgspec.Struct, frozen=True):
    """Restore and resume `session`, or make it anew if it was not saved. `finished` calls may be missing in its file
    and are put back, then `dangling`. `alone`: nobody is asked about a call with unknown outcome; the agent verifies
    and decides by itself.
    `warnings`: sentences for the screen and the prompt."""

    session: str
    args: tuple[str, ...]
    alert: Alert
    dangling: tuple[OpenCall, ...]
    finished: tuple[EndedCall, ...]
    why: str
    alone: bool = False
    warnings: tuple[str, ...] = ()


class Refuse(msgspec.Struct, frozen=True):
    """Start nothing: raise `error()`, whose class knows the exit code. The log keeps what it holds."""

    kind: type[WalAgentError]
    what: str
    hint: str

    def error(self) -> WalAgentError:
        return self.kind(self.what, self.hint)


Plan = Start | StartAgain | Resume | Refuse


def is_other_project(then: Iterable[str], here: Iterable[str]) -> bool:
    """Whether both are known and nothing indicates that they are one project.

    What both sides know of one kind must differ, and nothing else be equal: a shallow clone knows no first commit, a
    repository without a remote no origin. One origin has many spellings (ssh, https, with and without .git)."""
    old, new = _by_kind(then), _by_kind(here)
    both = old.keys() & new.keys()
    return bool(both) and not any(old[kind] & new[kind] for kind in both)


def describe_project(identity: Iterable[str]) -> str:
    """The project in words, for people: its origin, else its first commit."""
    kinds = _by_kind(identity, spell=str)
    for value in sorted(kinds.get("origin", ())):
        return safe(value, SHOWN_STEP)
    return next((f"first commit {safe(value[:12])}" for value in sorted(kinds.get("root", ()))), "unknown")


def _by_kind(identity: Iterable[str], spell: Callable[[str], str] | None = None) -> dict[str, set[str]]:
    spell = spell or _normalize_url
    found: dict[str, set[str]] = {}
    for text in identity:
        kind, _, value = text.partition(":")
        if value:
            found.setdefault(kind, set()).add(spell(value) if kind == "origin" else value)
    return found


def _normalize_url(url: str) -> str:
    """`host/path` of an origin, without what clones of one project differ in."""
    found = _URL.fullmatch(url) or _SCP.fullmatch(url)
    flat = f"{found['host'].lower()}/{found['path'].lstrip('/')}" if found else url
    return flat.rstrip("/").removesuffix(".git")


def refuse_damaged(c: PlanInputs) -> Plan:
    assert c.local.damage is not None
    error = damaged_log_error(c.local.damage)
    return Refuse(Damaged, error.what, error.hint)


def refuse_agent(c: PlanInputs) -> Plan:
    what = messages.other_agent(safe(c.state.owner_agent, SHOWN_NAME), c.opening.agent)
    return Refuse(ConfigError, what, messages.OTHER_NAME)


def refuse_command(c: PlanInputs) -> Plan:
    what = messages.other_command(safe(c.home.args[0], SHOWN_PROGRAM), safe(c.opening.args[0], SHOWN_PROGRAM))
    return Refuse(ConfigError, what, messages.OTHER_NAME)


def refuse_workspace(c: PlanInputs) -> Plan:
    theirs, ours = safe(c.home.workspace, SHOWN_FOLDER), safe(c.opening.workspace, SHOWN_FOLDER)
    return Refuse(ConfigError, messages.other_folder(theirs, ours), messages.OTHER_FOLDER)


def refuse_foreign(c: PlanInputs) -> Plan:
    what = messages.other_repository(describe_project(c.identity), describe_project(c.local.identity))
    return Refuse(ConfigError, what, messages.OTHER_REPOSITORY)


def halt_crash_loop(c: PlanInputs) -> Plan:
    found, minutes = c.crashes, c.policy.crash_window / 60
    place, ways = lease_policy.describe_place(c.state, found), lease_policy.describe_classes(found)
    return Refuse(CrashLoop, messages.crash_loop(len(found), minutes, place, ways), messages.SEE_CRASHES)


def halt_stuck(c: PlanInputs) -> Plan:
    assert c.stuck is not None
    call, how = c.stuck.call, lease_policy.describe_class(c.stuck.cls)
    what = messages.stuck(lease_policy.describe_call(call.intent) if call else "", how)
    return Refuse(CrashLoop, what, messages.stuck_hint(call.intent.call if call else None))


def halt_unknown(c: PlanInputs) -> Plan:
    return Refuse(PersonNeeded, messages.halted(_calls(c)), messages.SETTLE_EACH)


def refuse_to_forget(c: PlanInputs) -> Plan:
    return Refuse(PersonNeeded, messages.would_forget(_calls(c)), messages.SETTLE_EACH)


def _calls(c: PlanInputs) -> str:
    return ", ".join(f"#{o.intent.call} {o.intent.tool}" for o in c.pending[:SHOWN_CALLS])


# ---- going on --------------------------------------------------------------------------------------------------------


def resume_alone(c: PlanInputs) -> Plan:
    decided = take_over_from_agent(c) if c.state.handoff is not None else resume_dangling(c)
    assert isinstance(decided, Resume | StartAgain)
    return replace(decided, alone=True)


def take_over_from_agent(c: PlanInputs) -> Plan:
    """In the session that this agent has from before, or in a new one."""
    assert c.state.handoff is not None
    return _resume_or_start_again(c, "handoff", messages.handed_over_why(safe(c.state.handoff.before, SHOWN_NAME)))


def resume_dangling(c: PlanInputs) -> Plan:
    alert: Alert = "crash"
    if c.pause is not None:
        alert = "paused"
    elif c.cause == "released" and not c.died:
        alert = "preempted"
    elif not c.died and (c.state.ended is not None or c.cause in ("closed", "first")):
        alert = "unsettled"
    return _resume_or_start_again(c, alert, messages.with_calls(_describe_end(c), len(c.pending)))


def start(c: PlanInputs) -> Plan:
    if c.state.home_opening is None or c.cause in ("first", "closed"):
        return Start(c.opening.args, messages.NOTHING_TO_RECOVER)
    return StartAgain(c.args, None, None, (), (), messages.nothing_recorded(_describe_end(c)))


def resume_idle(alert: Alert) -> Callable[[PlanInputs], Plan]:
    """No call is open."""

    def resume(c: PlanInputs) -> Plan:
        idle = messages.NOT_KNOWN if c.local.unlogged else messages.NONE_OPEN
        return _resume_or_start_again(c, alert, f"{_describe_end(c)}; {idle}")

    return resume


def _resume_or_start_again(c: PlanInputs, alert: Alert, why: str) -> Plan:
    resumed = c.captured or (c.policy.named and c.state.session != "" and alert != "handoff")
    if resumed and not SESSION.fullmatch(c.state.session):  # it would become an argument of the agent
        return Refuse(Damaged, messages.NO_SESSION_ID, messages.TAKE_OUT)
    if resumed:
        return Resume(c.state.session, c.args, alert, c.pending, c.finished, why)
    prompt = c.state.prompt.prompt if c.state.prompt else None
    reported = alert if c.pending or c.finished or c.state.unlogged or alert == "handoff" else None
    return StartAgain(c.args, reported, prompt, c.pending, c.finished, messages.not_captured(why))


# ---- words -----------------------------------------------------------------------------------------------------------


def describe_version_change(c: PlanInputs) -> str:
    then, now = safe(c.home.agent_version, SHOWN_NAME), safe(c.opening.agent_version, SHOWN_NAME)
    return messages.other_version(c.opening.agent, then, now)


def describe_steps(c: PlanInputs) -> str:
    steps = list(c.state.undecided_steps.items())
    named = [(name, at.begun.command) for name, at in steps[:SHOWN_CALLS] if at.begun]
    shown = [f"{safe(name, SHOWN_STEP)} ({show_words(command, SHOWN_PROGRAM)})" for name, command in named]
    return messages.steps_cut_off(shown, len(steps))


def _describe_end(c: PlanInputs) -> str:
    home = c.state.home_opening
    host = home.host.name if home else "its host"
    if c.pause is not None:
        return messages.paused_on(host, safe(c.pause.reason, SHOWN_PROGRAM) if c.pause.reason else "")
    if c.died and c.state.ended is not None:
        return messages.died_on(host, lease_policy.describe_class(c.state.ended.cls))
    if c.opening.cause == "closed" and c.cause != "closed":
        return messages.ended_on(host)  # a person settled its last call since, and nothing was left to do
    match c.cause:
        case "released":
            return messages.given_up_on(host, yield_reason(c.state.ended.why) if c.state.ended else "")
        case "closed":
            return messages.incomplete_on(host)
        case _:
            return messages.cut_off_on(host)


def decide(before: State, opening: Opening, local: LocalFacts, policy: Policy) -> Plan:
    """Decide what to do, once this run's opening is in the log. Total; no call in flight is dropped (I8)."""
    inputs = PlanInputs(before, opening, local, policy)
    decided = next(row.then(inputs) for row in TABLE if row.when(inputs))
    if isinstance(decided, Refuse):
        return decided
    return replace(decided, warnings=tuple(remark.then(inputs) for remark in REMARKS if remark.when(inputs)))


# ---- conditions ------------------------------------------------------------------------------------------------------


def _other_command(c: PlanInputs) -> bool:
    """Where any command can be run, its program is the agent."""
    home = c.state.home_opening
    if not c.local.unlogged or home is None or not home.args or not c.opening.args or home.agent != c.opening.agent:
        return False
    return PurePath(home.args[0]).name != PurePath(c.opening.args[0]).name


def _other_workspace(c: PlanInputs) -> bool:
    home = c.state.home_opening
    if home is None or home.workspace == c.opening.workspace or not c.local.home_exists:
        return False
    return home.host.name == c.opening.host.name or home.host.boot == c.opening.host.boot


def _cut_off(c: PlanInputs) -> bool:
    return c.died or c.state.turn == "started" or c.cause in ("dead", "unlocked", "first")


def _other_version(c: PlanInputs) -> bool:
    home = c.state.home_opening
    then = home.agent_version if home and home.agent == c.opening.agent else ""
    return bool(then and c.opening.agent_version) and then != c.opening.agent_version


# ---- the rows --------------------------------------------------------------------------------------------------------


class Row(msgspec.Struct, Generic[T], frozen=True):
    """One condition and what follows from it."""

    name: str
    when: Callable[[PlanInputs], bool]
    then: Callable[[PlanInputs], T]


OWNER_ROWS: tuple[Row[Plan], ...] = (  # whose job it is
    Row(
        "another agent's job",
        lambda c: c.state.home_opening is not None and c.state.owner_agent != c.opening.agent,
        refuse_agent,
    ),
    Row("another command's job", _other_command, refuse_command),
    Row("another folder's job", _other_workspace, refuse_workspace),
    Row("another repository's job", lambda c: is_other_project(c.identity, c.local.identity), refuse_foreign),
)

TABLE: tuple[Row[Plan], ...] = (
    Row("log damaged", lambda c: c.local.damage is not None, refuse_damaged),
    *OWNER_ROWS,
    Row("crash loop", lambda c: 0 < c.policy.crash_limit <= len(c.crashes), halt_crash_loop),
    Row(
        "died twice at the same place",
        lambda c: c.policy.crash_limit > 0 and not c.policy.fresh and c.stuck is not None,
        halt_stuck,
    ),
    Row(
        "calls in flight, fate unknown, halt",
        lambda c: c.policy.on_ambiguity == "halt" and bool(c.doubtful),
        halt_unknown,
    ),
    Row("calls in flight, and `--fresh`", lambda c: c.policy.fresh and bool(c.pending), refuse_to_forget),
    Row("`--fresh`", lambda c: c.policy.fresh, lambda c: Start(c.opening.args, messages.NEW_AS_ASKED)),
    Row(
        "calls in flight, fate unknown, resume",
        lambda c: c.policy.on_ambiguity == "resume" and bool(c.doubtful),
        resume_alone,
    ),
    Row("handed over from another agent", lambda c: c.state.handoff is not None, take_over_from_agent),
    Row("calls in flight", lambda c: bool(c.pending), resume_dangling),
    Row("nothing was recorded", lambda c: not c.state.ran and not (c.captured and c.local.talked), start),
    Row("paused", lambda c: c.pause is not None, resume_idle("paused")),
    Row("stopped and saved", lambda c: c.cause == "released" and not c.died, resume_idle("preempted")),
    Row("cut off", _cut_off, resume_idle("cut_off")),
    Row(
        "ended, and `--continue`",
        lambda c: c.policy.resume_closed,
        lambda c: _resume_or_start_again(c, "over", messages.CONTINUED),
    ),
    Row("ended", lambda c: True, lambda c: Start(c.opening.args, messages.WAS_OVER)),
)

REMARKS: tuple[Row[str], ...] = (
    Row("the agent's version changed", _other_version, describe_version_change),
    Row("steps were cut off", lambda c: bool(c.state.undecided_steps), describe_steps),
)


def is_other_persons(home: Opening, opening: Opening) -> bool:
    """Whether a start by `opening` takes the job over from another person: the user is another one, the folder has
    another id, and host or path differ. Openings of earlier versions name no user. Pure."""
    before, now = home.owner, opening.owner
    if not before.user or before.user == now.user or (before.folder and before.folder == now.folder):
        return False
    return before.person != now.person and (home.host.name, home.workspace) != (opening.host.name, opening.workspace)


def refuse_other_job(c: PlanInputs) -> Refuse | None:
    """Decide before the job is opened whether it is another agent's, command's, folder's or repository's: this depends
    on nothing that another run could still write. None where it is not, or where the log is damaged. Pure."""
    if c.local.damage is not None or c.state.home_opening is None:
        return None
    for row in OWNER_ROWS:
        if row.when(c):
            refused = row.then(c)
            assert isinstance(refused, Refuse)
            what = refused.what
            if row.then is not refuse_workspace and c.home.workspace != c.opening.workspace:
                folders = f"Its folder is {safe(c.home.workspace, 200)}; this one is {safe(c.opening.workspace, 200)}."
                what = f"{what} {folders}"
            return Refuse(NotThisJob, what, refused.hint)
    return None
