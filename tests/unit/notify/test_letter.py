"""When a message is tried, when it is told again, and when it is over."""

from __future__ import annotations

from wal_agent.notify import outbox as letters
from wal_agent.notify.message import Message
from wal_agent.notify.outbox import LATER, PATIENCE, STALE, Letter
from wal_agent.notify.targets import Target

ONE, TWO, LOUD = Target("json://one"), Target("json://two"), Target("json://loud", "person_needed")
NEWS = Message("recovery", "t", "b", "k")
HALT = Message("person_needed", "t", "b", "k", insists=True)


def made(message: Message = NEWS, now: float = 0.0) -> Letter:
    found = letters.letter(message, "job", now)
    assert found is not None
    return found


def test_it_goes_to_those_who_asked_for_its_level() -> None:
    assert letters.left(made(), [ONE, TWO, LOUD]) == [ONE, TWO]
    assert letters.left(made(HALT), [ONE, LOUD]) == [ONE, LOUD]


def test_who_took_it_is_not_asked_again_and_who_failed_is_alone() -> None:
    waiting = letters.failed(letters.taken(made(), ONE), TWO, 10.0, 0.0)
    assert letters.left(waiting, [ONE, TWO]) == [TWO]
    assert letters.when(waiting, TWO, 10.0) == 10.0 + letters.FIRST_PAUSE
    assert letters.wake([waiting], [ONE, TWO], 11.0) == 1.0


def test_pauses_grow_and_patience_ends() -> None:
    waiting, now, pauses = made(), 0.0, []
    while letters.left(waiting, [ONE]):
        waiting = letters.failed(waiting, ONE, now, 0.5)
        pauses.append(letters.when(waiting, ONE, now) - now)
        now += max(pauses[-1], 0.0)
    *tried, _ = pauses
    assert tried == sorted(tried) and max(tried) <= letters.LONGEST_PAUSE
    assert PATIENCE <= now <= PATIENCE + letters.LONGEST_PAUSE and len(pauses) < 20
    assert letters.next_round(waiting, now) is None


def test_a_halt_is_told_four_times_in_all() -> None:
    waiting: Letter | None = made(HALT)
    times, titles, now = [], [], 0.0
    while waiting is not None:
        now = max(now, letters.when(waiting, ONE, now))
        times.append(now)
        titles.append(letters.title(waiting))
        waiting = letters.next_round(letters.taken(waiting, ONE), now)
    assert times == [0.0, LATER[0], LATER[0] + LATER[1], sum(LATER)]
    assert titles == ["t", *(f"t (told for the {n} time)" for n in ("second", "third", "fourth"))]
    assert times[-1] < STALE, "no reminder is dropped for its age"


def test_what_was_just_said_is_not_said_again_but_a_halt_stays_in_mind() -> None:
    assert letters.letter(NEWS, "job", 5.0, said_before=True) is None
    later = letters.letter(HALT, "job", 5.0, said_before=True)
    assert later is not None and later.due == 5.0 + LATER[0] and later.later == LATER[1:] and later.insists
    assert "notify --ack" in letters.body(later)


def test_a_clock_that_was_set_back_puts_nothing_off() -> None:
    assert letters.when(made(now=1e9), ONE, 0.0) == 0.0
    assert letters.when(letters.failed(made(now=1e9), ONE, 1e9, 0.0), ONE, 0.0) == 0.0


def test_what_waited_for_a_day_is_stale() -> None:
    assert letters.stale(made(), STALE + 1) and not letters.stale(made(), STALE)
    assert letters.next_round(made(HALT), STALE + 1) is None
