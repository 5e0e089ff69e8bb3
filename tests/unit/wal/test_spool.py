"""wal/spool.py: the folder, its lock, and what is believed of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.errors import ConfigError
from wal_agent.wal import spool as spools
from wal_agent.wal.spool import Spool, SpoolOwner, last_contiguous, orphaned_spools, spool_presence

OWNER = SpoolOwner("shop", "file:///b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spools"


def made(folder: Path, run: str = "a") -> Spool:
    spool = Spool.create(folder, run, OWNER)
    spool.begin(1, [])
    return spool


def test_its_lock_says_whether_its_owner_lives(folder: Path) -> None:
    """R9: the proof of death that holds across a reboot."""
    spool = made(folder)
    named = str(spool.folder)
    assert spool_presence(folder, named, OWNER) == "held" and Spool.adopt(folder, named, OWNER) is None
    spool.store(2, b"x")
    spool.release()
    assert spool_presence(folder, named, OWNER) == "free"
    again = Spool.adopt(folder, named, OWNER)
    assert again is not None and again.count == 1 and not again.empty
    assert spool_presence(folder, named, OWNER) == "held"


def test_it_is_private(folder: Path) -> None:
    spool = made(folder)
    spool.store(2, b"x")
    for path in [spool.folder, *spool.folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "named", ["", "/", "/etc", "{}/..", "{}/.", "{}/x/../y", "{}", "{}/no", "{}/a\0b", "../spools/a"]
)
def test_a_name_from_the_bucket_leads_nowhere_else(folder: Path, named: str) -> None:
    made(folder).release()
    assert spool_presence(folder, named.format(folder), OWNER) == "absent"


def test_what_is_not_ours_is_not_here(folder: Path, tmp_path: Path) -> None:
    spool = made(folder)
    spool.release()
    named = str(spool.folder)
    assert spool_presence(folder, named, SpoolOwner("shop", "file:///other")) == "absent"
    assert spool_presence(folder, named, SpoolOwner("other", "file:///b")) == "absent"
    (folder / "link").symlink_to(spool.folder)
    assert spool_presence(folder, str(folder / "link"), OWNER) == "absent"
    spool.folder.chmod(0o755)
    assert spool_presence(folder, named, OWNER) == "absent"
    spool.folder.chmod(0o700)
    assert spool_presence(folder, named, OWNER) == "free"
    (spool.folder / "owner.json").write_bytes(b"\xff{")
    assert spool_presence(folder, named, OWNER) == "absent"


def test_only_what_no_lease_names_and_nobody_uses_is_forsaken(folder: Path) -> None:
    """Records are kept for a person; an empty folder goes."""
    used, living, full, empty = (made(folder, run) for run in ("used", "living", "full", "empty"))
    full.store(7, b"x")
    for spool in (used, full, empty):
        spool.release()
    assert orphaned_spools(folder, OWNER, used.folder) == [full.folder]
    assert sorted(p.name for p in folder.iterdir()) == ["shop-full", "shop-living", "shop-used"]
    assert living.empty and orphaned_spools(folder / "none", OWNER, None) == []


def test_it_takes_so_much_and_no_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9; what was dropped makes room. The smallest segment counts as a block: it costs a run more than its bytes."""
    monkeypatch.setattr(spools, "MAX_SPOOL", 2 * spools.BLOCK)
    spool = made(folder)
    spool.store(2, b"x" * (spools.BLOCK + 1))
    with pytest.raises(OSError, match="full"):
        spool.store(3, b"x")
    spool.drop(2)
    spool.store(3, b"x")
    spool.store(4, b"x")
    with pytest.raises(OSError, match="full"):
        spool.store(5, b"x")
    spool.begin(2, [(5, b"x")])
    spool.store(6, b"x")
    with pytest.raises(OSError, match="full"):
        spool.store(7, b"x")
    assert spool.count == 2


def test_a_folder_that_cannot_be_made_is_said_before_the_job_is_opened(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("")
    with pytest.raises(ConfigError, match="--on-outage spool"):
        Spool.create(folder, "a", OWNER)


def test_a_new_epoch_leaves_nothing_of_the_old_one_and_no_unfinished_move(folder: Path) -> None:
    spool = made(folder)
    spool.store(2, b"old")
    (spool.folder / f"{2:020d}.new").mkdir()
    (spool.folder / f"{2:020d}.new" / f"{9:020d}").write_bytes(b"half")
    spool.begin(2, [(5, b"new")])
    assert {p.relative_to(spool.folder).as_posix() for p in spool.folder.rglob("*") if p.is_file()} == {
        "lock",
        "owner.json",
        f"{2:020d}/{5:020d}",
    }
    assert spool.count == 1


def test_the_newest_epoch_counts_where_an_old_one_could_not_be_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = made(folder)
    spool.store(2, b"old")
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    spool.begin(2, [])
    assert spool.read() == spools.SpoolContent(2, ()) and spools.count_segments(spool.folder) == 0


@given(st.sets(st.integers(1, 30)))
def test_the_last_unbroken_row(numbers: set[int]) -> None:
    row = last_contiguous(sorted(numbers))
    assert bool(row) == bool(numbers)
    if row:
        assert row == list(range(row[0], max(numbers) + 1)) and row[0] - 1 not in numbers
