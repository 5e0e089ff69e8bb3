"""cli/fleet.py: `wal-agent stats` over one job and over a bucket."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.shelf import Run, Shelf, commit
from tests.unit.recovery.cases import captured, end, intent


def test_all_jobs_of_a_bucket_and_one(tmp_path: Path, run: Run) -> None:
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    job.writer.append(intent(1), end(1), captured())
    commit(job)
    code, out, _ = run("stats", "--bucket", shelf.url, "--json")
    assert code == 0 and (json.loads(out)["jobs"], json.loads(out)["calls"]) == (1, 1)
    code, out, _ = run("stats", "--bucket", shelf.url, "--job", "shop")
    assert code == 0 and "1 call" in out
