"""combine: a call is completed or not begun only where all of its steps are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.evidence.model import Outcome
from wal_agent.records import Finding
from wal_agent.recovery.evidence.combine import NamedOutcome, combine_outcomes

FOUND = st.builds(
    Outcome, st.sampled_from(["completed", "not_started", "partial", "unknown"]), st.sampled_from(["", "So it is."])
)
EITHER = st.just(Outcome("completed", "It was so before.", either=True))


def told(*findings: Finding | str) -> list[NamedOutcome]:
    found = {"either": Outcome("completed", "Was so.", either=True)}
    return [NamedOutcome(f"`{n}`", found.get(f) or Outcome(f, f"{f} {n}.")) for n, f in enumerate(findings)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "finding"),
    [
        (("completed", "completed"), "completed"),
        (("not_started", "not_started"), "not_started"),
        (("completed", "not_started"), "partial"),
        (("completed", "partial", "not_started"), "partial"),
        (("partial", "not_started"), "partial"),
        (("not_started", "completed"), "unknown"),  # the order of the steps says that this cannot be
        (("partial", "partial"), "unknown"),
        (("completed", "unknown"), "unknown"),
        (("not_started", "unknown"), "unknown"),
        (("unknown", "unknown"), "unknown"),
        (("either", "not_started"), "not_started"),
        (("either", "completed"), "completed"),
        (("either", "either"), "completed"),
        (("either", "unknown"), "unknown"),
        ((), "unknown"),
    ],
)
def test_steps_together(steps: tuple[str, ...], finding: str) -> None:
    assert combine_outcomes(told(*steps)).finding == finding


def test_what_is_known_is_named() -> None:
    assert combine_outcomes(told("completed", "unknown")).why == "`0` completed. Of `1` nothing can be told."
    assert combine_outcomes(told("completed", "partial", "not_started", "not_started")).why == (
        "`0` completed; `2` and `3` have not begun; `1` was begun."
    )
    assert combine_outcomes(told("completed")).why == "completed 0."
    assert len(combine_outcomes(told(*["completed"] * 9, "not_started")).why) < 200


@given(st.lists(FOUND | EITHER, max_size=6))
def test_all_or_none(found: list[Outcome]) -> None:
    said = combine_outcomes([NamedOutcome(f"`{n}`", f) for n, f in enumerate(found)])
    findings = {f.finding for f in found if not f.either}
    if said.finding == "completed":
        assert found and findings <= {"completed"}
    if said.finding == "not_started":
        assert findings == {"not_started"}
    if said.finding == "partial":
        assert "unknown" not in findings and findings - {"not_started"} and findings != {"completed"}
