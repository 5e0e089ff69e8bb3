"""The report in a real browser: `make browser`, where Chromium is installed. CI does not collect this."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.conftest import run as run
from tests.unit.cli.shelf import Run
from tests.unit.cli.test_report import hostile, written


@pytest.fixture
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("Chromium is missing: apt-get install chromium")
    return found


def test_a_browser_shows_it_without_an_error(tmp_path: Path, run: Run, chromium: str) -> None:
    written(run, hostile(tmp_path / "b"), tmp_path)
    shown = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom", (tmp_path / "r.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in shown.stderr
    before, _, rest = shown.stdout.partition('<script type="application/json"')
    assert 'data-ready="yes"' in before and "<title>Job shop</title>" in before
    assert "<img" not in before and html.escape("</script><script>", quote=False) in before
    assert re.search(r"#4 run_shell_command.*git tag v1", before) and rest
