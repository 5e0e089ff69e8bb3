"""Each bench that the docs name still runs: `python -m bench --short NAME`. No figure is asserted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.__main__ import NAMES
from tests.conftest import TESTS
from tests.tiers import deep


@deep
@pytest.mark.parametrize("name", NAMES)
def test_a_bench_runs_to_its_end(name: str) -> None:
    argv = [sys.executable, "-m", "bench", "--short", name]
    done = subprocess.run(argv, cwd=TESTS.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    heading, *figures = done.stdout.splitlines()
    assert heading.startswith(f"{name}: ") and figures
