"""cli/log.py: the log is read from its end, for a bounded number of requests, and what is missing or
damaged in what is read is named."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import longlog
from tests.longlog import KEYS, Counted
from tests.tiers import examples
from wal_agent.bucket.base import Entry
from wal_agent.cli import log
from wal_agent.cli.log import Page, read_newest
from wal_agent.cli.view import read_view
from wal_agent.records import AnyRecord, Opening, Recovery, RunEnded

LONG = 12_000
RUNS = (1001, 1005, 5000, 11_001, 11_990)


@pytest.fixture(scope="module")
def shelf() -> Counted:
    bucket = Counted()
    longlog.write(bucket, LONG, RUNS)
    return bucket


@pytest.fixture
def long(shelf: Counted) -> Iterator[Counted]:
    """It is put back as it was."""
    before = dict(shelf._objects)
    shelf.requests, shelf.read = 0, []
    yield shelf
    for key in [key for key, stored in before.items() if shelf._objects.get(key) is not stored]:
        shelf.delete(key)
        shelf.put(key, before[key].data)


def numbers(page: Page) -> list[int]:
    return [seq for seq, _ in page.segments]


def crashes_in(page: Page) -> list[AnyRecord]:
    return [r for _, segment in page.segments for r in segment.records if log.is_crash_record(r)]


@pytest.mark.parametrize("count", [1, 30, 500])
def test_the_newest_cost_the_same_however_long_the_log_is(long: Counted, count: int) -> None:
    """The lease, two listings, and each segment that is shown."""
    page = read_newest(long, KEYS, count)
    assert numbers(page) == [*range(LONG - count + 1, LONG + 1)] and page.damaged == []
    assert (page.since, page.last, page.whole) == (LONG - count + 1, LONG, False)
    assert long.requests <= count + 5, long.requests


@pytest.mark.parametrize("behind", [3, 150, LONG])
def test_a_lease_that_is_behind_costs_little(behind: int) -> None:
    """Heartbeats lag, and an old lease says nothing: then the snapshots do."""
    bucket = Counted()
    longlog.write(bucket, 3_100, behind=min(behind, 3_100))
    page = read_newest(bucket, KEYS, 30)
    assert numbers(page) == [*range(3_071, 3_101)] and bucket.requests <= 36


def test_without_lease_and_snapshots_it_is_listed_and_not_read() -> None:
    bucket = Counted()
    longlog.write(bucket, 3_100, every=0)
    bucket.delete(KEYS.lease)
    page = read_newest(bucket, KEYS, 30)
    assert numbers(page) == [*range(3_071, 3_101)] and bucket.requests <= 30 + 8


def test_status_reads_what_is_behind_the_newest_snapshot(long: Counted) -> None:
    bucket = Counted()
    longlog.write(bucket, 3_150)
    view = read_view(bucket, KEYS, {})
    assert (view.record, view.damage) == (3_150, "")
    assert bucket.requests <= 150 + 8, bucket.requests


@pytest.mark.parametrize("count", [1, 3, 7, 30, 0])
def test_crashes_are_found_by_the_snapshots(long: Counted, count: int) -> None:
    """What two snapshots say the same of is passed by, and said to be."""
    page = read_newest(long, KEYS, count, only_crashes=True)
    every = [(s, r) for s, (_, r) in enumerate(longlog.records(LONG, RUNS), 1) if log.is_crash_record(r)]
    wanted = [r for _, r in every][-count:] if count else [r for _, r in every]
    assert crashes_in(page)[-len(wanted) :] == wanted and page.damaged == []
    if count in (30, 0):
        assert page.whole and page.since == 1 and page.passed + len(page.segments) == LONG
        assert len(page.segments) <= 5 * 400 and long.requests <= 5 * 400 + 2 * LONG // 200 + 20
    else:
        assert long.requests <= 200 * count + 2 * LONG // 200 + 20


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 120),
    st.sets(st.integers(2, 119), max_size=4),
    st.integers(0, 40),
    st.sampled_from([0, 7, 20]),
    st.integers(0, 130),
    st.booleans(),
)
def test_it_is_the_end_of_the_log(
    count: int, runs: set[int], n: int, every: int, behind: int, only_crashes: bool
) -> None:
    """Against all records, whatever lease and snapshots say."""
    bucket = Counted()
    starts = tuple(sorted(r for r in runs if r <= count and r - 1 not in runs and r - 2 not in runs))
    longlog.write(bucket, count, starts, every=every, behind=min(count, behind))
    every_record = [r for _, r in longlog.records(count, starts)]
    page = read_newest(bucket, KEYS, n, only_crashes)
    found = [r for _, segment in page.segments for r in segment.records]
    if only_crashes:
        every_record = [r for r in every_record if isinstance(r, Opening | Recovery | RunEnded)]
        found = [r for r in found if isinstance(r, Opening | Recovery | RunEnded)]
    wanted = every_record[-n:] if n else every_record
    assert found[len(found) - len(wanted) :] == wanted and page.damaged == [] and page.last == count
    if n == 0:
        assert found == every_record and page.whole
    assert page.whole == (page.since == 1)


def said(page: Page) -> list[str]:
    return [str(found) for found in page.damaged]


def test_what_is_missing_in_what_is_read_is_named(long: Counted) -> None:
    long.delete(KEYS.segment(11_980), *(KEYS.segment(seq) for seq in (11_985, 11_986, 11_987)))
    page = read_newest(long, KEYS, 30)
    assert said(page) == [
        "record 11980 of job long is missing.",
        "records 11985 to 11987 of job long are missing.",
    ]
    assert numbers(page) == [
        s for s in range(page.since, LONG + 1) if s != 11_980 and s not in (11_985, 11_986, 11_987)
    ]
    assert read_newest(long, KEYS, 10).damaged == [], "it was not read"
    long.delete(KEYS.segment(LONG))
    assert said(read_newest(long, KEYS, 3)) == [
        f"record {LONG} of job long is missing: the log had reached record {LONG}."
    ]


def test_a_whole_log_with_a_record_missing(long: Counted) -> None:
    """What retention may take is none; an opening, or the end before it, it never takes."""
    for seq in (2, 500, 5000, 4999, 600, LONG - 201, LONG - 1):
        long.delete(KEYS.segment(seq))
    found = " ".join(said(read_newest(long, KEYS, 0)))
    assert re.findall(r"records? (\d+)(?: to (\d+))?", found) == [
        ("600", ""),  # a snapshot names it
        ("4999", ""),
        ("5000", ""),
        (str(LONG - 1), ""),  # behind the older of the two newest snapshots nothing goes
    ]


def test_what_is_damaged_in_what_is_read_is_named(long: Counted) -> None:
    """I3: junk, and a segment that belongs elsewhere in the chain."""
    other = Counted()
    longlog.write(other, 11_995)  # without other runs: what stands there chains to other bytes
    for seq, data in ((11_980, b"junk"), (11_992, other.get(KEYS.segment(11_992)).data)):
        long.delete(KEYS.segment(seq))
        long.put(KEYS.segment(seq), data)
    found = said(read_newest(long, KEYS, 30))
    assert found[0].startswith("record 11980 of job long is damaged")
    assert found[1] == "record 11992 of job long is damaged: it does not chain to record 11991."
    assert found[2] == "record 11993 of job long is damaged: it does not chain to record 11992."


class Growing(Counted):
    """A run appends while the log is listed: the listing shows what was put later and not what was put before it."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[Entry]:
        for entry in super().list(prefix, start_after):
            if entry.key != KEYS.segment(99) or self.requests > 3:
                yield entry


def test_a_listing_that_a_run_passed_is_no_damage() -> None:
    """A number that was not listed is looked for again."""
    bucket = Growing()
    longlog.write(bucket, 100)
    assert read_newest(bucket, KEYS, 30).damaged == []
