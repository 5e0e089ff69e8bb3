"""supervise/checkpoints.py: when a checkpoint is made, that it costs no put of its own, and that it harms nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.supervise.crew import Post
from tests.unit.wal.world import intent
from wal_agent.agents.base import Compacting
from wal_agent.conversation import checkpoint as pure
from wal_agent.conversation.checkpoint import Occasion, checkpoint_of, read_document
from wal_agent.errors import UsageError
from wal_agent.events import CheckpointFailed, Event
from wal_agent.records import AnyRecord, Checkpoint, Compaction, FileDelta, PhaseName, Progress, Turn
from wal_agent.supervise import checkpoints
from wal_agent.supervise.checkpoints import APART, Checkpointer
from wal_agent.supervise.compaction import CompactionGuard, Surroundings
from wal_agent.wal.reader import replay


class Desk:
    def __init__(self, folder: Path, checkpoint: float = 300.0) -> None:
        self.post = Post(folder)
        self.events: list[Event] = []
        self.post.listeners.append(self.events.append)
        self.log(Turn(time=1.0, state="started", session="s"))
        context = self.post.context
        self.made = Checkpointer(replace(context, settings=replace(context.settings, checkpoint=checkpoint)))

    def log(self, *records: AnyRecord) -> None:
        self.post.job.writer.append(*records)
        self.post.commit()

    def work(self, seconds: float, phase: PhaseName = "executing_tools") -> None:
        for _ in range(int(seconds)):
            self.post.world.clock.at += 1
            self.made.tick(phase)

    def kept(self) -> list[Checkpoint]:
        self.post.world.clock.at += 10  # what is deferred is due
        self.post.commit()
        return [r for r in self.post.log() if isinstance(r, Checkpoint)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_one_after_each_interval_of_work_in_which_something_happened(desk: Desk) -> None:
    desk.work(1000)
    assert desk.kept() == [], "nothing was new"
    desk.log(intent(1))
    desk.work(10)
    desk.work(1000, "awaiting_user")
    assert [c.trigger for c in desk.kept()] == ["periodic"]
    desk.log(intent(2))
    desk.work(280)
    desk.work(1000, "awaiting_user")
    assert len(desk.kept()) == 1, "a person's time is no work"
    desk.work(30)
    assert [c.number for c in desk.kept()] == [1, 2]


def test_a_change_of_phase_makes_one_but_not_each(desk: Desk) -> None:
    desk.work(APART)
    desk.log(intent(1))  # one that may change something: executing
    desk.work(6)
    assert [c.trigger for c in desk.kept()] == ["phase_change"]
    assert pure.task_phase(desk.post.job.writer.state) == "executing"
    for n in range(2, 12):
        desk.log(msgspec.structs.replace(intent(n), cls="read_only"))
    assert pure.task_phase(desk.post.job.writer.state) == "reviewing"
    desk.work(APART - 30)
    assert len(desk.kept()) == 1
    desk.work(30)
    assert [c.trigger for c in desk.kept()] == ["phase_change"] * 2


def test_it_rides_with_other_records(desk: Desk) -> None:
    """A checkpoint costs no put of its own."""
    puts = len(desk.post.world.bucket.puts)
    assert desk.made.make("periodic") is not None
    desk.post.commit()
    assert len(desk.post.world.bucket.puts) == puts
    desk.log(intent(1))
    assert len(desk.post.world.bucket.puts) == puts + 1
    assert [type(r).__name__ for r in desk.post.log()[-2:]] == ["Checkpoint", "Intent"]


def test_rebuilt_from_the_log_it_equals_the_one_made(desk: Desk) -> None:
    desk.log(intent(1), Progress(time=3.0, title="T", progress=20))
    desk.made.make("manual", defer=False)
    (made,) = desk.kept()
    said = read_document(made)
    found = replay(desk.post.world.bucket, desk.post.job.keys, said.record)
    again = checkpoint_of(
        found.state, Occasion(said.job, said.agent, found.seq, made.trigger, made.time), said.checkpoint_id
    )
    assert again == made


def answer(desk: Desk, by_agent: bool = True, **question: Any) -> dict[str, Any]:
    with desk.post.committing():
        return desk.made.answer(question, by_agent)


def test_what_is_asked_for_is_durable_and_holds_what_was_said(desk: Desk) -> None:
    done = answer(desk, title="Move it", progress=30, note="half", plan=[{"text": "a", "state": "done"}])
    assert done == {"job": "shop", "number": 1}
    (made,) = desk.kept()
    found = read_document(made)
    assert found.active_task is not None and found.context.completed_steps == ["a"]
    assert (found.active_task.title, found.active_task.progress, found.trigger) == ("Move it", 30, "manual")
    assert [r.by for r in desk.post.log() if isinstance(r, Progress)] == ["agent"]
    assert answer(desk, by_agent=False)["number"] == 2


@pytest.mark.parametrize(
    "question",
    [{"title": 3}, {"x": 1}, {"phase": "resting"}, {"plan": "a"}, {"plan": [{"text": "a", "state": "x"}]}],
)
def test_a_question_that_is_none_is_refused(desk: Desk, question: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        answer(desk, **question)
    assert desk.kept() == []


def test_a_plan_that_would_be_cut_is_refused(desk: Desk) -> None:
    with pytest.raises(UsageError, match="501 steps"):
        answer(desk, plan=[{"text": "a", "state": "open"}] * 501)
    assert desk.kept() == []


def test_a_percentage_beyond_bounds_is_refused(desk: Desk) -> None:
    with pytest.raises(UsageError, match="101"):
        answer(desk, progress=101)
    assert desk.kept() == []


def test_a_failure_is_reported_once_and_harms_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "checkpoint_of", lambda *_, **__: 1 // 0)
    desk.log(intent(1))
    desk.work(1000)
    assert desk.made.make("manual") is None
    assert [type(e) for e in desk.events if isinstance(e, CheckpointFailed)] == [CheckpointFailed]


def test_numbers_go_on_in_the_next_run(desk: Desk) -> None:
    desk.made.make("manual", defer=False)
    assert [c.number for c in desk.kept()] == [1]
    again = Checkpointer(desk.post.context)
    again.make("manual", defer=False)
    assert [c.number for c in desk.kept()] == [1, 2]


def test_before_a_shutdown(desk: Desk) -> None:
    desk.made.before("pre_shutdown")
    assert [c.trigger for c in desk.kept()] == ["pre_shutdown"]


def test_without_an_interval_only_what_is_asked_for(tmp_path: Path) -> None:
    desk = Desk(tmp_path, checkpoint=0.0)
    desk.log(intent(1))
    desk.work(1000)
    desk.made.before("pre_compaction")
    desk.made.before("pre_shutdown")
    assert desk.kept() == []
    assert answer(desk, title="Move it")["number"] == 1


def test_a_compaction_is_logged_behind_a_capture_and_a_checkpoint(desk: Desk) -> None:
    delta = FileDelta(time=2.0, path="main", size=7, sha256="ab", edits=(), session="s")
    context = desk.post.context

    def save(budget: float) -> bool:
        context.job.writer.append(delta)
        return True

    guard = CompactionGuard(context, desk.post.gate, Surroundings(save, desk.made.before, lambda: False, lambda: 4000))
    with desk.post.committing():
        guard.before(Compacting("s", done=False, trigger="auto"))
    (found,) = context.job.writer.state.compactions
    assert (found.n, found.files, found.trigger) == (1, (("main", 7, "ab"),), "auto")
    *_, captured, made, record = desk.post.log()
    assert isinstance(captured, FileDelta) and isinstance(made, Checkpoint) and isinstance(record, Compaction)
    assert record.tokens == 1000, "bytes by four, where the agent counts none"
