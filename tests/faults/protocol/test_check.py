"""docs/PROTOCOL.md: the model checker finds nothing with all rules on, and a violation with a rule off.

Only scenarios of a few seconds at most; the module's docstring says how to run all of them.
"""

from __future__ import annotations

import pytest

from tests.faults.protocol.check import SCEN, TTL_RULES, bfs, bfs_ttl

SLOW = {"A0c", "A3c", "A4c", "A6", "A7", "A9c", "A11", "A12", "V2r", "V5d", "V6"}  # 4 to 65 s each
ONE_OF_TWO = {"V2", "V9b", "V9c"}  # another rule still holds
BY_NAME = {name.split()[0]: (rules, feat) for name, rules, feat in SCEN}


@pytest.mark.parametrize("name", [name for name in BY_NAME if name[0] == "A" and name not in SLOW])
def test_all_rules_hold(name: str) -> None:
    """I2, I3 at every step; a fresh run can always open the job (not in a job that spools: R9)."""
    rules, feat = BY_NAME[name]
    found, states, exhausted, _ = bfs(rules, feat, rec=not feat.get("norec"))
    assert found == {} and exhausted and states > 1000


@pytest.mark.parametrize("name", [name for name in BY_NAME if name[0] == "V" and name not in SLOW | ONE_OF_TWO])
def test_without_a_rule_something_breaks(name: str) -> None:
    found, *_ = bfs(*BY_NAME[name])
    assert found
    assert all(1 < len(trace) <= 21 for _, trace in found.values())


@pytest.mark.parametrize("name", sorted(ONE_OF_TWO))
def test_one_rule_of_a_pair_is_enough(name: str) -> None:
    """Reopening without an opening segment is clean in a sealed job; each half of R5 repairs the same fault."""
    found, _, exhausted, _ = bfs(*BY_NAME[name])
    assert found == {} and exhausted


def test_a_ttl_that_changes_keeps_the_date_of_an_allow() -> None:
    """R7, where the lease says a longer ttl while the agent waits for a person."""
    states, late = bfs_ttl({})
    assert not late and states > 1000


@pytest.mark.parametrize("rule", sorted(TTL_RULES))
def test_without_a_rule_of_the_ttl_an_allow_comes_late(rule: str) -> None:
    assert bfs_ttl({rule: 0})[1]
