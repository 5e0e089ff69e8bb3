"""bucket/file.py: the frame of an object, and what a folder on a disk survives."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.bucket.file import FRAME_OVERHEAD, FileBucket, Frame, decode_frame, encode_frame, generation_of
from wal_agent.bucket.folder import ABANDONED_AFTER
from wal_agent.errors import Conflict, Damaged, Denied, NotFound, Unavailable

FRAMES = st.builds(Frame, st.integers(1, 10**19), st.binary(min_size=8, max_size=8), st.binary(max_size=200))


@given(FRAMES)
def test_a_frame_survives_the_way_to_disk_and_back(frame: Frame) -> None:
    raw = encode_frame(frame)
    assert len(raw) == FRAME_OVERHEAD + len(frame.payload)
    assert decode_frame(raw, "x") == frame


@given(FRAMES, st.data())
def test_any_flipped_bit_is_found(frame: Frame, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(frame))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        decode_frame(bytes(raw), "x")


@given(FRAMES, st.data())
def test_any_cut_and_any_tail_is_found(frame: Frame, data: st.DataObject) -> None:
    raw = encode_frame(frame)
    with pytest.raises(Damaged):
        decode_frame(raw[: data.draw(st.integers(0, len(raw) - 1))], "x")
    with pytest.raises(Damaged):
        decode_frame(raw + data.draw(st.binary(min_size=1, max_size=9)), "x")


def test_damage_is_named() -> None:
    raw = encode_frame(Frame(1, b"12345678", b"payload"))
    for damaged, why in [
        (b"", "cut off: 0 bytes"),
        (b"x" * 100, "not an object of wal-agent"),
        (raw[:8] + b"\0\x02" + raw[10:], "format 2"),
        (raw[:-1], "should hold 7 bytes and holds 6"),
        (raw[:-1] + b"!", "checksum"),
    ]:
        with pytest.raises(Damaged, match=why):
            decode_frame(damaged, "x")


@given(FRAMES)
def test_a_version_names_its_generation(frame: Frame) -> None:
    assert generation_of(frame.version) in (frame.generation, 0)
    assert generation_of(frame.version) == (frame.generation if frame.generation < 10**19 else 0)


@given(st.text() | st.sampled_from(["1", "1-", "-1-" + "0" * 16, "²-" + "0" * 16, "9" * 30 + "-" + "0" * 16]))
def test_the_version_of_another_store_names_none(version: str) -> None:
    assert generation_of(version) == 0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def bucket(root: Path) -> FileBucket:
    return FileBucket(root, lock_timeout=0.0)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("no_umask")
def test_everything_is_private(tmp_path: Path) -> None:
    root = tmp_path / "new" / "bucket"
    bucket = FileBucket(root)
    bucket.put("job/lease.json", b"1")
    for path in [root.parent, root, *root.rglob("*")]:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


def test_reading_makes_nothing(bucket: FileBucket, root: Path) -> None:
    with pytest.raises(NotFound):
        bucket.get("a")
    assert [*bucket.list("")] == []
    bucket.delete("a")
    assert not root.exists()


def test_a_folder_of_the_users_keeps_its_mode(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)
    FileBucket(root).put("a", b"")
    assert mode(root) == 0o755


def test_the_url_leads_back_to_the_folder(tmp_path: Path) -> None:
    assert FileBucket(tmp_path / "a b#?%").url == f"file://{tmp_path}/a%20b%23%3F%25"


class TestLinks:
    """Nothing under the root is followed out of it (I4 in spirit: who can write to the folder must not steer us)."""

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        outside = tmp_path / "outside"
        outside.mkdir()
        FileBucket(outside).put("b", b"theirs")
        return outside

    def test_a_folder_that_is_a_link_is_refused(self, bucket: FileBucket, root: Path, outside: Path) -> None:
        root.mkdir()
        (root / "a").symlink_to(outside)
        before = {path: path.lstat().st_mtime_ns for path in outside.rglob("*")}
        for act in (bucket.get, bucket.delete, lambda key: bucket.put(key, b"")):
            with pytest.raises(Denied, match="in the way"):
                act("a/b")
        with pytest.raises(Denied):
            bucket.put("a/new", b"")
        with pytest.raises(Denied):
            [*bucket.list("a/")]
        assert [*bucket.list("")] == []
        assert {path: path.lstat().st_mtime_ns for path in outside.rglob("*")} == before

    def test_an_object_that_is_a_link_is_refused(self, bucket: FileBucket, root: Path, outside: Path) -> None:
        version = FileBucket(outside).get("b").version
        root.mkdir()
        (root / "a=").symlink_to(outside / "b=")
        with pytest.raises(Denied):
            bucket.get("a")
        with pytest.raises(Denied):
            bucket.put("a", b"", if_version=version)
        with pytest.raises(Conflict):
            bucket.put("a", b"")
        assert [*bucket.list("")] == []
        bucket.delete("a")
        assert FileBucket(outside).get("b").data == b"theirs"
        bucket.put("a", b"mine")

    @pytest.mark.parametrize("name", [".tmp", ".locks"])
    def test_our_own_folders_may_be_no_links(self, bucket: FileBucket, root: Path, outside: Path, name: str) -> None:
        root.mkdir()
        (root / name).symlink_to(outside)
        with pytest.raises(Denied):
            bucket.put("a", b"")

    def test_the_whole_bucket_may_stand_behind_a_link(self, tmp_path: Path, outside: Path) -> None:
        (tmp_path / "link").symlink_to(outside)
        assert FileBucket(tmp_path / "link").get("b").data == b"theirs"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_refused_and_hangs_nobody(
    bucket: FileBucket, root: Path, make: Callable[[Path], None]
) -> None:
    root.mkdir()
    make(root / "a=")
    with pytest.raises(Denied):
        bucket.get("a")
    with pytest.raises(Conflict):
        bucket.put("a", b"")
    assert [*bucket.list("")] == []


def test_damage_is_found_and_not_written_over(bucket: FileBucket, root: Path) -> None:
    version = bucket.put("a", b"payload")
    raw = (root / "a=").read_bytes()
    for damaged in (raw[:-1], raw[:-1] + b"!", b""):
        (root / "a=").write_bytes(damaged)
        with pytest.raises(Damaged, match="a="):
            bucket.get("a")
        with pytest.raises(Damaged):
            bucket.put("a", b"new", if_version=version)
        with pytest.raises(Conflict):
            bucket.put("a", b"new")
        assert (root / "a=").read_bytes() == damaged
    assert [*(root / ".tmp").iterdir()] == []


def test_strangers_files_are_not_listed(bucket: FileBucket, root: Path) -> None:
    bucket.put("a/b", b"")
    for name in ("a/.nfs0001", "a/.hidden=", "a/b", "README", "x y=", "a/ä=", ".DS_Store", "="):
        (root / name).write_bytes(b"")
    (root / "lost+found").mkdir()
    (root / "lost+found" / "c=").write_bytes(b"")
    assert [entry.key for entry in bucket.list("")] == ["a/b"]


def test_a_listing_reads_no_other_folder(bucket: FileBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for job in range(5):
        for key in ("lease.json", "log/1", "blobs/0", "snapshots/1"):
            bucket.put(f"job{job}/{key}", b"")
    scans = 0
    scandir = os.scandir

    def counted(path: int) -> Any:
        nonlocal scans
        scans += 1
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    for prefix, after, expected in [("job1/log/", "", 1), ("job1/lo", "", 2), ("", "job4/log/0", 4), ("job9/", "", 0)]:
        scans = 0
        assert [*bucket.list(prefix, after)] or not expected
        assert scans == expected, prefix


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (errno.ENOSPC, Unavailable, "the disk is full"),
        (errno.EDQUOT, Unavailable, "quota"),
        (errno.EIO, Unavailable, "input/output error"),
        (errno.EROFS, Unavailable, "mounted read-only"),
        (errno.EMFILE, Unavailable, "too many open files"),
        (errno.ENOLCK, Unavailable, "no locks available"),
        (errno.EACCES, Denied, "ls -ld"),
        (errno.EPERM, Denied, "ls -ld"),
    ],
)
@pytest.mark.parametrize("call", ["open", "fsync"])
def test_the_kernels_errors_are_told_in_words(
    bucket: FileBucket,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    error: type[Exception],
    says: str,
    call: str,
) -> None:
    version = bucket.put("a", b"1")

    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        acts: list[Callable[[], object]] = [
            lambda: bucket.put("b", b""),
            lambda: bucket.put("a", b"2", if_version=version),
            lambda: bucket.delete("a"),
        ]
        if call == "open":
            acts.append(lambda: bucket.get("a"))
            acts.append(lambda: [*bucket.list("")])
        for act in acts:
            with pytest.raises(error, match=says) as caught:
                act()
            assert str(root) in str(caught.value)
    assert [*(root / ".tmp").iterdir()] == []


def test_a_put_whose_bytes_do_not_reach_the_disk_changes_nothing(
    bucket: FileBucket, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bucket.put("a", b"1")
    fsync = os.fsync

    def full(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENOSPC, "")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable):
        bucket.put("b", b"2")
    with pytest.raises(Unavailable):
        bucket.put("a", b"2", if_version=version)
    assert [entry.key for entry in bucket.list("")] == ["a"]
    assert bucket.get("a").data == b"1"
    assert [*(root / ".tmp").iterdir()] == []


def test_a_file_system_without_hard_links_is_named(bucket: FileBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(Denied, match="no hard links"):
        bucket.put("a", b"")


def test_a_create_wins_over_nobody_even_without_locks(bucket: FileBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def overtaken(temp: str, name: str, **folders: Any) -> None:
        link(temp, name, **folders)
        link(temp, name, **folders)

    monkeypatch.setattr(os, "link", overtaken)
    with pytest.raises(Conflict):
        bucket.put("a", b"")


class TestLocks:
    def stripe(self, root: Path, key: str) -> Path:
        return root / ".locks" / hashlib.sha256(key.encode()).hexdigest()[:2]

    def test_every_mutator_waits_for_the_same_lock_and_gives_up(self, bucket: FileBucket, root: Path) -> None:
        version = bucket.put("a", b"1")
        new = next(key for key in map(str, range(9999)) if self.stripe(root, key) == self.stripe(root, "a"))
        with self.stripe(root, "a").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            for act in (
                lambda: bucket.put(new, b""),
                lambda: bucket.put("a", b"2", if_version=version),
                lambda: bucket.delete("a"),
            ):
                with pytest.raises(Unavailable, match="another process has held its lock"):
                    act()
            assert bucket.get("a").data == b"1"
            assert [entry.key for entry in bucket.list("")] == ["a"]
        bucket.put(new, b"")
        bucket.put("a", b"2", if_version=version)

    def test_sidecars_are_bounded_and_stay(self, bucket: FileBucket, root: Path) -> None:
        for number in range(60):
            bucket.put(f"{number}", b"")
            bucket.delete(f"{number}")
        inodes = {path.name: path.stat().st_ino for path in (root / ".locks").iterdir()}
        assert set(inodes) == {self.stripe(root, str(number)).name for number in range(60)}
        for number in range(60):
            bucket.put(f"{number}", b"")
        assert {path.name: path.stat().st_ino for path in (root / ".locks").iterdir()} == inodes

    def test_a_copy_of_the_descriptor_in_a_child_does_not_keep_the_lock(
        self, bucket: FileBucket, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copies = []
        flock = fcntl.flock

        def copied(fd: int, operation: int) -> None:
            copies.append(os.dup(fd))
            flock(fd, operation)

        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", copied)
            bucket.put("a", b"")
        bucket.delete("a")
        for copy in copies:
            os.close(copy)


class TestSweep:
    def leave(self, root: Path, name: str, age: float) -> Path:
        (root / ".tmp").mkdir(parents=True, exist_ok=True)
        path = root / ".tmp" / name
        path.write_bytes(b"half")
        now = path.stat().st_mtime
        os.utime(path, (now - age, now - age))
        return path

    def test_what_dead_writers_left_goes_after_a_while(self, bucket: FileBucket, root: Path) -> None:
        old = self.leave(root, "1-old", ABANDONED_AFTER + 60)
        young = self.leave(root, "1-young", ABANDONED_AFTER - 60)
        living = self.leave(root, "1-living", ABANDONED_AFTER + 60)
        with living.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            bucket.put("a", b"")
            assert [old.exists(), young.exists(), living.exists()] == [False, True, True]
        FileBucket(root).put("b", b"")
        assert not living.exists()

    def test_a_writer_marks_its_file_as_alive(
        self, bucket: FileBucket, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fsync = os.fsync

        def sweep_meanwhile(fd: int) -> None:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.utime(fd, (0, 0))
                FileBucket(root).put("other", b"")
            fsync(fd)

        def once(fd: int) -> None:
            monkeypatch.setattr(os, "fsync", fsync if stat.S_ISREG(os.fstat(fd).st_mode) else once)
            sweep_meanwhile(fd)

        monkeypatch.setattr(os, "fsync", once)
        bucket.put("a", b"")
        assert bucket.get("a").data == b""


class Disk:
    """Watches the calls that make names and bytes, and those that make them durable.

    It knows what a power loss could still take: bytes of new files, and names in folders.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes: set[int] = set()  # inodes
        self.names: dict[int, list[str]] = {}  # by the inode of the folder
        self.lost_bytes: list[str] = []
        self._patch = patch
        for name in ("open", "mkdir", "link", "rename", "unlink", "fsync"):
            self._wrap(name)

    def _wrap(self, name: str) -> None:
        real, note = getattr(os, name), getattr(self, f"_{name}")

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if name in ("link", "rename"):
                note(*args, **kwargs)
                return real(*args, **kwargs)
            result = real(*args, **kwargs)
            note(*args, result=result, **kwargs)
            return result

        self._patch.setattr(os, name, wrapped)

    def _folder(self, path: Any, dir_fd: int | None) -> list[str]:
        inode = (Path(path).parent.stat() if dir_fd is None else os.fstat(dir_fd)).st_ino
        return self.names.setdefault(inode, [])

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None, result: int) -> None:
        if flags & os.O_EXCL:
            self.bytes.add(os.fstat(result).st_ino)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None, result: None) -> None:
        self._folder(path, dir_fd).append(str(path))

    def _link(self, temp: str, name: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool = True) -> None:
        if os.stat(temp, dir_fd=src_dir_fd).st_ino in self.bytes:
            self.lost_bytes.append(name)
        self._folder(name, dst_dir_fd).append(name)

    def _rename(self, temp: str, name: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        self._link(temp, name, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def _unlink(self, path: Any, *, dir_fd: int, result: None) -> None:
        if str(path).endswith("="):
            self._folder(path, dir_fd).append(f"-{path}")

    def _fsync(self, fd: int, *, result: None) -> None:
        inode = os.fstat(fd).st_ino
        self.bytes.discard(inode)
        self.names.pop(inode, None)

    def at_risk(self) -> list[str]:
        return [*self.lost_bytes, *(name for names in self.names.values() for name in names)]


class TestPowerLoss:
    @pytest.fixture
    def disk(self, monkeypatch: pytest.MonkeyPatch) -> Disk:
        return Disk(monkeypatch)

    def test_what_was_acknowledged_is_on_the_disk(self, tmp_path: Path, disk: Disk) -> None:
        bucket = FileBucket(tmp_path / "made" / "too" / "bucket")
        version = bucket.put("job/log/1", b"1")
        assert disk.at_risk() == []
        version = bucket.put("job/log/1", b"2", if_version=version)
        assert disk.at_risk() == []
        bucket.put("job/other/1", b"3")
        assert disk.at_risk() == []
        bucket.delete("job/log/1")
        assert disk.at_risk() == []

    def test_so_is_what_a_conflict_tells_of(self, root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another writer was killed right after its link, or rename, and before its sync."""
        bucket = FileBucket(root)
        old = bucket.put("job/1", b"")
        with monkeypatch.context() as patched:
            killed = _killed_before_the_sync_of(patched, root / "job")
            with pytest.raises(killed):
                FileBucket(root).put("job/2", b"theirs")
            with pytest.raises(killed):
                FileBucket(root).put("job/1", b"theirs", if_version=old)
        assert sorted(disk.at_risk()) == ["1=", "2="]
        with pytest.raises(Conflict):
            bucket.put("job/2", b"mine")
        assert disk.at_risk() == []
        disk.names[(root / "job").stat().st_ino] = ["1="]
        with pytest.raises(Conflict):
            bucket.put("job/1", b"mine", if_version=old)
        assert disk.at_risk() == []

    def test_so_are_folders_whose_maker_was_killed(self, tmp_path: Path, disk: Disk) -> None:
        root = tmp_path / "state" / "bucket"
        for folder in (root.parent, root, root / "job", root / "job" / "log"):
            folder.mkdir()
        assert len(disk.at_risk()) == 4
        FileBucket(root).put("job/log/1", b"")
        assert disk.at_risk() == []

    def test_so_is_a_delete_whose_first_try_was_killed(
        self, root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bucket = FileBucket(root)
        bucket.put("job/1", b"")
        with monkeypatch.context() as patched:
            killed = _killed_before_the_sync_of(patched, root / "job")
            with pytest.raises(killed):
                bucket.delete("job/1")
        assert disk.at_risk() == ["-1="]
        bucket.delete("job/1")
        assert disk.at_risk() == []


def _killed_before_the_sync_of(patch: pytest.MonkeyPatch, folder: Path) -> type[BaseException]:
    class Killed(BaseException): ...

    fsync, inode = os.fsync, folder.stat().st_ino

    def sync(fd: int) -> None:
        if os.fstat(fd).st_ino == inode:
            raise Killed
        fsync(fd)

    patch.setattr(os, "fsync", sync)
    return Killed
