"""Each short bench that the docs name still runs: `python -m bench --short NAME`. No figure is asserted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.__main__ import NAMES
from tests.conftest import TESTS
from tests.tiers import deep

LONG = {"drain", "memory", "recovery", "start"}  # a minute of agents each: `make bench SHORT=1`


@deep
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
def test_a_bench_runs_to_its_end(name: str) -> None:
    argv = [sys.executable, "-m", "bench", "--short", name]
    done = subprocess.run(argv, cwd=TESTS.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    heading, *figures = done.stdout.splitlines()
    assert heading.startswith(f"{name}: ") and figures
