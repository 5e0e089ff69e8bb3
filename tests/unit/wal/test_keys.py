"""wal/keys.py: what names a job, and what a job's objects are called."""

from __future__ import annotations

import pytest

from wal_agent.bucket.base import check_key
from wal_agent.errors import UsageError
from wal_agent.wal.keys import MAX_SEQ, Keys, blob_epoch, blob_name, blob_sha256, is_blob


@pytest.mark.parametrize("job", ["a", "gemini-shop", "_x", "-", "A.b-c_9", "a" * 100])
def test_good_names_make_good_keys(job: str) -> None:
    keys = Keys(job)
    blob = blob_name("0" * 64, MAX_SEQ - 1, MAX_SEQ - 1)
    for key in (keys.lease, keys.segment(1), keys.blob("0" * 64), keys.blob(blob), keys.snapshot(MAX_SEQ)):
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


HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(("name", "epoch"), [(HASH, 0), (f"{HASH}-7", 7), (f"{HASH}-12-3", 12)])
def test_a_blobs_name_says_whose_it_is(name: str, epoch: int) -> None:
    assert (blob_sha256(name), blob_epoch(name), is_blob(name)) == (HASH, epoch, True)
    assert Keys("j").blob(name) == f"j/blobs/{name}"
    assert blob_name(HASH, 7) == f"{HASH}-7" and blob_name(HASH, 12, 3) == f"{HASH}-12-3"


@pytest.mark.parametrize(
    "tail", ["-", "-0", "-01", "-1-", "-1-0", "-1-1-1", "-" + "9" * 19, "-x", "-1/x", "\n", "-1\n"], ids=repr
)
def test_nothing_else_may_stand_behind_the_hash(tail: str) -> None:
    assert not is_blob(HASH + tail)
    assert blob_epoch(HASH + tail) == 0, "of no epoch, so that retention never takes it for a later one's"
    with pytest.raises(ValueError, match="not a blob"):
        Keys("j").blob(HASH + tail)


@pytest.mark.parametrize("name", ["", "../../x", "A" * 64, "0" * 63, "0" * 64 + "/"])
def test_a_blobs_name_is_a_hash(name: str) -> None:
    with pytest.raises(ValueError, match="not a blob"):
        Keys("j").blob(name)
