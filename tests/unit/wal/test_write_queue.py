"""wal/writer.py: what an append's ticket says, and the pure rules of R3 and R9."""

from __future__ import annotations

import math
import threading

import pytest

from wal_agent.errors import Fenced
from wal_agent.wal.writer import (
    CALL,
    DEFERRED,
    LATER,
    MAX_GATHER,
    NOW,
    SOON,
    InFlight,
    QueuedAppend,
    Ticket,
    UnackedSegments,
    Wait,
    must_spool,
    next_due,
    resolve_conflict,
)


def test_a_callback_runs_once_after_the_ack_and_at_once_from_then_on() -> None:
    seqs: list[int] = []
    ticket = Ticket()
    ticket.when_acked(lambda: seqs.append(ticket.seq))
    assert seqs == []
    ticket.ack(7)
    ticket.ack(7)
    assert seqs == [7]
    ticket.when_acked(lambda: seqs.append(-1))
    assert seqs == [7, -1]


def test_a_callback_runs_once_whichever_thread_is_faster() -> None:
    for _ in range(200):
        done: list[int] = []
        ticket, begin = Ticket(), threading.Barrier(2)

        def ack(ticket: Ticket = ticket, begin: threading.Barrier = begin) -> None:
            begin.wait()
            ticket.ack(1)

        other = threading.Thread(target=ack)
        other.start()
        begin.wait()
        ticket.when_acked(lambda done=done: done.append(1))  # type: ignore[misc]
        other.join()
        assert done == [1]


@pytest.mark.parametrize("what", ["acked", "spooled", "failed"])
def test_a_waiter_is_woken_by_every_decision(what: str) -> None:
    """One that is not waits longer than a test may take."""
    ticket = Ticket()
    assert ticket.wait(0) == "undecided"
    act = {"acked": lambda: ticket.ack(3), "spooled": ticket.spool, "failed": lambda: ticket.fail(Fenced("gone"))}[what]
    timer = threading.Timer(0.05, act)
    timer.start()
    if what == "failed":
        with pytest.raises(Fenced):
            ticket.wait(3600)
    else:
        assert ticket.wait(3600) == what
    timer.join()


def queued(since: float, wait: Wait = NOW) -> QueuedAppend:
    return QueuedAppend((b"r",), Ticket(), since, wait)


def sent(seq: int, since: float = 0.0, records: int = 1) -> InFlight:
    return InFlight(seq, b"%d" % seq, (Ticket(),), since, 1, records, 0.0)


def test_a_put_is_due_when_the_least_patient_append_says_so() -> None:
    assert next_due([], 0.03) == math.inf
    assert next_due([queued(100.0)], 0.03) == 100.0
    assert next_due([queued(100.0, DEFERRED)], 0.03) == 105.0
    assert next_due([queued(100.0, DEFERRED), queued(100.1)], 0.03) == 100.1


def test_outcomes_and_captures_wait_a_few_puts_time_and_are_bounded() -> None:
    assert next_due([queued(100.0, SOON)], 0.01) == pytest.approx(100.08)
    assert next_due([queued(100.0, LATER)], 0.01) == pytest.approx(100.32)
    assert next_due([queued(100.0, SOON)], 60.0) == 100.25 and next_due([queued(100.0, LATER)], 60.0) == 101.0
    assert next_due([queued(100.0, SOON)], 0.0) == 100.0, "a bucket that takes no time is not waited for"


def test_calls_that_begin_together_share_a_segment_within_a_bound() -> None:
    assert next_due([queued(100.0, CALL)], 0.03) == pytest.approx(100.0015)
    assert next_due([queued(100.0, CALL), queued(100.001, CALL)], 0.03) == pytest.approx(100.0025)
    many = [queued(100.0 + n / 1000, CALL) for n in range(50)]
    assert next_due(many, 0.03) == pytest.approx(100.009) and next_due(many, 60.0) == 100.0 + MAX_GATHER
    assert next_due([queued(100.0, CALL), queued(100.0, NOW)], 0.03) == 100.0
    assert next_due(many, 0.0) == 100.0


def test_an_outage_spools_after_its_time_and_at_once_behind_what_is_spooled() -> None:
    line = UnackedSegments()
    assert not must_spool(line, [], 100.0, 3.0)
    assert not must_spool(line, [queued(0.0, DEFERRED)], 100.0, 3.0), "it is worth no put"
    assert not must_spool(line, [queued(98.0)], 100.0, 3.0) and must_spool(line, [queued(97.0)], 100.0, 3.0)
    line.segments.append(sent(2, since=97.5))
    assert not must_spool(line, [queued(0.0)], 100.0, 3.0), "the oldest is the one in flight"
    assert must_spool(line, [], 100.5, 3.0)
    line.stored = 1
    assert must_spool(line, [], 97.5, 3.0)


def test_segments_leave_in_order_and_the_stored_ones_first() -> None:
    line = UnackedSegments()
    first, second = sent(2, records=2), sent(3, records=3)
    line.segments.extend([first, second])
    assert (line.first, line.last, line.unstored, line.unspooled) == (first, second, first, 5)
    assert not line.store(second), "only the oldest that is not stored"
    assert line.store(first) and (line.stored, line.unstored, line.unspooled) == (1, second, 3)
    assert line.tickets == [*first.tickets, *second.tickets]
    assert line.leave() and (line.first, line.stored) == (second, 0)
    assert not line.leave() and (line.first, line.unstored, line.stored) == (None, None, 0)
    line.segments.append(first)
    assert line.store(first)
    line.clear()
    line.segments.append(second)
    assert (line.unstored, line.unspooled) == (second, 3), "what comes behind a clearing is not stored"


def test_r3_what_is_at_my_seq() -> None:
    mine = sent(5)
    assert resolve_conflict(mine.data, 2, "a", mine, 2, "a") == "mine"
    assert resolve_conflict(mine.data, 3, "b", mine, 2, "a") == "mine"
    assert resolve_conflict(b"other", 3, "b", mine, 2, "a") == "fenced"
    assert resolve_conflict(b"other", 2, "a", mine, 2, "a") == "damage", "own bytes only, whoever is named"
