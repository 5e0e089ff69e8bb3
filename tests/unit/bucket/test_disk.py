"""A disk that is not there (any more) is never taken for a new bucket (I3)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wal_agent.bucket import folder, marker_of, open_bucket
from wal_agent.bucket.file import FileBucket
from wal_agent.bucket.folder import MARKER, forget_bucket, known_bucket_id, known_epoch, remember_run
from wal_agent.errors import Damaged, NotFound, Unavailable

GONE = "disk of bucket .* is gone"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def bucket(root: Path) -> FileBucket:
    made = FileBucket(root)
    made.put("job/lease.json", b"held")
    made.put("job/log/1", b"opening")
    return made


def away(root: Path) -> Path:
    return root.rename(root.with_name("away"))


def everything(bucket: FileBucket) -> list[Callable[[], object]]:
    return [
        lambda: bucket.put("job/log/2", b""),
        lambda: bucket.put("other", b""),
        lambda: bucket.get("job/lease.json"),
        lambda: [*bucket.list("job/")],
        lambda: [*bucket.folders("")],
        lambda: bucket.delete("job/log/1"),
    ]


def test_a_root_that_was_used_is_never_made_again(bucket: FileBucket, root: Path) -> None:
    """An absent lease would be taken for a deleted one, so reads are refused as well."""
    moved = away(root)
    for act in everything(bucket):
        with pytest.raises(Unavailable, match=GONE):
            act()
    assert not root.exists()
    moved.rename(root)
    bucket.put("job/log/2", b"")
    assert bucket.get("job/lease.json").data == b"held"


def test_an_empty_mount_point_is_left_empty(bucket: FileBucket, root: Path) -> None:
    moved = away(root)
    root.mkdir()
    for act in everything(bucket):
        with pytest.raises(Unavailable, match=GONE):
            act()
    assert [*root.iterdir()] == []
    root.rmdir()
    moved.rename(root)
    bucket.put("job/log/2", b"")


def test_another_bucket_in_its_place_is_not_written(bucket: FileBucket, root: Path) -> None:
    away(root)
    FileBucket(root).put("job/lease.json", b"another's")
    before = sorted(root.rglob("*"))
    for act in everything(bucket):
        with pytest.raises(Unavailable, match="the marker of another bucket"):
            act()
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("folder", ["job", "job/log"])
def test_a_folder_that_was_used_is_never_made_again(bucket: FileBucket, root: Path, folder: str) -> None:
    """A record behind ones that are gone would be a gap for ever."""
    (root / folder).rename(root / "away")
    for _ in range(2):
        with pytest.raises(Unavailable, match=GONE):
            bucket.put("job/log/2", b"")
        (root / folder).mkdir(exist_ok=True)  # by another process
    assert [path for path in (root / folder).rglob("*") if path.is_file()] == []


def test_a_new_folder_is_made_below_one_that_was_used(bucket: FileBucket) -> None:
    bucket.put("job/blobs/x", b"")
    assert bucket.get("job/blobs/x").data == b""


def test_scratch_folders_are_made_again(bucket: FileBucket, root: Path) -> None:
    for name in (".tmp", ".locks"):
        shutil.rmtree(root / name)
    bucket.put("job/log/2", b"")


def test_a_disk_that_comes_back_under_another_number_is_the_same_one(bucket: FileBucket, root: Path) -> None:
    """Device and inode may change with a mount: then marker and newest object tell."""
    shutil.copytree(away(root), root, copy_function=shutil.copy2)
    bucket.put("job/log/2", b"")
    assert FileBucket(root).get("job/log/2").data == b""


def test_an_older_copy_of_it_is_not(bucket: FileBucket, root: Path) -> None:
    copy = root.with_name("backup")
    shutil.copytree(root, copy)
    bucket.put("job/log/2", b"acknowledged")
    away(root)
    copy.rename(root)
    with pytest.raises(Unavailable, match=GONE):
        bucket.put("job/log/3", b"")
    assert not (root / "job/log/3=").exists()


def test_a_put_counts_only_where_the_path_leads_to_it(
    bucket: FileBucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is unmounted lazily takes what an open descriptor writes, and nobody finds it at the path."""
    link = os.link

    def unmounted(*args: object, **more: object) -> None:
        link(*args, **more)  # type: ignore[arg-type]
        away(root)

    monkeypatch.setattr(os, "link", unmounted)
    with pytest.raises(Unavailable, match=GONE):
        bucket.put("job/log/2", b"landed on the disk that is away")
    assert not root.exists()


def test_a_bucket_without_a_marker_gets_one_at_the_first_put_and_from_no_reader(root: Path) -> None:
    FileBucket(root).put("a", b"1")
    (root / MARKER).unlink()  # as an older wal-agent left it
    reader = FileBucket(root)
    assert reader.get("a").data == b"1" and [e.key for e in reader.list("")] == ["a"]
    reader.delete("never")
    assert not (root / MARKER).exists() and reader.marker() == ""
    FileBucket(root).put("b", b"")
    assert len(marker_of(root.as_uri())) == 32


