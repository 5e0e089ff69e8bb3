"""When a message is tried, when it is told again, and when it is over."""

from __future__ import annotations

from wal_agent.notify import outbox as letters
from wal_agent.notify.message import Notification, Target
from wal_agent.notify.outbox import MAX_AGE, REMINDERS, RETRY_PERIOD, Letter

ONE, TWO, LOUD = Target("json://one"), Target("json://two"), Target("json://loud", "person_needed")
NEWS = Notification("recovery", "t", "b", "k")
HALT = Notification("person_needed", "t", "b", "k", insists=True)


def made(message: Notification = NEWS, now: float = 0.0) -> Letter:
    found = letters.make_letter(message, "job", now)
    assert found is not None
    return found


def test_it_goes_to_those_who_asked_for_its_level() -> None:
    assert letters.pending_targets(made(), [ONE, TWO, LOUD]) == [ONE, TWO]
    assert letters.pending_targets(made(HALT), [ONE, LOUD]) == [ONE, LOUD]


def test_who_took_it_is_not_asked_again_and_who_failed_is_alone() -> None:
    waiting = letters.mark_failed(letters.mark_delivered(made(), ONE), TWO, 10.0, 0.0)
    assert letters.pending_targets(waiting, [ONE, TWO]) == [TWO]
    assert letters.next_attempt(waiting, TWO, 10.0) == 10.0 + letters.FIRST_PAUSE
    assert letters.seconds_to_next([waiting], [ONE, TWO], 11.0) == 1.0


def test_pauses_grow_and_patience_ends() -> None:
    waiting, now, pauses = made(), 0.0, []
    while letters.pending_targets(waiting, [ONE]):
        waiting = letters.mark_failed(waiting, ONE, now, 0.5)
        pauses.append(letters.next_attempt(waiting, ONE, now) - now)
        now += max(pauses[-1], 0.0)
    *tried, _ = pauses
    assert tried == sorted(tried) and max(tried) <= letters.MAX_PAUSE
    assert RETRY_PERIOD <= now <= RETRY_PERIOD + letters.MAX_PAUSE and len(pauses) < 20
    assert letters.next_reminder(waiting, now) is None


def test_a_halt_is_told_four_times_in_all() -> None:
    waiting: Letter | None = made(HALT)
    times, titles, now = [], [], 0.0
    while waiting is not None:
        now = max(now, letters.next_attempt(waiting, ONE, now))
        times.append(now)
        titles.append(letters.title_of(waiting))
        waiting = letters.next_reminder(letters.mark_delivered(waiting, ONE), now)
    assert times == [0.0, REMINDERS[0], REMINDERS[0] + REMINDERS[1], sum(REMINDERS)]
    assert titles == ["t", *(f"t (sent for the {n} time)" for n in ("second", "third", "fourth"))]
    assert times[-1] < MAX_AGE, "no reminder is dropped for its age"


def test_what_was_just_said_is_not_said_again_but_a_halt_stays_in_mind() -> None:
    assert letters.make_letter(NEWS, "job", 5.0, said_before=True) is None
    later = letters.make_letter(HALT, "job", 5.0, said_before=True)
    assert later is not None and later.due == 5.0 + REMINDERS[0] and later.later == REMINDERS[1:] and later.insists
    assert "notify --ack" in letters.body_of(later)


def test_a_clock_that_was_set_back_puts_nothing_off() -> None:
    assert letters.next_attempt(made(now=1e9), ONE, 0.0) == 0.0
    assert letters.next_attempt(letters.mark_failed(made(now=1e9), ONE, 1e9, 0.0), ONE, 0.0) == 0.0


def test_what_waited_for_a_day_is_stale() -> None:
    assert letters.is_stale(made(), MAX_AGE + 1) and not letters.is_stale(made(), MAX_AGE)
    assert letters.next_reminder(made(HALT), MAX_AGE + 1) is None
