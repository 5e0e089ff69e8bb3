"""I8: what a report on a call makes of it. The table of supervise/ends.py, row by row, and what holds for all rows."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents.base import Status
from wal_agent.records import Class
from wal_agent.supervise.ends import HARMLESS, Outcome, Seen, outcome_of

CHANGING = [each for each in get_args(Class) if each not in HARMLESS]
STATUSES = st.sampled_from(get_args(Status))
SEEN = st.builds(Seen, st.sampled_from(CHANGING), *[st.booleans()] * 4)


@pytest.mark.parametrize("cls", CHANGING)
@pytest.mark.parametrize(
    ("status", "clean", "seen", "outcome"),
    [
        ("done", True, {}, "done"),
        ("done", False, {}, "done"),  # a command that ended with 1 is a completion
        ("failed", False, {}, "failed"),
        ("done", True, {"alive": True}, "runs_on"),  # ./charge.sh &
        ("failed", False, {"alive": True}, "runs_on"),
        ("done", True, {"left": True}, "cut"),  # the same, where the agent ends what its shell left
        ("runs_on", True, {}, "runs_on"),  # the agent's own background
        ("runs_on", True, {"stopping": True}, "runs_on"),
        ("done", True, {"stopping": True}, "done"),  # it came to its end inside the drain
        ("done", False, {"stopping": True}, "cut"),  # the agent ended it, and calls that its result
        ("failed", False, {"stopping": True}, "cut"),
        ("refused", False, {}, "refused"),  # the agent's own rules
        ("refused", False, {"begun": True}, "cut"),
        ("refused", False, {"stopping": True}, "cut"),  # what agents say of tools that they end with themselves
        ("refused", False, {"asked": True, "untouched": True, "stopping": True}, "refused"),
        ("cancelled", False, {}, "cut"),  # Esc, a time limit
        ("cancelled", False, {"asked": True, "untouched": True}, "refused"),  # No at its dialog
        ("cancelled", False, {"asked": True}, "cut"),  # the same, of a tool that cannot be seen to begin
        ("cancelled", False, {"asked": True, "begun": True}, "cut"),  # Yes, then Esc
        ("stopped", False, {"asked": True}, "cut"),  # words for a tool that had begun: Yes, then Esc, without a process
        (
            "cancelled",
            False,
            {"asked": True, "untouched": True, "stopping": True},
            "refused",
        ),  # a window closed over the dialog
    ],
)
def test_each_row(cls: Class, status: Status, clean: bool, seen: dict[str, bool], outcome: Outcome) -> None:
    assert outcome_of(status, clean, Seen(cls, **seen)) == outcome


@given(STATUSES, st.booleans(), SEEN)
def test_no_claim_ends_a_call_of_which_something_lives(status: Status, clean: bool, seen: Seen) -> None:
    alive = Seen(seen.cls, seen.stopping, seen.asked, begun=True, alive=True)
    assert outcome_of(status, clean, alive) in ("runs_on", "cut")


@given(STATUSES, SEEN)
def test_nothing_that_failed_while_a_stop_was_asked_for_is_over(status: Status, seen: Seen) -> None:
    stopping = Seen(seen.cls, True, seen.asked, begun=True, alive=seen.alive)
    assert outcome_of(status, False, stopping) in ("runs_on", "cut")


@pytest.mark.parametrize("cls", HARMLESS)
@given(status=STATUSES, clean=st.booleans(), seen=SEEN)
def test_what_may_be_done_again_is_left_open_only_while_it_runs(
    cls: Class, status: Status, clean: bool, seen: Seen
) -> None:
    found = outcome_of(status, clean, Seen(cls, seen.stopping, seen.asked, seen.begun, seen.alive))
    assert found == "runs_on" if (status, cls) == ("runs_on", "idempotent") else found in ("done", "failed", "refused")