def test_the_marker_stays_the_same(root: Path) -> None:
    ids = set()
    for number in range(3):
        FileBucket(root).put(str(number), b"")
        ids.add(marker_of(root.as_uri()))
    assert len(ids) == 1


def test_a_damaged_marker_is_damage(bucket: FileBucket, root: Path) -> None:
    (root / MARKER).write_bytes(b"\0" * 40)
    for act in everything(bucket):
        with pytest.raises(Damaged, match=MARKER):
            act()


class TestKnown:
    """What an earlier run on this machine knew."""

    @pytest.fixture(autouse=True)
    def state(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    @pytest.fixture
    def url(self, bucket: FileBucket, root: Path) -> str:
        remember_run(bucket.url, marker_of(bucket.url), "job", 3, os.environ)
        return root.as_uri()

    @pytest.mark.parametrize("there", ["nothing", "a folder", "another bucket"])
    def test_a_start_finds_that_it_is_not_there_and_makes_nothing(self, url: str, root: Path, there: str) -> None:
        away(root)
        if there != "nothing":
            root.mkdir()
        if there == "another bucket":
            FileBucket(root).put("job/lease.json", b"")
        before = sorted(root.parent.rglob("*"))
        for address in (url, str(root)):
            for act in everything(open_bucket(address)):  # type: ignore[arg-type]
                with pytest.raises(Unavailable, match="Is it mounted") as caught:
                    act()
                assert f"wal-agent doctor --forget --bucket {url}" in caught.value.hint
        assert sorted(root.parent.rglob("*")) == before

    def test_it_is_used_where_it_is_there(self, url: str) -> None:
        open_bucket(url).put("job/log/2", b"")
        assert known_epoch(url, "job", os.environ) == 3
        assert known_epoch(url, "other", os.environ) == 0

    def test_what_is_forgotten_may_begin_anew(self, url: str, root: Path) -> None:
        away(root)
        assert forget_bucket(url, "job", os.environ) and known_epoch(url, "job", os.environ) == 0
        assert known_bucket_id(url, os.environ)
        assert forget_bucket(url, None, os.environ) and not forget_bucket(url, None, os.environ)
        open_bucket(url).put("job/lease.json", b"")
        with pytest.raises(NotFound):
            open_bucket(url).get("job/log/1")

    def test_a_note_that_is_garbled_is_none(self, url: str, tmp_path: Path) -> None:
        (note,) = (tmp_path / "state").rglob("jobs/job")
        note.write_bytes(b"\xff\xb2")
        assert known_epoch(url, "job", os.environ) == 0


MOUNTED = """
import os, subprocess, sys
from pathlib import Path
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import Unavailable

base = Path(sys.argv[1])
disk, point, mounts = base / "disk", base / "point", ["mount", "-t", "tmpfs", "none"]

def sh(*words): subprocess.run([str(w) for w in words], check=True)

disk.mkdir(); point.mkdir()
sh(*mounts, disk)
sh("mount", "--bind", disk, point)
bucket = FileBucket(point / "deep" / "bucket")
bucket.put("job/lease.json", b"1"); bucket.put("job/log/1", b"1")
with open(point / "deep/bucket/job/log/1=", "rb"):  # it is busy: only a lazy unmount takes it away
    sh("umount", "-l", point)
    for act in (lambda: bucket.put("job/log/2", b"2"), lambda: bucket.get("job/lease.json")):
        try:
            act()
        except Unavailable as error:
            assert "is gone" in str(error)
        else:
            raise AssertionError("acknowledged under the mount point")
assert not [*point.iterdir()]
sh("mount", "--bind", disk, point)
bucket.put("job/log/2", b"2")
sh("umount", point)  # nothing of ours keeps it busy
sh(*mounts, point)  # another, empty disk
try:
    bucket.put("job/log/3", b"3")
except Unavailable:
    pass
else:
    raise AssertionError("acknowledged on another disk")
assert not [*point.iterdir()]
sh("umount", point)
names = sorted(p.name for p in (disk / "deep/bucket/job/log").iterdir())
assert names == ["1=", "2="], names
print("done")
"""


def test_a_real_disk_is_unmounted_and_comes_back(tmp_path: Path) -> None:
    own = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    command = [*own, sys.executable, "-c", MOUNTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(("url", "due"), [("s3://b/p", True), ("gs://b/p", False), ("file:///b", False)])
def test_conditions_are_tried_once_a_day_and_machine(tmp_path: Path, url: str, due: bool) -> None:
    """Only where they can get lost. A clock that was set back makes no machine wait."""
    env = {"HOME": str(tmp_path)}
    assert folder.conditions_due(url, env, 1e9) is due
    folder.note_conditions(url, env, 1e9)
    asked = [folder.conditions_due(url, env, 1e9 + later) for later in (0.0, 86_000.0, 87_000.0, -10.0)]
    assert asked == [False, False, due, due]
    assert forget_bucket(url, None, env) and folder.conditions_due(url, env, 1e9) is due
