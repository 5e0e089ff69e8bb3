"""docs/PERFORMANCE.md has the goals as bench/points.json has them."""

from __future__ import annotations

import msgspec

from bench.performance import PAGE, POINTS, Row, points


def test_the_page_has_the_goals() -> None:
    assert points() == PAGE.read_text(), "run: python -m bench.performance points"


def test_a_figure_has_a_command_and_a_missed_goal_says_where_the_time_goes() -> None:
    rows = msgspec.json.decode(POINTS.read_bytes(), type=list[Row])
    assert all(row.command and row.date and bool(row.why) is row.missed for row in rows)
