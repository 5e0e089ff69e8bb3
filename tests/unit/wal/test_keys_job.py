"""wal/keys.py: what names a job, and what a job's objects are called."""

from __future__ import annotations

import pytest

from wal_agent.bucket.base import check_key
from wal_agent.errors import UsageError
from wal_agent.wal.keys import MAX_SEQ, Keys


@pytest.mark.parametrize("job", ["a", "gemini-shop", "_x", "-", "A.b-c_9", "a" * 100])
def test_good_names_make_good_keys(job: str) -> None:
    keys = Keys(job)
    for key in (keys.lease, keys.segment(1), keys.blob("0" * 64), keys.snapshot(MAX_SEQ)):
        assert check_key(key) == key


@pytest.mark.parametrize("job", ["", ".", "..", ".a", "a/b", "a b", "ä", "a\n", "a" * 101])
def test_bad_names_are_refused(job: str) -> None:
    with pytest.raises(UsageError, match="cannot name a job"):
        Keys(job)


def test_keys_sort_as_numbers_do() -> None:
    keys = Keys("j")
    assert keys.segment(9) < keys.segment(10) < keys.segment(MAX_SEQ)
    assert keys.segment(7) == "j/log/00000000000000000007"
    assert Keys.seq_of(keys.segment(7)) == 7
    assert Keys.seq_of("j/log/notes.txt") is None


@pytest.mark.parametrize("name", ["", "../../x", "A" * 64, "0" * 63, "0" * 64 + "/"])
def test_a_blobs_name_is_a_hash(name: str) -> None:
    with pytest.raises(ValueError, match="not a blob"):
        Keys("j").blob(name)
