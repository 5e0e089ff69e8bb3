"""Places in a log as people name them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.errors import UsageError
from wal_agent.operate.export import parse_point
from wal_agent.text import moment, timestamp

NOW = datetime(2026, 11, 22, 14, 2, 30, tzinfo=UTC).timestamp()


def utc(text: str) -> float:
    return datetime.fromisoformat(text + "+00:00").timestamp()


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("412", 412),
        ("14:02:13", utc("2026-11-22T14:02:13.999999")),
        ("14:02:30", utc("2026-11-22T14:02:30.999999")),
        ("14:02:31", utc("2026-11-21T14:02:31.999999")),  # today it has not come yet
        ("14:02", utc("2026-11-22T14:02:59.999999")),
        ("14:03", utc("2026-11-21T14:03:59.999999")),
        ("2026-11-22T14:02:13Z", utc("2026-11-22T14:02:13")),
        ("2026-11-22T14:02:13", utc("2026-11-22T14:02:13")),
        ("2026-11-22T15:02:13+01:00", utc("2026-11-22T14:02:13")),
        ("2026-11-22", utc("2026-11-22T00:00:00")),
    ],
)
def test_what_it_means(text: str, means: float) -> None:
    found = parse_point(text, NOW)
    assert type(found) is type(means) and found == pytest.approx(means, abs=1e-3)


@pytest.mark.parametrize("text", ["", "0", "-1", "noon", "25:00", "14:60", "1e9", "2026-13-01", "١٢", "9" * 19])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError):
        parse_point(text, NOW)


@given(st.text(max_size=40))
def test_any_text_is_a_place_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_point(text, NOW), int | float)
    except UsageError:
        pass


def test_times_are_local_with_their_zone_and_typed_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents read UTC: their log and their prompt come from another machine."""
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    try:
        then = 1_700_000_000.0  # 22:13:20 UTC
        assert timestamp(then).endswith("17:13:20 EST")
        assert moment(then, then, exact=True) == "17:13:20 EST" and moment(then, then) == "17:13 EST"
        assert moment(then, then, exact=True, utc=True) == "22:13:20 UTC"
        for text in ("17:13:20", "2023-11-14T17:13:20", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00"):
            assert int(parse_point(text, then)) == int(then), text
    finally:
        monkeypatch.undo()
        time.tzset()
