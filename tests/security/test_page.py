"""docs/SECURITY.md names a test for each of its lines, and the tests are there."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/SECURITY.md").read_text()
NAMED = re.compile(r"([a-z0-9_/]+\.py)(?:::(test_\w+))?")


def test_each_line_names_a_test_that_is_there() -> None:
    lines = PAGE.splitlines()
    rows = [row for row, below in pairwise(lines) if row.startswith("| ") and not below.startswith("|---")]
    assert len(rows) > 20
    for row in rows:
        named = NAMED.findall(row.rstrip("| ").rpartition(" | ")[2])
        assert named, row
        for file, test in named:
            assert not test or f"def {test}(" in (TESTS / file).read_text(), row
            assert (TESTS / file).exists(), row
