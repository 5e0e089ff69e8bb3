"""A run that a call started (`wal-agent run`): its own job's log says what became of it. It logs its tool calls itself,
so what is told here is only whether its task came to an end."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.records import Fact
from wal_agent.recovery.evidence.words import program
from wal_agent.recovery.quote import inline
from wal_agent.recovery.step import Around, Budget, Found, InnerRun, Reach, Step


class Runs:
    def reach(self, step: Step) -> Reach | None:
        return None

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        return () if is_run(step) else None

    def judge(self, step: Step, facts: Sequence[Fact], around: Around, budget: Budget) -> Found | None:
        return found(around.inner(step), around.gone) if is_run(step) else None


RUNS = Runs()


def is_run(step: Step) -> bool:
    return program(step) == "wal-agent" and step.words[1:2] == ("run",)


def found(inner: InnerRun | None, gone: bool) -> Found:
    """`gone`: nothing that could still begin it runs any more."""
    if inner is None:
        return Found("unknown")
    job = inline(inner.job)
    if not inner.began:
        why = f"The log of job {job} has no run that this call began."
        return Found("not_started", why) if gone else Found("unknown", why)
    match inner.state:
        case "closed":
            return Found("completed", f"The log of job {job} says that this run came to the end of its task.")
        case "cut_off":
            return Found("partial", f"The log of job {job} says that this run was cut off.")
        case "released":
            return Found("partial", f"The log of job {job} says that this run stopped before the end of its task.")
        case "held":
            return Found("unknown", f"By its lease job {job} may still run.")
