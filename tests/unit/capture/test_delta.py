"""capture/session.py: what is sent of a session file that grew, shrank, moved or was rewritten."""

from __future__ import annotations

import hashlib
import os
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from wal_agent.capture import session as module
from wal_agent.capture.session import BLOCK, MAX_EDITS, PIECE, TAIL, Edits, FileTracker, KnownVersion, NotCapturable
from wal_agent.records import FileDelta, Payload
from wal_agent.wal.blobs import INLINE


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=40)), max_size=20))
def test_no_edit_is_larger_than_a_piece_and_none_is_lost(steps: list[tuple[int, bytes]]) -> None:
    whole, sizes, at = bytearray(), [], 0

    def put(data: bytes) -> Payload:
        sizes.append(len(data))
        return Payload(size=len(data), data=data)

    old, module.PIECE = module.PIECE, 16
    try:
        mine = Edits(put)
        for gap, data in steps:
            at += gap
            mine.add(at, data)
            whole[at:] = bytes(at - len(whole)) + data
            at += len(data)
            assert mine._held < 16
        done = mine.done()
    finally:
        module.PIECE = old
    assert all(0 < size <= 16 for size in sizes)
    told = bytearray(len(whole))
    for edit in done:
        told[edit.offset : edit.offset + edit.data.size] = edit.data.data or b""
    assert told == whole
    assert [e.offset for e in done] == sorted({e.offset for e in done})


MAX_RECORD = 1 << 20  # of a segment, so of a record


@dataclass
class Store:
    """Keeps payloads inline and counts their bytes."""

    sizes: list[int] = field(default_factory=list)

    def put(self, data: bytes) -> Payload:
        self.sizes.append(len(data))
        return Payload(size=len(data), data=data)


def apply(old: bytes, change: FileDelta) -> bytes:
    new = bytearray(old)
    for edit in change.edits:
        assert edit.data.data is not None and edit.offset <= len(new)
        new[edit.offset : edit.offset + edit.data.size] = edit.data.data
    result = bytes(new[: change.size])
    assert len(result) == change.size
    assert hashlib.sha256(result).hexdigest() == change.sha256
    return result


