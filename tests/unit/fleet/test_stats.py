"""fleet/stats.py: what crashes cost, counted from logs alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recovery.cases import captured, end, intent, opening
from tests.unit.wal.test_codec import some_records
from wal_agent.fleet.stats import MACHINE, Count, spread, summarize
from wal_agent.records import AnyRecord, Recovery, RunEnded, Verdict


def counted(*records: AnyRecord) -> Count:
    found = Count()
    for record in records:
        found.add(record)
    return found


def recovery(call: int, seconds: float, put_back: int = 0) -> Recovery:
    verdict = Verdict(call=call, finding="unknown", why="")
    return Recovery(time=9.0, from_epoch=1, verdicts=(verdict,), told="", put_back=put_back, seconds={"all": seconds})


def test_a_lost_machine_and_what_followed() -> None:
    """A capture at 7, a call at 12 that was in flight, a recovery that found it, and the same call again."""
    late = intent(2, input=b'{"command":"deploy"}', time=12.0)
    again = intent(3, input=b'{"command":"deploy"}', time=2001.0)
    other = intent(4, input=b'{"command":"deploy --dry-run"}', time=2002.0)
    found = counted(
        opening(1), intent(1), end(1), captured(), late, opening(2, "dead"), recovery(2, 1.5, 1), again, other, again
    )
    assert (found.runs, found.calls, found.crashes) == (2, 5, {MACHINE: 1})
    assert (found.lost_seconds, found.lost_calls) == ([12.0 - captured().time], [1])
    assert (found.recoveries, found.put_back, found.verdicts) == (1, 1, {"unknown": 1})
    assert found.repeated == 1, "once, whatever follows"


def test_an_end_that_says_how() -> None:
    killed = RunEnded(time=9.0, code=-9, completed=False, cls="out_of_memory")
    done = RunEnded(time=9.0, code=0, completed=True, cls="completed")
    found = counted(opening(1), killed, opening(2, "released"), done, opening(3, "closed"), opening(4, "dead"))
    assert found.crashes == {"out_of_memory": 1, MACHINE: 1}


def test_percentiles_by_the_nearest_rank() -> None:
    found = spread([float(n) for n in range(1, 101)])
    assert (found.count, found.p50, found.p95, found.p99, found.most) == (100, 50.0, 95.0, 99.0, 100.0)
    assert spread([3.0]).p50 == spread([3.0]).p99 == 3.0 and spread([]).count == 0


@given(st.lists(some_records, max_size=25))
def test_any_log_can_be_counted(records: list[AnyRecord]) -> None:
    found = summarize([counted(*records)])
    assert found.repeated <= found.calls and found.jobs == 1
