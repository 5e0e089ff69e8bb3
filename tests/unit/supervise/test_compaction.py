"""compaction.py of supervise and conversation: what is saved before a compaction, and what is said behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.supervise.crew import Post
from wal_agent.agents.base import Allow, Compacted, Compacting, ContextRequested, Deny
from wal_agent.conversation.compaction import AtHand, is_lost, missing, names, words_after
from wal_agent.events import Event, SummaryLost
from wal_agent.records import AnyRecord, Compaction, CompactionDone, Payload, PlanStep, Progress, Turn
from wal_agent.supervise.compaction import CompactionGuard, Surroundings

PLAN = (PlanStep(text="move the orders", state="done"), PlanStep(text="move the users", state="open"))
TASK = "move the shop to v2"
SUMMARY = "The orders were moved by the script that the user wrote."


class Watch:
    """The guard of a run whose agent has a task and a plan. `saves`: whether a capture succeeds."""

    def __init__(self, folder: Path, sync: bool = False) -> None:
        self.post = Post(folder, sync=sync)
        self.events: list[Event] = []
        self.post.listeners.append(self.events.append)
        self.saves = True
        asked = Payload(size=len(TASK), data=TASK.encode())
        self.post.job.writer.append(
            Turn(time=1.0, state="started", session="s", prompt=asked), Progress(time=1.5, plan=PLAN)
        )
        self.post.commit()
        self.guard = self.anew()

    def anew(self) -> CompactionGuard:
        around = Surroundings(lambda budget: self.saves, lambda trigger: None, lambda: True, lambda: 400)
        return CompactionGuard(self.post.context, self.post.gate, around)

    def begins(self) -> Allow | Deny:
        with self.post.committing():
            return self.guard.before(Compacting("s", done=False, trigger="auto"))

    def finds(self, key: str, summary: str = SUMMARY, history: str = "") -> None:
        self.guard.found(Compacted(key, summary, history or summary, 900), "s")
        self.post.commit()

    def records(self) -> list[AnyRecord]:
        return [r for r in self.post.log() if isinstance(r, Compaction | CompactionDone)]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


def test_what_the_new_history_lacks_is_said_once(watch: Watch) -> None:
    begun = watch.begins()
    assert isinstance(begun, Allow) and TASK in begun.words and "move the users" in begun.words
    assert not watch.guard.waiting
    watch.finds("a", history=f"{SUMMARY} The user wants to {TASK}.")
    found, done = watch.records()
    assert isinstance(found, Compaction) and found.plan == PLAN and found.tokens == 100
    assert isinstance(done, CompactionDone) and (done.n, done.missing, done.lost) == (1, ("plan",), False)
    words = watch.guard.take()
    assert "move the users" in words and TASK not in words and "wal-agent recall" in words
    watch.finds("a")
    assert watch.guard.take() == "" and len(watch.records()) == 2, "it is reported again"


def test_where_no_hook_reports_it_the_file_does(watch: Watch) -> None:
    """Gemini. The record is in front of the capture that has the new history; a resume shows old ones again."""
    watch.guard.know({"old"})
    watch.finds("old")
    assert watch.records() == [] and not watch.guard.waiting
    watch.finds("new")
    found, done = watch.records()
    assert isinstance(found, Compaction) and isinstance(done, CompactionDone) and found.n == done.n == 1
    assert TASK in watch.guard.take()


def test_an_agent_that_asks_is_answered_there_and_nowhere_else(watch: Watch) -> None:
    watch.begins()
    asked = watch.guard.context(ContextRequested("s"))
    assert TASK in asked and "move the users" in asked, "nobody knows what the summary has"
    watch.finds("a")
    assert not watch.guard.waiting
    watch.begins()
    watch.finds("b")
    assert TASK not in watch.guard.context(ContextRequested("s", Compacted("b", SUMMARY, f"{TASK} move the users")))
    assert not watch.guard.waiting
    assert [r.n for r in watch.records() if isinstance(r, CompactionDone)] == [1, 2]


@pytest.mark.parametrize("asks", [True, False])
def test_an_empty_summary_is_reported_once_and_mended(watch: Watch, asks: bool) -> None:
    watch.begins()
    empty = Compacted("a", "", "")
    if asks:
        assert "its summary is empty" in watch.guard.context(ContextRequested("s", empty))
    watch.guard.found(empty, "s")
    watch.post.commit()
    assert asks or "its summary is empty" in watch.guard.take()
    assert [e for e in watch.events if isinstance(e, SummaryLost)] == [SummaryLost(1, True)]
    assert [c.lost for c in watch.post.state.compactions] == [True]


def test_what_could_not_be_saved_is_not_compacted_where_sync_is_asked_for(tmp_path: Path) -> None:
    synced = Watch(tmp_path, sync=True)
    synced.saves = False
    assert isinstance(synced.begins(), Deny)
    synced.saves = True
    assert isinstance(synced.begins(), Allow)
    assert isinstance(synced.guard.before(Compacting("s", done=False)), Deny), "the bucket does not answer"
    plain = Watch(tmp_path)
    plain.saves = False
    assert isinstance(plain.begins(), Allow)


def test_a_compaction_of_the_run_before_is_completed_by_the_next(watch: Watch) -> None:
    """pi ends before it has asked for context."""
    watch.begins()
    watch.guard = watch.anew()
    watch.guard.context(ContextRequested("s", Compacted("a", SUMMARY, SUMMARY)))
    watch.post.commit()
    watch.begins()
    assert [type(r).__name__ for r in watch.records()] == ["Compaction", "CompactionDone", "Compaction"]
    assert [r.n for r in watch.records() if isinstance(r, Compaction)] == [1, 2]


@pytest.mark.parametrize(
    ("summary", "lost"),
    [
        ("", True),
        (" \n.", True),
        ("We did.", True),
        ("x" * 20, False),
        ("修复了登录错误并且添加了新的测试用例而且更新了文档", False),
    ],
)
def test_a_summary_is_lost_when_it_says_nothing(summary: str, lost: bool) -> None:
    assert is_lost(summary) is lost


def test_blanks_make_no_difference_and_foreign_text_stays_quoted() -> None:
    known = AtHand("move the shop", ("a step",), ((3, "Bash", "make deploy"),))
    assert names(missing(known, "they\nmove   the shop, a  step\nby make deploy")) == ()
    assert missing(known, None) == known and names(known) == ("task", "plan", "calls")
    said = words_after(1, AtHand("a\x1b[2J"))
    assert "\x1b" not in said and "`a" in said