def noise(size: int, seed: int = 0) -> bytes:
    return b"".join(hashlib.sha256(b"%d.%d" % (seed, i)).digest() for i in range(size // 32 + 1))[:size]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


def tracker(path: Path) -> FileTracker:
    return FileTracker(path, "chats/s.jsonl", "s1")


# ---- any history --------------------------------------------------------------------------------------------------

SIZES = st.sampled_from([0, 1, 7, TAIL, TAIL + 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
STEP = st.one_of(
    st.tuples(st.just("append"), SIZES),
    st.tuples(st.just("truncate"), st.floats(0, 1)),
    st.tuples(st.just("poke"), st.floats(0, 1)),
    st.tuples(st.just("rewrite"), SIZES),
    st.tuples(st.just("replace"), st.floats(0, 1)),
    st.tuples(st.just("resume"), st.just(0)),
    st.tuples(st.just("nothing"), st.just(0)),
)


def change(path: Path, step: str, arg: float, seed: int) -> None:
    data = path.read_bytes()
    at = int(arg * len(data))
    if step == "append":
        with path.open("ab") as file:
            file.write(noise(int(arg), seed))
    elif step == "truncate":
        os.truncate(path, at)
    elif step == "poke" and data:
        with path.open("r+b") as file:
            file.seek(min(at, len(data) - 1))
            file.write(b"\xff")
    elif step == "rewrite":
        path.write_bytes(noise(int(arg), seed))
    elif step == "replace":
        other = path.with_suffix(".new")
        other.write_bytes(data[:at] + noise(11, seed) + data[at:])
        other.replace(path)


@settings(deadline=None, max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, max_size=8))
def test_every_history_is_told_exactly(steps: list[tuple[str, float]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        path.write_bytes(b"")
        mine, store, log = tracker(path), Store(), b""
        told = mine.capture(store.put, now=1.0)
        assert told is not None and (told.size, told.edits) == (0, ())
        for seed, (step, arg) in enumerate(steps):
            before = path.read_bytes()
            change(path, step, arg, seed)
            now = path.read_bytes()
            # mtime is only as fine as the kernel's tick; a real rewrite comes later than one
            os.utime(path, ns=(seed, seed if step not in ("nothing", "resume") else path.stat().st_mtime_ns))
            if step == "resume":
                mine = tracker(path)
                if told is not None:
                    mine.resume_from(told)
            store.sizes.clear()
            found = mine.capture(store.put, now=float(seed))
            if found is None:
                assert now == before
                continue
            told = found
            log = apply(log, told)
            assert log == now
            if step == "append":
                assert sum(store.sizes) == len(now) - len(before)


# ---- what is sent -------------------------------------------------------------------------------------------------


def test_first_capture_of_an_empty_file_is_a_record(path: Path) -> None:
    path.touch()
    told = tracker(path).capture(Store().put, now=5.0)
    assert told == FileDelta(
        time=5.0, path="chats/s.jsonl", size=0, sha256=hashlib.sha256().hexdigest(), edits=(), session="s1"
    )


def test_nothing_new_is_no_record(path: Path) -> None:
    path.write_bytes(b"abc")
    mine = tracker(path)
    assert mine.capture(Store().put, now=1.0)
    assert mine.capture(Store().put, now=2.0) is None


def test_a_new_settled_number_is_told_once_even_if_no_byte_changed(path: Path) -> None:
    path.write_bytes(b"abc")
    mine = tracker(path)
    mine.capture(Store().put, now=1.0)
    told = mine.capture(Store().put, now=2.0, settled=7)
    assert told is not None and (told.settled, told.edits, told.size) == (7, (), 3)
    assert mine.capture(Store().put, now=3.0, settled=7) is None


def test_an_append_reads_only_its_own_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(noise(5 * BLOCK))
    mine = tracker(path)
    mine.capture(Store().put, now=1.0)
    read: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        read.append(size)
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    with path.open("ab") as file:
        file.write(b"x" * 100)
    assert mine.capture(Store().put, now=2.0)
    assert sum(read) <= 100 + 2 * TAIL


def test_a_change_in_the_middle_sends_its_block_only(path: Path) -> None:
    data = bytearray(noise(5 * BLOCK + 10))
    path.write_bytes(data)
    mine, store = tracker(path), Store()
    mine.capture(store.put, now=1.0)
    store.sizes.clear()
    data[2 * BLOCK] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    told = mine.capture(store.put, now=2.0)
    assert told is not None and [(e.offset, e.data.size) for e in told.edits] == [(2 * BLOCK, BLOCK)]


def test_a_replaced_file_that_extends_the_old_sends_what_is_new(path: Path) -> None:
    path.write_bytes(noise(BLOCK + 10))
    mine, store = tracker(path), Store()
    mine.capture(store.put, now=1.0)
    other = path.with_suffix(".tmp")
    other.write_bytes(noise(BLOCK + 10) + b"more")
    other.replace(path)
    told = mine.capture(store.put, now=2.0)
    assert told is not None and [(e.offset, e.data.data) for e in told.edits] == [(BLOCK + 10, b"more")]


def test_a_large_append_goes_in_pieces_and_little_memory(path: Path) -> None:
    size = 40 * 1024 * 1024 + 3
    with path.open("wb") as file:
        file.truncate(size)
    sizes: list[int] = []

    def put(data: bytes) -> Payload:
        sizes.append(len(data))
        return Payload(size=len(data), blob="0" * 64)

    tracemalloc.start()
    try:
        told = tracker(path).capture(put, now=1.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told is not None and told.size == size == sum(sizes)
    assert max(sizes) <= PIECE and len(told.edits) <= 12
    assert peak < 4 * PIECE


def test_scattered_changes_end_in_one_run(path: Path) -> None:
    data = bytearray((3 * MAX_EDITS) * BLOCK + 9)
    path.write_bytes(data)
    mine, store = tracker(path), Store()
    mine.capture(store.put, now=1.0)
    for at in range(0, len(data), 2 * BLOCK):
        data[at] = 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    told = mine.capture(store.put, now=2.0)
    assert told is not None and len(told.edits) <= MAX_EDITS + len(data) // PIECE + 1
    assert sum(e.data.size for e in told.edits if e.data.size <= INLINE) < MAX_RECORD / 2
    assert apply(bytes(len(data)), told) == bytes(data)


# ---- while it moves, when storing fails ---------------------------------------------------------------------------


def while_reading(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: int = 10**6) -> None:
    """Run `act` after each of the first `times` looks at the file's length."""
    real, left = os.fstat, [2 * times]

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        if left[0] % 2 and left[0] > 0:
            act()
        left[0] -= 1
        return found

    monkeypatch.setattr(os, "fstat", fstat)


def test_bytes_added_during_the_read_come_with_the_next_capture(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"one\n")
    mine, store, log = tracker(path), Store(), b""

    def add() -> None:
        with path.open("ab") as file:
            file.write(b"two\n")

    with monkeypatch.context() as patch:
        while_reading(patch, add, times=1)
        told = mine.capture(store.put, now=1.0)
    assert told is not None
    log = apply(log, told)
    told = mine.capture(store.put, now=2.0)
    while told is not None:
        log = apply(log, told)
        told = mine.capture(store.put, now=3.0)
    assert log == path.read_bytes()


def test_a_file_rewritten_under_the_reader_is_given_up_for_now(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"a" * 100)
    mine, store, turns = tracker(path), Store(), [1]

    def rewrite() -> None:
        turns[0] += 1
        path.write_bytes(b"b" * 100)
        os.utime(path, ns=(turns[0], turns[0]))

    with monkeypatch.context() as patch:
        while_reading(patch, rewrite)
        assert mine.capture(store.put, now=1.0) is None
    assert mine.moving and store.sizes == []
    told = mine.capture(store.put, now=2.0)
    assert told is not None and not mine.moving
    assert apply(b"", told) == b"b" * 100


def test_a_read_that_ended_early_is_no_state_of_the_file(path: Path) -> None:
    """The file was cut below the reader and has grown again: what was read is a mix, whatever its size is by now."""
    path.write_bytes(b"abc")
    with path.open("r+b") as file:
        before = os.fstat(file.fileno())
        read = KnownVersion((before.st_dev, before.st_ino))
        read.feed(b"ab")
        path.write_bytes(b"abcdef")
        assert module._finish_read(file.fileno(), before, read, 0) is None
        read.feed(b"c")
        assert module._finish_read(file.fileno(), before, read, 0) is read
        behind = KnownVersion((before.st_dev, before.st_ino))
        behind.feed(b"gone" + b"abc")
        assert module._finish_read(file.fileno(), before, behind, 4) is behind
        assert module._finish_read(file.fileno(), before, behind, 5) is None


def test_a_failed_store_changes_nothing(path: Path) -> None:
    path.write_bytes(b"abc")
    mine = tracker(path)

    def broken(data: bytes) -> Payload:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        mine.capture(broken, now=1.0)
    told = mine.capture(Store().put, now=2.0)
    assert told is not None and apply(b"", told) == b"abc"


# ---- verify, resume, refuse ---------------------------------------------------------------------------------------


def test_verify_finds_a_rewrite_that_looks_like_an_append(path: Path) -> None:
    data = noise(3 * BLOCK)
    path.write_bytes(data)
    mine, store = tracker(path), Store()
    first = mine.capture(store.put, now=1.0)
    assert first is not None
    log = apply(b"", first)
    path.write_bytes(b"!" + data[1:] + b"more")  # same inode, longer, same tail
    second = mine.capture(store.put, now=2.0)
    assert second is not None and [e.data.size for e in second.edits] == [4]
    assert not mine.verify()
    third = mine.capture(store.put, now=3.0)
    assert third is not None and [e.offset for e in third.edits] == [0]
    # the second delta was not what the file held; the third mends that whatever was there
    log = log + b"more"
    assert apply(log, third) == path.read_bytes()
    assert mine.verify()


def test_verify_of_an_absent_or_never_captured_file_is_false(path: Path) -> None:
    mine = tracker(path)
    assert not mine.verify()
    path.write_bytes(b"x")
    assert not mine.verify()
    mine.capture(Store().put, now=1.0)
    assert mine.verify()
    path.unlink()
    assert not mine.verify()


@pytest.mark.parametrize("now", [b"other", b"ab", b""])
def test_resume_from_a_file_that_is_not_the_logs_sends_all_of_it(path: Path, now: bytes) -> None:
    path.write_bytes(b"abc")
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    path.write_bytes(now)
    mine = tracker(path)
    mine.resume_from(captured)
    told = mine.capture(Store().put, now=2.0)
    assert told is not None and apply(b"abc", told) == now


def test_resume_from_a_repaired_file_sends_the_blocks_that_differ_from_the_exact_copy(path: Path) -> None:
    was = os.urandom(10 * BLOCK)
    path.write_bytes(was)
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    exact = path.with_name("exact")
    exact.write_bytes(was)
    now = b"another head" + was[12 : 9 * BLOCK + 7] + b"a call was put back"
    path.write_bytes(now)
    mine, store = tracker(path), Store()
    mine.resume_from(captured, exact)
    told = mine.capture(store.put, now=2.0)
    assert told is not None and apply(was, told) == now
    assert [(e.offset, e.data.size) for e in told.edits] == [(0, BLOCK), (9 * BLOCK, len(now) - 9 * BLOCK)]
    path.write_bytes(now + b"more")
    told = mine.capture(store.put, now=3.0)
    assert told is not None and [(e.offset, e.data.size) for e in told.edits] == [(len(now), 4)]


@pytest.mark.parametrize("copy", [b"not what the log has", None])
def test_a_copy_that_is_not_the_logs_version_is_not_compared_with(path: Path, copy: bytes | None) -> None:
    path.write_bytes(b"abc")
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    exact = path.with_name("exact")
    if copy is not None:
        exact.write_bytes(copy)
    path.write_bytes(b"xbc")
    mine = tracker(path)
    mine.resume_from(captured, exact)
    told = mine.capture(Store().put, now=2.0)
    assert told is not None and [(e.offset, e.data.size) for e in told.edits] == [(0, 3)]


def test_resume_from_the_same_bytes_sends_nothing(path: Path) -> None:
    path.write_bytes(b"abc")
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    mine = tracker(path)
    mine.resume_from(captured)
    assert mine.captured
    assert mine.verify()
    assert mine.capture(Store().put, now=2.0) is None


def test_resume_from_what_grew_before_it_was_looked_at_sends_what_is_new(path: Path) -> None:
    """I9: the agent may be writing already."""
    path.write_bytes(b"abc")
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    mine, store = tracker(path), Store()
    mine.resume_from(captured)
    path.write_bytes(b"abcd")
    assert not mine.verify()
    told = mine.capture(store.put, now=2.0)
    assert told is not None and [(e.offset, e.data.size) for e in told.edits] == [(3, 1)]


def test_a_capture_that_failed_resumes_again(path: Path) -> None:
    path.write_bytes(b"abc")
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    mine = tracker(path)
    mine.resume_from(captured)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        mine.capture(Store().put, now=2.0)
    assert mine.captured
    path.write_bytes(b"abc")
    assert mine.capture(Store().put, now=3.0) is None


def test_what_is_forgotten_is_not_resumed(path: Path) -> None:
    path.write_bytes(b"abc")
    captured = tracker(path).capture(Store().put, now=1.0)
    assert captured is not None
    mine = tracker(path)
    mine.resume_from(captured)
    mine.forget()
    told = mine.capture(Store().put, now=2.0)
    assert told is not None and [(e.offset, e.data.size) for e in told.edits] == [(0, 3)]


def test_what_is_no_plain_file_is_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    (tmp_path / "link").symlink_to(secret)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(NotCapturable):
            tracker(tmp_path / name).capture(Store().put, now=1.0)
    with pytest.raises(FileNotFoundError):
        tracker(tmp_path / "none").capture(Store().put, now=1.0)


# ---- what is remembered, and what a look costs --------------------------------------------------------------------


def test_of_a_version_the_hash_of_each_block_is_known_also_of_the_last_that_is_not_full() -> None:
    known, data = KnownVersion((0, 0)), noise(2 * BLOCK + 5)
    assert known.block(0) == (0, b"")
    known.feed(data[:7])
    known.feed(data[7:])
    assert [known.block(at)[0] for at in range(0, 5 * BLOCK, BLOCK)] == [BLOCK, BLOCK, 5, 0, 0]
    for at in (0, BLOCK, 2 * BLOCK):
        assert known.block(at)[1] == hashlib.sha256(data[at : at + BLOCK]).digest()
    assert known.block(3 * BLOCK) == (0, b"")
    full = KnownVersion((0, 0))
    full.feed(data[:BLOCK])
    assert full.block(BLOCK) == (0, b"") and full.tail == data[BLOCK - TAIL : BLOCK]


def test_pieces_are_full_and_edits_are_counted_whether_they_are_stored_or_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 4)
    monkeypatch.setattr(module, "MAX_EDITS", 5)
    store = Store()
    mine = Edits(store.put)
    mine.add(0, b"x" * 10)
    assert store.sizes == [4, 4] and not mine.scattered, "two are stored and one waits"
    mine.add(20, b"y")
    assert not mine.scattered
    mine.add(30, b"z")
    assert mine.scattered and [(e.offset, e.data.size) for e in mine.done()] == [
        (0, 4),
        (4, 4),
        (8, 2),
        (20, 1),
        (30, 1),
    ]
    mine.add(40, b"x" * 5)
    assert [(e.offset, e.data.size) for e in mine.done()[5:]] == [(40, 4), (44, 1)]


def test_the_first_call_is_settled_news_also_after_records_were_lost(path: Path) -> None:
    path.write_bytes(b"abc")
    mine, store = tracker(path), Store()
    assert not mine.captured and not mine.moving
    for _ in range(2):
        told = mine.capture(store.put, now=1.0, settled=0)
        assert told is not None and (told.settled, told.size) == (0, 3)
        assert mine.capture(store.put, now=2.0, settled=0) is None
        told = mine.capture(store.put, now=3.0, settled=1)
        assert told is not None and (told.settled, told.edits) == (1, ())
        assert mine.capture(store.put, now=4.0, settled=1) is None
        mine.forget()
        assert mine.captured


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read."""
    found, real = list[int](), os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        data = real(fd, size, offset)
        found.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", pread)
    return found


def test_a_file_that_is_as_it_was_costs_a_look_at_its_end(path: Path, reads: list[int]) -> None:
    path.write_bytes(noise(3 * BLOCK))
    mine, store = tracker(path), Store()
    mine.capture(store.put, now=1.0)
    reads.clear()
    assert mine.capture(store.put, now=2.0) is None and sum(reads) == TAIL


def test_a_file_of_a_resumed_session_is_read_once(path: Path, reads: list[int]) -> None:
    data = noise(3 * BLOCK)
    path.write_bytes(data)
    told = tracker(path).capture(Store().put, now=1.0)
    assert told is not None
    mine, store = tracker(path), Store()
    mine.resume_from(told)
    path.write_bytes(data + b"more")
    reads.clear()
    told = mine.capture(store.put, now=2.0)
    assert told is not None and [(e.offset, e.data.data) for e in told.edits] == [(len(data), b"more")]
    assert sum(reads) == len(data) + TAIL + 4


def test_a_file_that_was_touched_is_compared_and_then_known_again(path: Path, reads: list[int]) -> None:
    path.write_bytes(noise(3 * BLOCK))
    mine, store = tracker(path), Store()
    mine.capture(store.put, now=1.0)
    os.utime(path, ns=(5, 5))
    assert mine.capture(store.put, now=2.0) is None
    reads.clear()
    assert mine.capture(store.put, now=3.0) is None and sum(reads) == TAIL
