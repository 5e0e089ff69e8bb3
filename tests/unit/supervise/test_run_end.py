"""supervise/run_end.py: what a run says and returns at its end."""

from __future__ import annotations

from wal_agent.supervise.run_end import unsaved_line


def test_a_reason_that_is_a_sentence_gets_no_second_full_stop() -> None:
    assert unsaved_line("the disk is full...") == unsaved_line("the disk is full")
    assert unsaved_line("the disk is full").endswith(": the disk is full.")
