"""Issue 34.8: tiny objects of a stranger that would take all memory, all files or all time."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.security.test_adoption import World, forge
from tests.unit.supervise.crew import short_folder
from wal_agent.bucket.base import MAX_BYTES, most_bytes
from wal_agent.capture.git import Git, GitFailed
from wal_agent.errors import Exhausted
from wal_agent.records import Pack
from wal_agent.recovery.restore_tree import plausible_files
from wal_agent.recovery.restore_workspace import _Restore
from wal_agent.wal import codec

# Decodes one object in a process that may have 700 MiB, and says what was wrong with it.
DECODE = """
import resource, sys
from wal_agent.errors import Damaged
from wal_agent.wal import codec
resource.setrlimit(resource.RLIMIT_DATA, (700 << 20, 700 << 20))
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


@pytest.mark.parametrize(("kind", "size"), [("segment", 15 << 20), ("segment", 2_000_000), ("snapshot", 60 << 20)])
def test_a_small_object_stays_small_in_memory(kind: str, size: int) -> None:
    data = bomb(size, b"\x90")
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
    assert most_bytes("j/lease.json") < most_bytes("j/log/1") < most_bytes("j/snapshots/1") < most_bytes("j/blobs/x")
    assert most_bytes("j/blobs/x") == most_bytes("names.json") == MAX_BYTES
    assert most_bytes("prefix/j/log/1") > codec.MAX_READ and most_bytes("prefix/j/snapshots/1") > codec.MAX_SNAPSHOT


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
        git.run("index-pack", str(path), cwd=tmp_path / "r", foreign=True)


def test_a_tree_fits_its_packs_and_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack of 644 bytes that names two million files; and a disk with too few inodes."""
    small = cast("Pack", SimpleNamespace(size=644))
    assert plausible_files([small]) < 2_000_000 < plausible_files([small] * 10_000)
    here = cast("_Restore", SimpleNamespace(folder=tmp_path))
    _Restore._room(here, 1, 1)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=100, f_favail=10))
    with pytest.raises(Exhausted, match="11 files"):
        _Restore._room(here, 1, 11)
