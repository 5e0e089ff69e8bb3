"""wal/blobs.py and wal/retention.py: a captured file comes back byte for byte, whatever was done to it (I4)."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.world import World
from wal_agent.errors import Damaged
from wal_agent.records import Edit, FileDelta, Payload
from wal_agent.wal import blobs as blobs_module
from wal_agent.wal import blobs as files_module
from wal_agent.wal import retention as mirror_module
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.retention import Mirror
from wal_agent.wal.state import FileState, State, apply


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_blobs(world: World) -> Blobs:
    return Blobs(world.store, epoch=1, parallel=1)


def delta(blobs: Blobs, old: bytes, edits: list[tuple[int, bytes]], size: int) -> tuple[FileDelta, bytes]:
    """A record of the edits, and what the file is after it."""
    new = bytearray(old)
    for offset, data in edits:
        new[offset : offset + len(data)] = data
    del new[size:]
    made = tuple(Edit(offset=o, data=blobs.put_payload(d)) for o, d in edits)
    return FileDelta(time=1.0, path="f", size=len(new), sha256=sha(bytes(new)), edits=made, session="s"), bytes(new)


def grown(state: State, record: FileDelta) -> State:
    return apply(state, 1, 1, record)


def restored(blobs: Blobs, file: FileState) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        write_file(blobs, file, Path(folder) / "out")
        return (Path(folder) / "out").read_bytes()


@settings(deadline=None)
@given(st.data())
def test_random_edits_and_snapshots_between(data: st.DataObject) -> None:
    """Chunks and blobs are made tiny here, so that every border is met."""
    small = [mock.patch.object(m, "CHUNK", 8) for m in (files_module, mirror_module)]
    with small[0], small[1], mock.patch.object(blobs_module, "INLINE", 5), tempfile.TemporaryDirectory() as folder:
        world = World()
        blobs = make_blobs(world)
        mirror = Mirror(Path(folder), blobs)
        state, content = State(), b""
        for _ in range(data.draw(st.integers(1, 6))):
            edits, size = [], len(content)
            for _ in range(data.draw(st.integers(0, 3))):
                edit = (data.draw(st.integers(0, size)), data.draw(st.binary(max_size=20)))
                edits.append(edit)
                size = max(size, edit[0] + len(edit[1]))
            record, content = delta(blobs, content, edits, data.draw(st.integers(0, size)))
            state = grown(state, record)
            assert restored(blobs, state.files["f"]) == content
            match data.draw(st.sampled_from(["", "compact", "restart"])):
                case "compact":
                    state = msgspec.structs.replace(state, files=mirror.compact(state.files))
                case "restart":  # the private copy is lost with its process
                    with tempfile.TemporaryDirectory() as other:
                        state = msgspec.structs.replace(state, files=Mirror(Path(other), blobs).compact(state.files))
            assert restored(blobs, state.files["f"]) == content


def test_a_file_that_grew_costs_its_new_chunks_only(tmp_path: Path) -> None:
    with mock.patch.object(files_module, "CHUNK", 8), mock.patch.object(mirror_module, "CHUNK", 8):
        world = World()
        blobs = make_blobs(world)
        mirror = Mirror(tmp_path, blobs)
        record, content = delta(blobs, b"", [(0, bytes(range(100)))], 100)
        state = State(files=mirror.compact(grown(State(), record).files))
        world.bucket.puts.clear()
        record, content = delta(blobs, content, [(100, b"tail")], 104)
        files = mirror.compact(grown(state, record).files)
        assert len(world.bucket.puts) == 1  # the last chunk, which is full now
        assert restored(blobs, files["f"]) == content
        world.bucket.puts.clear()
        assert mirror.compact(files) == files
        assert world.bucket.puts == []


def test_what_was_written_over_is_not_fetched(tmp_path: Path) -> None:
    """A file that a delta sent whole needs nothing from before it."""
    with mock.patch.object(files_module, "CHUNK", 8), mock.patch.object(mirror_module, "CHUNK", 8):
        world = World()
        blobs = make_blobs(world)
        first, content = delta(blobs, b"", [(0, b"x" * 100)], 100)
        state = State(files=Mirror(tmp_path, blobs).compact(grown(State(), first).files))
        for edits, size in (([(0, b"y" * 20), (20, b"z" * 10)], 30), ([(30, b"tail")], 34)):
            record, content = delta(blobs, content, edits, size)
            state = grown(state, record)
        file = state.files["f"]
        absent = msgspec.structs.replace(file, chunks=tuple(f"{sha(b'')}-1" for _ in file.chunks))
        assert restored(blobs, absent) == b"y" * 20 + b"z" * 10 + b"tail"
        with pytest.raises(Damaged):
            restored(blobs, msgspec.structs.replace(absent, layers=file.layers[1:]))


@pytest.mark.parametrize("edits", [[(0, b"y" * 20)], [(0, b"y" * 20), (21, b"y" * 9)], [(1, b"y" * 29)]])
def test_what_was_not_written_over_is_still_needed(edits: list[tuple[int, bytes]], tmp_path: Path) -> None:
    blobs = make_blobs(World())
    first, content = delta(blobs, b"", [(0, b"x" * 100)], 100)
    state = State(files=Mirror(tmp_path, blobs).compact(grown(State(), first).files))
    record, content = delta(blobs, content, edits, 30)
    assert restored(blobs, grown(state, record).files["f"]) == content


def test_a_file_that_is_gone_leaves_the_mirror(tmp_path: Path) -> None:
    blobs = make_blobs(World())
    mirror = Mirror(tmp_path, blobs)
    record, _ = delta(blobs, b"", [(0, b"x")], 1)
    mirror.compact(grown(State(), record).files)
    assert len(list(tmp_path.iterdir())) == 1
    mirror.compact({})
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_was_tampered_with_is_not_compacted(tmp_path: Path) -> None:
    blobs = make_blobs(World())
    mirror = Mirror(tmp_path, blobs)
    record, content = delta(blobs, b"", [(0, b"abc")], 3)
    state = State(files=mirror.compact(grown(State(), record).files))
    next(tmp_path.iterdir()).write_bytes(b"abX")
    record, content = delta(blobs, content, [(3, b"def")], 6)
    state = grown(state, record)
    with pytest.raises(Damaged):
        mirror.compact(state.files)
    assert restored(blobs, mirror.compact(state.files)["f"]) == b"abcdef"  # built anew


def layer(size: int, *edits: Edit) -> FileState:
    record = FileDelta(
        time=1.0, path="f", size=size, sha256=sha(bytes(max(0, min(size, 99)))), edits=edits, session="s"
    )
    return FileState(session="s", size=size, sha256=record.sha256, layers=(record,))


@pytest.mark.parametrize(
    "file",
    [
        layer(9, Edit(offset=4, data=Payload(size=5, data=bytes(5)))),  # begins behind the end
        layer(1 << 50, Edit(offset=0, data=Payload(size=1, data=b"x"))),
        layer(1, Edit(offset=-1, data=Payload(size=2, data=bytes(2)))),
        layer(1, Edit(offset=0, data=Payload(size=-1, data=b""))),
        layer(1, Edit(offset=0, data=Payload(size=1 << 60, blob="0" * 64))),
        layer(2, Edit(offset=0, data=Payload(size=1, data=b"\0"))),
        layer(-1),
        layer(1, Edit(offset=0, data=Payload(size=1, data=b"x"))),  # another hash
        FileState(session="s", size=1, sha256=sha(b"\0"), base_size=1),
        FileState(session="s", size=1, sha256=sha(b"\0"), base_size=-1),
        FileState(session="s", size=1, sha256=sha(b"\0"), base_size=1 << 60, chunks=("0" * 64,)),
        FileState(session="s", size=1, sha256=sha(b"\0"), base_size=1, chunks=("0" * 64,)),
        FileState(session="s", size=1, sha256=sha(b"\0"), base_size=1, chunks=("../../../x",)),
    ],
)
def test_hostile_files_are_damaged_and_leave_nothing(file: FileState, tmp_path: Path) -> None:
    with pytest.raises(Damaged):
        write_file(make_blobs(World()), file, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_beyond_the_cap(tmp_path: Path) -> None:
    blobs = make_blobs(World())
    record, content = delta(blobs, b"", [(0, b"abc")], 3)
    file = grown(State(), record).files["f"]
    with mock.patch.object(files_module, "MAX_FILE", 2), pytest.raises(Damaged, match="leaves"):
        write_file(blobs, file, tmp_path / "out")
    with mock.patch.object(files_module, "MAX_FILE", 3):
        assert restored(blobs, file) == content


def test_a_chunk_of_another_length(tmp_path: Path) -> None:
    blobs = make_blobs(World())
    file = FileState(session="s", size=2, sha256=sha(b"ab"), base_size=2, chunks=(blobs.put(b"abc"),))
    with pytest.raises(Damaged, match="3 bytes"):
        write_file(blobs, file, tmp_path / "out")


def test_nothing_is_overwritten_and_no_link_followed(tmp_path: Path) -> None:
    file = FileState(session="s", size=0, sha256=sha(b""))
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            write_file(make_blobs(World()), file, tmp_path / name)
    assert (tmp_path / "there").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
    write_file(make_blobs(World()), file, tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("most", "damaged"), [(3, False), (2, True)])
def test_a_base_as_big_as_the_cap_is_one(most: int, damaged: bool, tmp_path: Path) -> None:
    blobs = make_blobs(World())
    file = FileState(session="s", size=3, sha256=sha(b"abc"), base_size=3, chunks=(blobs.put(b"abc"),))
    with mock.patch.object(files_module, "MAX_FILE", most):
        if damaged:
            with pytest.raises(Damaged, match="cannot hold"):
                write_file(blobs, file, tmp_path / "out")
        else:
            assert restored(blobs, file) == b"abc"


@pytest.mark.parametrize(
    ("edits", "size", "content"),
    [
        ([(3, b"d")], 4, b"abcd"),  # right behind the end
        ([(0, b"")], 3, b"abc"),
        ([(3, b"")], 3, b"abc"),
        ([], 0, b""),
        ([], 1, b"a"),
        ([(0, b"xyz")], 3, b"xyz"),
        ([(1, b"Y"), (2, b"Z")], 3, b"aYZ"),
    ],
)
def test_an_edit_up_to_the_end_and_a_cut_down_to_nothing_are_none_too_far(
    edits: list[tuple[int, bytes]], size: int, content: bytes
) -> None:
    blobs = make_blobs(World())
    first, before = delta(blobs, b"", [(0, b"abc")], 3)
    record, made = delta(blobs, before, edits, size)
    assert made == content
    assert restored(blobs, grown(grown(State(), first), record).files["f"]) == content


def test_a_restored_file_is_its_owners_alone(tmp_path: Path) -> None:
    with files_module.create_file(tmp_path / "out"):
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files_module.create_file(tmp_path / "out")


@pytest.mark.parametrize(
    ("edits", "size", "touched"),
    [
        ([(0, b"x")], 20, {0}),
        ([(7, b"xy")], 20, {0, 1}),
        ([(8, b"x" * 8)], 20, {1}),
        ([(16, b"")], 20, set()),
        ([], 20, set()),
        ([], 16, set()),  # the last chunk is gone, and those before it are whole
        ([], 15, {1}),
        ([], 17, {2}),
        ([(20, b"x" * 5)], 25, {2, 3}),
        ([], 0, set()),
    ],
)
def test_the_chunks_that_a_delta_changes_are_known(
    edits: list[tuple[int, bytes]], size: int, touched: set[int], tmp_path: Path
) -> None:
    with mock.patch.object(files_module, "CHUNK", 8), files_module.create_file(tmp_path / "out") as out:
        out.write(b"a" * 20)
        blobs = make_blobs(World())
        record, content = delta(blobs, b"a" * 20, edits, size)
        file = FileState(session="s", size=size, sha256=sha(content), base_size=20, layers=(record,))
        assert files_module.apply_layers(blobs, file, out) == touched


def test_a_restored_file_is_on_the_disk_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Synced when all of it has left this process: else a restored file could be empty after a power cut."""
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    blobs = make_blobs(World())
    record, content = delta(blobs, b"", [(0, b"short")], 5)
    write_file(blobs, grown(State(), record).files["f"], tmp_path / "out")
    assert sizes == [len(content)]
