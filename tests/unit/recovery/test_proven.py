from __future__ import annotations

import pytest

from wal_agent.records import Finding, Recovery, Verdict
from wal_agent.recovery.proven import carry_over

NOTHING = Verdict(call=3, finding="unknown", why="Not here.", verify="git ls-remote origin main")


def recovered(*verdicts: Verdict) -> Recovery:
    return Recovery(time=1.0, from_epoch=1, verdicts=verdicts, told="")


@pytest.mark.parametrize("finding", ["completed", "not_started"])
def test_a_finding_stands_where_nothing_is_known_any_more(finding: Finding) -> None:
    proof = Verdict(call=3, finding=finding, why="It is so.")
    (once,) = carry_over([NOTHING], recovered(proof), lambda call: True)
    assert once == Verdict(call=3, finding=finding, why="Found at the start before: It is so.", verify=NOTHING.verify)
    assert carry_over([NOTHING], recovered(once), lambda call: True) == (once,)


def test_what_is_seen_now_wins() -> None:
    seen = Verdict(call=3, finding="not_started", why="As before.")
    assert carry_over([seen], recovered(Verdict(call=3, finding="completed", why="x")), lambda call: True) == (seen,)


def test_a_finding_of_files_that_are_not_here_says_too_much() -> None:
    proof = recovered(Verdict(call=3, finding="completed", why="x"), Verdict(call=4, finding="completed", why="y"))
    four = Verdict(call=4, finding="unknown", why="")
    now = carry_over([NOTHING, four], proof, lambda call: call >= 4)
    assert [v.finding for v in now] == ["unknown", "completed"]


def test_nothing_stands_of_other_calls_or_of_no_recovery() -> None:
    assert carry_over([NOTHING], None, lambda call: True) == (NOTHING,)
    assert carry_over([NOTHING], recovered(), lambda call: True) == (NOTHING,)
    others = recovered(Verdict(call=2, finding="completed", why="x"), Verdict(call=3, finding="partial", why="x"))
    assert carry_over([NOTHING], others, lambda call: True) == (NOTHING,)
