"""A run that a call started (`wal-agent run`): its own job's log says what became of it. It logs its tool calls itself,
so what is told here is only whether its task came to an end."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.evidence.model import Budget, Context, NestedRun, Outcome, Reach, Step
from wal_agent.records import Fact
from wal_agent.recovery.evidence.words import program_name
from wal_agent.shell.quote import inline


class Runs:
    def reach(self, step: Step) -> Reach | None:
        return None

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        return () if starts_run(step) else None

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        return judge_nested_run(around.inner(step), around.gone) if starts_run(step) else None


RUNS = Runs()


def starts_run(step: Step) -> bool:
    return program_name(step) == "wal-agent" and step.words[1:2] == ("run",)


def judge_nested_run(inner: NestedRun | None, gone: bool) -> Outcome:
    """`gone`: nothing that could still begin it runs any more."""
    if inner is None:
        return Outcome("unknown")
    job = inline(inner.job)
    if not inner.began:
        why = f"The log of job {job} has no run that this call began."
        return Outcome("not_started", why) if gone else Outcome("unknown", why)
    match inner.state:
        case "closed":
            return Outcome("completed", f"The log of job {job} says that this run came to the end of its task.")
        case "cut_off":
            return Outcome("partial", f"The log of job {job} says that this run was cut off.")
        case "released":
            return Outcome("partial", f"The log of job {job} says that this run stopped before the end of its task.")
        case "held":
            return Outcome("unknown", f"By its lease job {job} may still run.")
