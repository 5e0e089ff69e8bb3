"""wal/damage.py: what a person reads of a damaged log, and the command that gets back what can be had."""

from __future__ import annotations

import pytest

from tests.unit.wal.world import KEYS, World, drain, intent
from wal_agent.errors import Damaged
from wal_agent.wal.blobs import CHUNK
from wal_agent.wal.damage import (
    BlobProblem,
    damaged_log_error,
    explain_open_error,
    lost_blobs_error,
    missing_lease_error,
    needed_blobs,
    restore_hint,
    with_hint,
)
from wal_agent.wal.reader import Damage, Replay
from wal_agent.wal.state import FileState, State


@pytest.mark.parametrize(("good", "command"), [(0, ""), (1, "wal-agent restore --at 1 --to DIR")])
def test_a_damaged_log_says_what_can_be_restored(good: int, command: str) -> None:
    error = damaged_log_error(Damage(seq=good + 1, why="It is.", good=good, time=0.0))
    assert error.what.startswith("It is. ") and "--job NAME" in error.hint
    assert (command in error.hint) if command else "restore --at" not in error.hint
    assert (f"record {good} " in error.what) == bool(command)


@pytest.mark.parametrize(("others", "words"), [(0, ""), (1, "So is 1 more."), (2, "So are 2 more.")])
def test_missing_blobs_are_counted_and_the_newest_whole_record_is_named(others: int, words: str) -> None:
    lacks = [BlobProblem(str(n), "the session", f"Blob {n} is missing.") for n in range(others + 1)]
    error = lost_blobs_error(lacks, None, KEYS)
    assert error.what == f"Blob 0 is missing, and the session needs it. {words}".rstrip()
    assert "wal-agent restore --to DIR" in error.hint
    whole = lost_blobs_error(lacks, Replay(seq=7), KEYS, " --job x")
    assert "`wal-agent restore --job x --at 7 --to shop-record-7`" in whole.hint
    assert restore_hint(None, KEYS) == "" and "restore --to DIR" in with_hint(Damaged("x.")).hint


def test_a_job_without_a_lease_is_damaged_only_where_it_has_a_log() -> None:
    world = World()
    assert missing_lease_error(world.bucket, KEYS) is None
    job = world.open("a")
    world.inner.delete(KEYS.lease)
    error = missing_lease_error(world.bucket, KEYS)
    assert error is not None and "record 1" in error.what and job.lease.epoch == 1


def test_an_error_of_opening_says_what_can_be_restored_where_the_log_is_damaged() -> None:
    world = World()
    job = world.open("a")
    for n in (1, 2):
        job.writer.append(intent(n))
        drain(job)
    plain, hinted = Damaged("Why."), Damaged("Why.", "Do this.")
    seen = world.seen()
    assert explain_open_error(world.bucket, KEYS, seen, plain) is plain, "the log is sound"
    world.inner.delete(KEYS.segment(2))
    found = explain_open_error(world.bucket, KEYS, seen, plain)
    assert found is not plain and "record 1 " in found.what
    assert explain_open_error(world.bucket, KEYS, seen, hinted) is hinted


@pytest.mark.parametrize("base", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_each_chunk_of_a_file_is_full_but_the_last(base: int) -> None:
    count = -(-base // CHUNK)
    file = FileState(session="s", size=base, sha256="", base_size=base, chunks=tuple(f"c{n}" for n in range(count)))
    sizes = [size for size, _ in needed_blobs(State(files={"f": file})).values()]
    assert sum(sizes) == base and {*sizes[:-1]} <= {CHUNK} and len(sizes) == count
    assert needed_blobs(State(files={"f": file}), session=False) == {}
    more = FileState(session="s", size=base, sha256="", base_size=1, chunks=("a", "b"))
    assert [size for size, _ in needed_blobs(State(files={"f": more})).values()] == [1, 0], "a hostile file"
