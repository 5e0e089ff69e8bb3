"""Tiny objects of a stranger that would take all memory, all files or all time."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from tests.security.test_adoption import World, forge
from tests.unit.recovery.lab import Lab
from tests.unit.recovery.test_restore_workspace_hostile import Forge, nothing_changes
from tests.unit.supervise.crew import short_folder
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.budget import FOREIGN, Budget
from wal_agent.capture.git import Git, GitBounds, GitFailed
from wal_agent.capture.shadow import GitState
from wal_agent.cli.stats import measure
from wal_agent.errors import Damaged, Exhausted
from wal_agent.fleet.stats import Measured, Stats
from wal_agent.records import Workspace
from wal_agent.recovery.restore_workspace import _Restore
from wal_agent.wal import codec
from wal_agent.wal.codec import Snapshot
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import State

# Decodes one object in a process that may have 300 MiB, and says what was wrong with it.
DECODE = """
import resource, sys
from wal_agent.errors import Damaged
from wal_agent.wal import codec
from wal_agent.wal.codec import Snapshot
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import State
resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20))
decode = codec.decode_segment if sys.argv[1] == "segment" else codec.decode_snapshot
try:
    decode(sys.stdin.buffer.read(), job="j", seq=1)
except Damaged:
    sys.exit(9)
"""


def bomb(size: int, what: bytes) -> bytes:
    """A field that no version has, with `size` of the smallest elements there are."""
    raw = b"\x83\xa6format\x01\xa3job\xa1j\xa4evil\xdd" + struct.pack(">I", size) + what * size
    return codec.compress(raw)


def known(size: int) -> bytes:
    """A snapshot with `size` of the smallest elements that its own fields may have."""
    capture = Workspace(time=0.0, holds=0, commit="0" * 40, packs=(), whole=True, also=(7,))
    made = Snapshot(format=1, job="j", seq=1, hash=bytes(32), state=State(workspace=capture), time=0.0)
    raw = msgspec.msgpack.encode(made)
    return codec.compress(raw.replace(b"\xa4also\x91\x07", b"\xa4also\xdd" + struct.pack(">I", size) + b"\x01" * size))


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "segment of lists": ("segment", lambda: bomb(15 << 20, b"\x90")),
    "small segment of lists": ("segment", lambda: bomb(2_000_000, b"\x90")),
    "snapshot of lists": ("snapshot", lambda: bomb(60 << 20, b"\x90")),
    "snapshot of what it may hold": ("snapshot", lambda: known(60 << 20)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_object_stays_small_in_memory(name: str) -> None:
    kind, make = BOMBS[name]
    data = make()
    assert len(data) < 10_000
    done = subprocess.run(
        [sys.executable, "-c", DECODE, kind], input=data, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 9, done.stderr.decode()[-400:]


def test_one_bad_job_costs_the_list_its_row() -> None:
    """A lease of 1.5 GB, beside a sound job."""
    with short_folder() as root:
        world = World(root.resolve())
        sound = forge(world).job
        bad = next(path for path in (world.bucket / sound).iterdir() if "lease" in path.name)
        (world.bucket / "huge").mkdir()
        huge = world.bucket / "huge" / bad.name
        huge.touch()
        os.truncate(huge, 1_500_000_000)
        done = subprocess.run(
            ["sh", "-c", f'ulimit -v 1200000; exec "{sys.executable}" -P -m wal_agent list --json'],
            cwd=world.folder,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(root / "home"),
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "WAL_AGENT_BUCKET": world.bucket.as_uri(),
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    jobs = rows[0].get("jobs", rows)
    assert {job["job"]: job["state"] == "damaged" for job in jobs} == {sound: False, "huge": True}


def test_every_kind_of_object_has_its_bound() -> None:
    of = FOREIGN.of_object
    assert of("j/lease.json") < of("j/log/1") < of("j/snapshots/1") < of("j/blobs/x") == FOREIGN.object
    assert of("j/inbox/x") < of("job-names.json") < of("j/log/1") * 8
    assert of("prefix/j/log/1") > FOREIGN.segment and of("prefix/j/snapshots/1") > FOREIGN.snapshot


def test_one_bad_job_costs_the_stats_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that takes all memory, one that takes for ever, and one that is sound."""
    bucket, waiting = MemoryBucket(), threading.Event()
    for job in ("greedy", "slow", "sound"):
        bucket.put(f"{job}/lease.json", b"{}")

    def measure_job(bucket: Bucket, keys: Keys, key_id: str) -> Measured:
        if keys.job == "greedy":
            raise MemoryError
        if keys.job == "slow":
            waiting.wait(60)
        return Measured(Stats(job=keys.job))

    monkeypatch.setattr("wal_agent.fleet.stats.measure_job", measure_job)
    monkeypatch.setattr("wal_agent.budget.FOREIGN", Budget(log_seconds=0.2))
    try:
        found, unread = measure(bucket, None, "")
    finally:
        waiting.set()
    assert [each.stats.job for each in found] == ["sound"]
    assert all(isinstance(unread[job], Exhausted) and f"--job {job}" in unread[job].hint for job in ("greedy", "slow"))


