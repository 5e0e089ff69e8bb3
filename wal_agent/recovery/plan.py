"""The one decision of a recovery (DESIGN 7): from what the log says, to what is done. Pure data to data.

`TABLE` is read from the top and the first row that matches decides, so adding a condition means placing it. Two rules
order it: whatever could lose a call in flight stands below the rows that keep it (I8), and what a person must decide
stands above what wal-agent may. `REMARKS` are told beside the decision, all that hold, and never make one.

`case` has what is looked at, `decided` what can come of it, `follows` what follows from each row; docs/RECOVERY.md
shows the rows as `table()` renders them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath

from wal_agent.records import Opening
from wal_agent.recovery import follows
from wal_agent.recovery.decided import Plan, Refuse
from wal_agent.recovery.identity import is_other_project
from wal_agent.recovery.plan_model import LocalFacts, PlanInputs, Policy, PriorLog


def decide(before: PriorLog, opening: Opening, local: LocalFacts, policy: Policy) -> Plan:
    """What to do, now that our opening has landed. Total, and no call in flight is dropped (I8)."""
    case = PlanInputs(before, opening, local, policy)
    decided = next(row.then(case) for row in TABLE if row.when(case))
    if isinstance(decided, Refuse):
        return decided
    return replace(decided, warnings=tuple(remark.says(case) for remark in REMARKS if remark.when(case)))


# ---- conditions ------------------------------------------------------------------------------------------------------


def _damaged(c: PlanInputs) -> bool:
    return c.local.damage is not None


def _other_agent(c: PlanInputs) -> bool:
    return c.before.home is not None and c.before.home.agent != c.opening.agent


def _other_command(c: PlanInputs) -> bool:
    """Where any command can be run, its program is the agent."""
    home = c.before.home
    if not c.local.unlogged or home is None or not home.args or not c.opening.args:
        return False
    return PurePath(home.args[0]).name != PurePath(c.opening.args[0]).name


def _other_workspace(c: PlanInputs) -> bool:
    home = c.before.home
    if home is None or home.workspace == c.opening.workspace or not c.local.home_exists:
        return False
    return home.host.name == c.opening.host.name or home.host.boot == c.opening.host.boot


def _other_repository(c: PlanInputs) -> bool:
    return is_other_project(c.identity, c.local.identity)


def _crash_loop(c: PlanInputs) -> bool:
    return 0 < c.policy.crash_limit <= len(c.crashes)


def _stuck(c: PlanInputs) -> bool:
    return c.policy.crash_limit > 0 and not c.policy.fresh and c.stuck is not None


def _halts(c: PlanInputs) -> bool:
    return c.policy.on_ambiguity == "halt" and bool(c.doubtful)


def _fresh_with_open_calls(c: PlanInputs) -> bool:
    return c.policy.fresh and bool(c.state.open)


def _fresh(c: PlanInputs) -> bool:
    return c.policy.fresh


def _resumes_in_doubt(c: PlanInputs) -> bool:
    return c.policy.on_ambiguity == "resume" and bool(c.doubtful)


def _dangling(c: PlanInputs) -> bool:
    return bool(c.state.open)


def _never_ran(c: PlanInputs) -> bool:
    return not c.state.ran and not (c.captured and c.local.talked)


def _paused(c: PlanInputs) -> bool:
    return c.pause is not None


def _released(c: PlanInputs) -> bool:
    return c.cause == "released" and not c.died


def _cut_off(c: PlanInputs) -> bool:
    return c.died or c.state.turn == "started" or c.cause in ("dead", "unlocked", "first")


def _resume_closed_asked(c: PlanInputs) -> bool:
    return c.policy.resume_closed


def _always(c: PlanInputs) -> bool:
    return True


def _other_version(c: PlanInputs) -> bool:
    home = c.before.home
    known = home is not None and home.agent_version and c.opening.agent_version
    return bool(known) and home is not None and home.agent_version != c.opening.agent_version


# ---- the rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One condition and what follows from it. `when_says` and `then_says` say the same for people, in a few words."""

    name: str
    when: Callable[[PlanInputs], bool]
    then: Callable[[PlanInputs], Plan]
    when_says: str
    then_says: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is told beside any decision to start, and decides nothing."""

    name: str
    when: Callable[[PlanInputs], bool]
    says: Callable[[PlanInputs], str]
    when_says: str
    then_says: str


TABLE = (
    Row(
        "log damaged",
        _damaged,
        follows.refuse_damaged,
        "a record is missing, or is not what was written",
        "nothing is started (73); told is what can still be had",
    ),
    Row(
        "another agent's job",
        _other_agent,
        follows.refuse_agent,
        "the job was last run with another agent",
        "nothing is started (78); another name: `--job`",
    ),
    Row(
        "another command's job",
        _other_command,
        follows.refuse_command,
        "the agent is `generic`, and the job was last run with another program",
        "nothing is started (78); another name: `--job`",
    ),
    Row(
        "another folder's job",
        _other_workspace,
        follows.refuse_workspace,
        "the job's folder is another one, and is still on this machine",
        "nothing is started (78); run it there, or `--job`",
    ),
    Row(
        "another repository's job",
        _other_repository,
        follows.refuse_foreign,
        "the saved working tree is of a repository that has neither origin nor first commit in common with this one",
        "nothing is started (78); run it there, or `--job`",
    ),
    Row(
        "crash loop",
        _crash_loop,
        follows.halt_crash_loop,
        "5 crashes in 10 minutes (an agent that died, or a whole run that was cut off), and nobody is at the terminal",
        "nothing is started (80); a person looks: `wal-agent log --crashes`",
    ),
    Row(
        "died twice at the same place",
        _stuck,
        follows.halt_stuck,
        "the last two runs died in the same way in an equal call, or with no call between them, and nobody is at the "
        "terminal",
        "nothing is started (80); a person settles the call, goes on at a terminal, or begins anew: `--fresh`",
    ),
    Row(
        "calls in flight, fate unknown, halt",
        _halts,
        follows.halt_unknown,
        "`--on-ambiguity halt`, and of a call that may have changed something it cannot be told what became of it",
        "nothing is started (79); a person settles it: `wal-agent ack`",
    ),
    Row(
        "calls in flight, and `--fresh`",
        _fresh_with_open_calls,
        follows.refuse_to_forget,
        "a new session was asked for, which would forget calls in flight",
        "nothing is started (79); a person settles them: `wal-agent ack`",
    ),
    Row(
        "`--fresh`",
        _fresh,
        follows.start_as_asked,
        "a new session was asked for, and no call is in flight",
        "start a new session; the saved one and the saved working tree are not put back",
    ),
    Row(
        "calls in flight, fate unknown, resume",
        _resumes_in_doubt,
        follows.resume_alone,
        "`--on-ambiguity resume`, and of a call that may have changed something it cannot be told what became of it",
        "restore and resume; each call is told with its verdict; in doubt the agent verifies and decides by itself",
    ),
    Row(
        "calls in flight",
        _dangling,
        follows.resume_dangling,
        "calls have an intent and no end",
        "restore and resume; each call is told with its verdict; in doubt the agent verifies, then stops and asks",
    ),
    Row(
        "nothing was recorded",
        _never_ran,
        follows.start,
        "no turn and no call of the newest session is in the log, and no conversation is saved in it",
        "start; after a crash with the arguments of before",
    ),
    Row(
        "paused",
        _paused,
        follows.resume_paused,
        "the last run was paused, and the pause is over or was ended",
        "restore and resume; told what it was paused for, and that nothing was in flight",
    ),
    Row(
        "given up in good order",
        _released,
        follows.resume_released,
        "the last run was drained, or gave the job up",
        "restore and resume; told that nothing was in flight",
    ),
    Row(
        "cut off",
        _cut_off,
        follows.resume_cut_off,
        "the last run died, or ended inside a turn",
        "restore and resume; told that nothing was in flight",
    ),
    Row(
        "ended, and `--continue`",
        _resume_closed_asked,
        follows.resume_closed,
        "the last run had come to its end, and going on was asked for",
        "restore and resume",
    ),
    Row(
        "ended",
        _always,
        follows.start_fresh,
        "the last run had come to its end",
        "start a new session",
    ),
)

REMARKS = (
    Remark(
        "the agent's version changed",
        _other_version,
        follows.describe_version_change,
        "the agent here is not the version that the session was saved with",
        "told on the screen and in the prompt",
    ),
)


def render_table() -> str:
    """`TABLE` and `REMARKS` as Markdown, for docs/RECOVERY.md."""
    head = ["| | When | What follows |", "|---|---|---|"]
    rows = [f"| {n}. {row.name} | {row.when_says} | {row.then_says} |" for n, row in enumerate(TABLE, 1)]
    beside = [f"| {remark.name} | {remark.when_says} | {remark.then_says} |" for remark in REMARKS]
    return "\n".join([*head, *rows, "", "Beside each start, where it holds:", "", *head, *beside])
