"""`run --once`: a finished job is not done again because a machine was booted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.shelf import Run, Shelf
from wal_agent.supervise.restart import is_complete
from wal_agent.wal.job import close_job


@pytest.mark.parametrize(
    ("state", "reason", "done"),
    [
        ("held", "", False),
        ("closed", "completed", True),
        ("closed", "the agent ended with 41", False),
        ("released", "drained (SIGTERM)", False),
    ],
)
def test_only_a_task_that_was_done_has_come_to_its_end(tmp_path: Path, state: str, reason: str, done: bool) -> None:
    """An engine that starts a failed agent again must not be told that all is well."""
    shelf = Shelf(tmp_path / "b")
    assert not is_complete(shelf.url, "shop")
    job = shelf.open()
    if state != "held":
        close_job(job, "closed" if state == "closed" else "released", reason)
    assert is_complete(shelf.url, "shop") is done


def test_nothing_is_run_and_that_is_a_success(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    close_job(shelf.open(), "closed", "completed")
    code, out, err = run("run", "gemini", "--once", "--bucket", shelf.url, "--job", "shop", "--", "-p", "go")
    assert (code, out) == (0, "") and "has come to its end, so nothing was run" in err
