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


def test_no_recipe_takes_its_folder_from_the_bucket() -> None:
    """An empty `FLEET_WORKSPACE` made `cd ""` succeed."""
    pages = [*(TESTS.parent / "docs").rglob("*.md"), TESTS.parent / "README.md", *(TESTS.parent / "deploy").rglob("*")]
    texts = [page.read_text(errors="replace") for page in pages if page.is_file()]
    recipes = [
        line for text in texts for line in text.splitlines() if re.search(r"--on-(?:crash|message)[ =]['\"]", line)
    ]
    assert len(recipes) > 1
    assert [line for line in recipes if re.search(r"\$\{?FLEET_WORKSPACE", line)] == []
