"""The report: rows, totals, and a page in which nothing of an agent's output lives."""

from __future__ import annotations

from msgspec.structs import replace

from tests.unit.drill.test_grade import LOOKED, REPEATED, charge, story
from wal_agent.drill.grade import Grade
from wal_agent.drill.play import Played, Round
from wal_agent.drill.report import facts, page, passed, table, totals, verdict
from wal_agent.drill.scenario import load

SCENARIO = load("charge")[0]


def played(grade: Grade, said: str = "") -> Played:
    return Played(Round(SCENARIO, SCENARIO.targets[0], "between", 1), grade, tuple(story(*LOOKED)), (said,))


GOOD, BAD = played(charge(LOOKED)), played(charge(REPEATED))
VOID = played(charge(("start 0",)))


def test_it_passes_only_if_something_was_killed_and_nothing_repeated_or_lost() -> None:
    assert passed([GOOD]) and not passed([GOOD, BAD]) and not passed([VOID])
    unkilled = played(replace(GOOD.grade, killed=False))
    assert passed([GOOD, unkilled]) and not passed([unkilled])
    assert "nothing was repeated" in verdict([GOOD]) and "1 effect repeated" in verdict([GOOD, BAD])


def test_the_table_and_the_totals_count_the_same() -> None:
    rows = table([GOOD, BAD])
    assert len(rows) == 3 and "charge 49.90" in rows[2] and "charge 49.90" not in rows[1]
    assert totals([GOOD, BAD])["repeated"] == 1
    found = facts([GOOD, BAD], "gemini", "wal-agent", "own", 1)
    assert not found.passed and found.rounds[1].repeated == ("charge 49.90",)


def test_what_an_agent_printed_is_inert_in_the_page() -> None:
    hostile = played(GOOD.grade, '<script>alert(1)</script><img src="https://evil.example">')
    text = page([hostile], "gemini", "wal-agent", "own", 1)
    assert "<script" not in text and "<img" not in text and "default-src 'none'" in text
