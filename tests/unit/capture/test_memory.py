"""How much memory git takes for a capture and its restore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import once
from tests.unit.recovery.lab import repository

BIG = 160 << 20  # bytes of one file
MOST = 128 << 10  # KiB, more than a fork of this process has; git itself would take as much as the file has

ONE_CAPTURE = """
import os, resource, sys
from pathlib import Path
from tests.unit.recovery.lab import Lab
from wal_agent.bucket.file import FileBucket
from wal_agent.capture.candidates import Caps
from wal_agent.capture.workspace import WorkspaceCapture
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import apply
from wal_agent.wal.store import JobStore
lab = Lab(Path(sys.argv[1]))
# Not in memory: what this process has counts for its children until they are git.
lab.blobs = Blobs(JobStore(FileBucket(Path(sys.argv[1]) / "bucket"), Keys("job")), epoch=1)
first, second = lab.machine("a"), lab.machine("b")
capture = WorkspaceCapture(
    first.state_dir, first.work.resolve(), first.target.env, lab.blobs.put_payload, caps=Caps(1 << 40, 1 << 40)
)
record = capture.capture(0, 1.0)
while record is not None:
    lab.state = apply(lab.state, 1, 1, record)
    capture.commit()
    record = capture.capture(0, 1.0)
second.restore()
print((second.work / "big").stat().st_size, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize("holds", once(["zeros", "noise"], "zeros"))
def test_a_huge_file_does_not_go_through_memory(tmp_path: Path, holds: str) -> None:
    """I9: git streams what is big, and maps packs in small pieces, also one that is as big as its file."""
    piece = os.urandom if holds == "noise" else bytes
    work = repository(tmp_path / "a" / "work")
    with (work / "big").open("wb") as file:
        for _ in range(BIG >> 20):
            file.write(piece(1 << 20))
    words = [sys.executable, "-c", ONE_CAPTURE, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    size, peak = map(int, done.stdout.split())
    assert size == BIG and peak < MOST, f"{peak} KiB"
