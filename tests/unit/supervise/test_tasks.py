"""supervise/tasks.py: a task's calls are bound by the runs around it, and counted against all budgets."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.recovery.cases import intent, opening, state_of
from wal_agent.agents import AGENTS
from wal_agent.bucket import open_bucket
from wal_agent.cli.task import child_place
from wal_agent.config import Settings
from wal_agent.conversation.rewrite import parse_policy
from wal_agent.errors import UsageError
from wal_agent.operate.at_rest import JobAccess
from wal_agent.operate.task_child import TaskJob, run_child, summarize
from wal_agent.paths import MARKER
from wal_agent.records import TaskOf
from wal_agent.supervise.rewrite import Home
from wal_agent.supervise.tasks import VARIABLE, CallerRun, TaskBounds, TaskStart, read_task, spent_by
from wal_agent.wal.keys import Keys


@dataclass
class Clock:
    at: float = 100.0

    def boot(self) -> float:
        return self.at

    def now(self) -> float:
        return self.at

    def awake(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@dataclass
class Lease:
    clock: Clock
    until: float = 130.0

    def may_allow(self) -> bool:
        return self.clock.at < self.until

    def seconds_left(self) -> float:
        return max(0.0, self.until - self.clock.at)


class Nest:
    """Runs inside each other, the outermost first; each asks the one before it."""

    def __init__(self, *budgets: int) -> None:
        self.clock = Clock()
        self.leases = [Lease(self.clock) for _ in budgets]
        self.refusals = [""] * len(budgets)
        self.epochs = [3] * len(budgets)
        self.bounds: list[TaskBounds] = []
        for n, budget in enumerate(budgets):
            caller = CallerRun(self.teller(n - 1), 3, self.bounds[n - 1].counted) if n else None
            self.bounds.append(TaskBounds(self.leases[n], self.clock, caller, budget))

    def teller(self, n: int) -> Any:
        return lambda question: self.bounds[n].answer(question, self.epochs[n], self.refusals[n])


def test_a_run_that_is_no_task_is_bound_by_its_own_lease_alone() -> None:
    (run,) = Nest(0).bounds
    assert run.until() == math.inf and run.may_allow() and run.take_call() and not run.counted


def test_each_run_around_has_to_be_owner_and_its_lease_gives_the_date() -> None:
    nest = Nest(0, 0, 0)
    outer, _, inner = nest.bounds
    assert inner.until() == 130.0 and inner.may_allow()
    nest.leases[0].until = 110.0
    assert inner.until() == 110.0
    nest.clock.at = 110.0
    assert inner.until() == 0.0 and not inner.may_allow() and not outer.may_allow()


@pytest.mark.parametrize("why", ["fenced", "another epoch", "draining", "no answer", "not a number"])
def test_without_the_word_of_the_caller_nothing_is_allowed(why: str) -> None:
    nest = Nest(0, 0)
    task = nest.bounds[1]
    match why:
        case "fenced":
            nest.leases[0].until = 0.0
        case "another epoch":
            nest.epochs[0] = 4
        case "draining":
            nest.refusals[0] = "the machine goes away"
        case "no answer":
            task = TaskBounds(nest.leases[1], nest.clock, CallerRun(lambda _: None, 3))
        case _:
            task = TaskBounds(nest.leases[1], nest.clock, CallerRun(lambda _: {"left": "30"}, 3))
    assert task.until() == 0.0 and not task.may_allow()


def test_the_answer_counts_from_when_it_was_asked_for() -> None:
    nest = Nest(0, 0)
    tell = nest.teller(0)

    def slow(question: dict[str, Any]) -> Any:
        said = tell(question)
        nest.clock.at += 20.0
        return said

    task = TaskBounds(nest.leases[1], nest.clock, CallerRun(slow, 3))
    assert task.until() == 130.0


def test_the_calls_of_a_task_count_against_the_budgets_around_it() -> None:
    nest = Nest(3, 0, 9)
    outer, middle, inner = nest.bounds
    assert [inner.counted, middle.counted, outer.counted] == [True, True, True]
    assert [inner.take_call(), middle.take_call(), outer.take_call(), inner.take_call()] == [True, True, True, False]
    own = Nest(0, 2).bounds[1]
    assert [own.take_call() for _ in range(3)] == [True, True, False]


def test_what_earlier_runs_and_their_tasks_spent_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    nested = {"a": state_of(opening(), intent(1), intent(2)), "b": state_of(opening(), intent(1))}

    class Found:
        def __init__(self, state: Any) -> None:
            self.state = state

    monkeypatch.setattr("wal_agent.supervise.tasks.replay", lambda bucket, keys: Found(nested[keys.job]))
    state = state_of(opening(), intent(1))
    import msgspec

    from wal_agent.wal.state import TaskAt

    state = msgspec.structs.replace(state, tasks={"a": TaskAt(1, 1, 1), "b": TaskAt(2, 1, 2)})
    assert spent_by(None, state) == 4  # type: ignore[arg-type]


def test_what_the_command_says_is_read_back_and_damage_is_refused() -> None:
    import msgspec

    start = TaskStart(of=TaskOf(job="shop", epoch=2, checkpoint=4), budget=7, run="0" * 16)
    assert read_task({VARIABLE: msgspec.json.encode(start).decode()}) == start and read_task({}) is None
    with pytest.raises(UsageError):
        read_task({VARIABLE: "{"})
    assert CallerRun.of(TaskStart(of=TaskOf(job="shop")), {}) is None, "a person asked"
    other = CallerRun.of(start, {MARKER: "f" * 16})
    assert other is not None and other.ask({"ask": "call"}) is None, "another run's socket is never asked"


def test_an_agent_that_cannot_copy_its_session_writes_no_summaries(tmp_path: Path) -> None:
    home = Home("job", "", AGENTS["qwen"], tmp_path, {})
    place = TaskJob(open_bucket(f"file://{tmp_path}/bucket"), "job", "qwen", {})
    with pytest.raises(UsageError, match="Qwen Code has no form to copy a session") as refused:
        summarize(place, JobAccess(place.bucket, Keys("job"), 6.0, home.env), home, parse_policy("turns=1", 1), ())
    assert "--by-agent" in refused.value.hint


def test_a_file_of_the_folder_stands_in_for_no_module_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone may have a `wal_agent/` of its own; the child starts in it."""
    (tmp_path / "wal_agent").mkdir()
    for name in ("__init__.py", "__main__.py"):
        (tmp_path / "wal_agent" / name).write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    place = TaskJob(open_bucket("memory://stand-in"), "job", "no-such-agent", {})
    code, said = run_child(place, (), TaskStart(of=TaskOf(job="caller")), 60.0, once=False)
    assert (code, (tmp_path / "ran").exists()) == (UsageError.exit_code, False), said


def test_a_key_is_in_no_arguments_of_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of a machine reads them."""
    said = "import os, sys; sys.exit(os.environ['WAL_AGENT_ENCRYPTION_KEY_COMMAND'] + ' '.join(sys.argv))"
    monkeypatch.setattr("wal_agent.operate.task_child.PROGRAM", [sys.executable, "-c", said])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    settings = Settings(bucket="memory://keys", job="caller", encryption_key_command="echo k3y")
    context = SimpleNamespace(settings=settings, workspace=tmp_path)
    place = TaskJob(open_bucket("memory://keys"), "job", "pi", child_place(context))  # type: ignore[arg-type]
    _, told = run_child(place, ("-p", "look"), TaskStart(of=TaskOf(job="caller")), 60.0, once=False)
    assert told.startswith("echo k3y") and told.count("k3y") == 1 and "look" in told
