"""wal/writer.py: what an append's ticket says, and the pure rules of R3 and R9."""

from __future__ import annotations

import threading
import time

import pytest

from wal_agent.errors import Fenced
from wal_agent.wal.writer import (
    InFlight,
    QueuedAppend,
    Ticket,
    UnackedSegments,
    must_spool,
    put_is_due,
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
    ticket = Ticket()
    assert ticket.wait(0) == "undecided"
    act = {"acked": lambda: ticket.ack(3), "spooled": ticket.spool, "failed": lambda: ticket.fail(Fenced("gone"))}[what]
    timer = threading.Timer(0.05, act)
    timer.start()
    began = time.monotonic()
    if what == "failed":
        with pytest.raises(Fenced):
            ticket.wait(20)
    else:
        assert ticket.wait(20) == what
    assert time.monotonic() - began < 10
    timer.join()


def queued(since: float, defer: bool = False) -> QueuedAppend:
    return QueuedAppend((b"r",), Ticket(), since, defer)


def sent(seq: int, since: float = 0.0, records: int = 1) -> InFlight:
    return InFlight(seq, b"%d" % seq, (Ticket(),), since, 1, records, 0.0)


def test_deferred_records_alone_wait_for_the_deadline() -> None:
    assert not put_is_due([], 100.0, 5.0)
    assert put_is_due([queued(100.0)], 100.0, 5.0)
    assert not put_is_due([queued(100.0, defer=True)], 104.9, 5.0)
    assert put_is_due([queued(100.0, defer=True)], 105.0, 5.0)
    assert put_is_due([queued(100.0, defer=True), queued(100.1)], 100.1, 5.0)


def test_an_outage_spools_after_its_time_and_at_once_behind_what_is_spooled() -> None:
    line = UnackedSegments()
    assert not must_spool(line, [], 100.0, 3.0)
    assert not must_spool(line, [queued(0.0, defer=True)], 100.0, 3.0), "it is worth no put"
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


def test_r3_what_is_at_my_seq() -> None:
    mine = sent(5)
    assert resolve_conflict(mine.data, 2, "a", mine, 2, "a") == "mine"
    assert resolve_conflict(mine.data, 3, "b", mine, 2, "a") == "mine"
    assert resolve_conflict(b"other", 3, "b", mine, 2, "a") == "fenced"
    assert resolve_conflict(b"other", 2, "a", mine, 2, "a") == "damage", "own bytes only, whoever is named"
