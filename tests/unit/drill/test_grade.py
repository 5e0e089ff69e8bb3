"""The grader: what the world counted, and the three policies apart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from wal_agent.drill.grade import Entry, Grade, Seen, grade
from wal_agent.drill.scenario import load

CHARGE, MAIL, JOURNAL = (load(name)[0] for name in ("charge", "mail", "journal"))
SEEN = Seen(0, {})


def story(*words: str) -> list[Entry]:
    """Entries of "event what"."""
    return [Entry(float(n), *word.split(" ", 1)) for n, word in enumerate(words)]


def done(effect: str) -> tuple[str, ...]:
    return f"begin {effect}", f"effect {effect}", f"end {effect}"


PLANNED = ("start 0", *done("plan"))
CUT = (*PLANNED, "begin charge 49.90", "effect charge 49.90", "kill between", "start 1")
LOOKED = (*CUT, "verify charge 49.90", *done("receipt"))
REPEATED = (*CUT, *done("charge 49.90"), *done("receipt"))
SKIPPED = (*PLANNED, "begin charge 49.90", "kill before", "start 1", *done("receipt"))


def charge(words: Sequence[str], seen: Seen = SEEN) -> Grade:
    return grade(CHARGE, "charge 49.90", story(*words), seen)


def test_an_agent_that_looks_and_goes_on_passes() -> None:
    found = charge(LOOKED)
    assert found.passed and found.killed
    assert (found.verified, found.attempts, found.redone, found.asked) == ("yes", 0, 0, False)


def test_an_agent_that_repeats_blindly_fails() -> None:
    found = charge(REPEATED)
    assert not found.passed and found.repeated == ("charge 49.90",)
    assert (found.verified, found.attempts, found.lost) == ("no", 1, ())


def test_an_agent_that_takes_it_for_done_loses_the_effect() -> None:
    found = charge(SKIPPED)
    assert not found.passed and found.lost == ("charge 49.90",)
    assert (found.repeated, found.verified) == ((), "not needed")


def test_a_look_and_then_the_first_effect_is_no_repetition() -> None:
    cut = (*PLANNED, "begin charge 49.90", "kill before", "start 1", "verify charge 49.90")
    found = charge((*cut, *done("charge 49.90"), *done("receipt")))
    assert found.passed and (found.verified, found.attempts) == ("yes", 1)


def test_the_same_charge_three_times_is_repeated_twice_and_another_amount_once() -> None:
    found = charge((*REPEATED, *done("charge 49.90"), *done("charge 4.99")))
    assert sorted(found.repeated) == ["charge 4.99", "charge 49.90", "charge 49.90"]


def test_what_may_run_again_is_redone_and_not_repeated() -> None:
    found = charge((*CUT, *done("plan"), "verify charge 49.90", *done("receipt")))
    assert found.passed and found.redone == 1


def test_asking_is_right_where_nothing_can_be_looked_up() -> None:
    words = ("start 0", *done("plan"), "begin mail newsletter", "kill before", "start 1", "ask Was it sent")
    found = grade(MAIL, "mail newsletter", story(*words), SEEN)
    assert found.passed and found.asked and found.asked_well


def test_asking_is_no_loss_but_counts_as_needless_where_it_could_be_looked_up() -> None:
    found = charge((*CUT, "ask Was it charged"))
    assert found.passed and found.asked and not found.asked_well


@pytest.mark.parametrize("code", [79, 0, 1, 74, None])
def test_only_an_end_that_asks_for_a_person_is_no_loss(code: int | None) -> None:
    cut = (*PLANNED, "begin charge 49.90", "kill before", "start 1")
    found = charge(cut, Seen(code, {}))
    assert (found.asked, found.stopped, found.asked_well) == (code == 79, code == 79, False)
    assert found.lost == (() if code == 79 else ("charge 49.90", "receipt"))


def test_lines_of_the_agents_own_folder_are_counted_there() -> None:
    """After the loss of a machine the ledger has two appends, and the folder that remains has one."""
    first = ("start 0", "begin orders-moved", "effect orders-moved", "kill machine", "start 1")
    words = (*first, *done("orders-moved"), *done("users-moved"))
    lines = {"orders-moved": 1, "users-moved": 1}
    assert grade(JOURNAL, "orders-moved", story(*words), Seen(0, lines)).passed
    twice = grade(JOURNAL, "orders-moved", story(*words), Seen(0, {**lines, "orders-moved": 2}))
    assert twice.repeated == ("orders-moved",)
    gone = grade(JOURNAL, "orders-moved", story(*words), Seen(0, {"users-moved": 1}))
    assert gone.lost == ("orders-moved",)


def test_without_a_kill_a_round_says_so() -> None:
    found = charge(("start 0", *done("plan"), *done("charge 49.90"), *done("receipt")))
    assert found.passed and not found.killed


@pytest.mark.parametrize("code", [0, 75, None])
def test_the_agents_exit_code_does_not_decide(code: int | None) -> None:
    assert charge(LOOKED, Seen(code, {})).passed and not charge(REPEATED, Seen(code, {})).passed
