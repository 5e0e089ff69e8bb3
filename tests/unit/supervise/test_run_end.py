"""supervise/run_end.py: what a run says and returns at its end."""

from __future__ import annotations

from tests.unit.recovery.cases import answer, intent, opening, started, state_of, turn
from wal_agent.supervise.run_end import may_continue, unsaved_line


def test_a_reason_that_is_a_sentence_gets_no_second_full_stop() -> None:
    assert unsaved_line("the disk is full...") == unsaved_line("the disk is full")
    assert unsaved_line("the disk is full").endswith(": the disk is full.")


def test_a_conversation_with_nothing_in_it_is_not_continued() -> None:
    """`--continue` is told where the next start would begin a new conversation, and there is an old one."""
    empty, said = state_of(opening(), started()), state_of(opening(), started(), turn("completed"))
    assert may_continue("closed", "completed", 0.0, said, False)
    assert not may_continue("closed", "completed", 0.0, empty, False)
    assert may_continue("closed", "completed", 0.0, empty, True), "no turn of such an agent is seen"
    assert not may_continue("left", "completed", 0.0, said, False)
    cut = state_of(opening(), started(), turn("started"), intent())
    assert not may_continue("released", "completed", 0.0, cut, False), "the next start goes on by itself"
    looked = state_of(opening(), started(), turn("started"), intent(), answer(1), turn("completed"))
    assert may_continue("released", "completed", 0.0, looked, False)
    assert not may_continue("released", "completed", 90.0, looked, False), "paused"
