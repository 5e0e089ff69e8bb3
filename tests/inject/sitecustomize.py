"""What each Python runs first whose PYTHONPATH has this folder: its buckets fail as a file says (faulty_bucket.py)."""

from __future__ import annotations

import os
from pathlib import Path

if "TEST_BUCKET_FAULTS" in os.environ:
    from tests.faulty_bucket import FaultBucket, FileFaults
    from wal_agent import bucket

    opened, faults = bucket.open_bucket, FileFaults(Path(os.environ["TEST_BUCKET_FAULTS"]))
    bucket.open_bucket = lambda url: FaultBucket(opened(url), faults)
