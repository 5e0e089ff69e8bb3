"""docs/PERFORMANCE.md has the goals as bench/points.json has them."""

from __future__ import annotations

import msgspec

from bench.performance import PAGE, POINTS, Row, points


def test_the_page_has_the_goals() -> None:
    assert points() == PAGE.read_text(), "run: python -m bench.performance points"


def test_a_figure_has_a_command_and_what_was_not_measured_a_reason() -> None:
    rows = msgspec.json.decode(POINTS.read_bytes(), type=list[Row])
    assert {row.point for row in rows} == set(range(1, 9))
    assert all(row.why or (row.command and row.date) for row in rows)
