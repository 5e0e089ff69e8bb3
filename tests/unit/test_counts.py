"""The counts of bench/counts.py against bench/baseline.json: a regression that no noise hides and none makes up."""

from __future__ import annotations

import json

from bench.counts import BASELINE, counts

# Imports differ by the versions of Python and of the packages; what wal-agent itself imports is counted exactly in
# cli/test_start.py. Bytes differ by zstd's version.
SLACK = 1.15


def test_no_count_goes_up() -> None:
    meant, found = json.loads(BASELINE.read_text()), counts()
    assert found.keys() == meant.keys(), "write it anew: python -m bench.counts > bench/baseline.json"
    worse = {
        name: (meant[name], count)
        for name, count in found.items()
        if count > meant[name] * (SLACK if name.startswith(("imports", "bytes")) else 1)
    }
    assert worse == {}