def _entry(kind: int, size: int, body: bytes, base: bytes = b"") -> bytes:
    head, size = bytearray([(kind << 4) | (size & 15)]), size >> 4
    while size:
        head[-1] |= 0x80
        head.append(size & 127)
        size >>= 7
    return bytes(head) + base + zlib.compress(body, 9)


def _delta(base: int, result: int, piece: int) -> bytes:
    """`result` bytes, as copies of the first `piece` bytes of the base."""

    def varint(n: int) -> bytes:
        out = bytearray()
        while n > 127:
            out.append(n & 127 | 128)
            n >>= 7
        return bytes((*out, n))

    copy = b"\xf0" + struct.pack("<I", piece)[:3]
    return varint(base) + varint(result) + copy * (result // piece)


def test_git_gets_no_more_memory_than_it_needs(tmp_path: Path) -> None:
    """A pack of some kB whose second delta makes 4.7 GiB."""
    piece = 15 << 20
    first = bytes(piece)
    name = hashlib.sha1(b"blob %d\0" % piece + first, usedforsecurity=False).digest()
    result = piece * 320
    body = _entry(3, piece, first)
    delta = _delta(piece, result, piece)
    body += _entry(7, len(delta), delta, name)
    pack = b"PACK" + struct.pack(">II", 2, 2) + body
    path = tmp_path / "evil.pack"
    path.write_bytes(pack + hashlib.sha1(pack, usedforsecurity=False).digest())
    assert path.stat().st_size < 50_000
    git = Git(dict(os.environ))
    git.run("init", "-q", str(tmp_path / "r"))
    with pytest.raises(GitFailed, match=r"(?i)memory|malloc|alloc"):
        git.run("index-pack", str(path), cwd=tmp_path / "r", within=GitBounds(foreign=True))


@pytest.mark.parametrize("state", [None, GitState()], ids=["alone", "in git"])
def test_a_tree_fits_its_packs(tmp_path: Path, state: GitState | None) -> None:
    """A pack of some hundred bytes that names 390,625 files, in git and outside of it."""
    lab = Lab(tmp_path)
    (tmp_path / "outside").mkdir()
    forge = Forge(lab)
    work = forge.object("blob", b"")
    for depth in range(4):
        mode = "40000" if depth else "100644"
        work = forge.tree(*((mode, f"{n:02}", work) for n in range(25)))
    captured = forge.capture(work, state)
    assert captured.packs[0].size < 2000
    assert "more" in str(nothing_changes(lab, captured, Damaged))


def test_repositories_inside_fit_their_packs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred of some hundred bytes would make a million files."""
    monkeypatch.setattr("wal_agent.recovery.restore_workspace.FOREIGN", Budget(files=1000))
    lab = Lab(tmp_path)
    forge = Forge(lab)
    work = forge.object("blob", b"")
    for mode in ("100644", "40000"):
        work = forge.tree(*((mode, f"{n:02}", work) for n in range(25)))
    small = forge.capture(work)
    around = forge.capture(forge.tree(("100644", "a", forge.object("blob", b"a"))))
    named = ("one", "three", "two")
    lab.state = State(workspace=around, inside={name: msgspec.structs.replace(small, folder=name) for name in named})
    done = lab.machine("b").restore()
    assert [(each.folder, "more than are restored" in each.why) for each in done.inside] == [
        ("one", False),
        ("three", True),
        ("two", True),
    ]


def test_a_tree_fits_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk with too few inodes."""
    here = cast("_Restore", SimpleNamespace(folder=tmp_path))
    _Restore._room(here, 1, 1)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=100, f_favail=10))
    with pytest.raises(Exhausted, match="11 files"):
        _Restore._room(here, 1, 11)
