"""Compaction of captured files: a private copy of each as of a place in the log, cut into chunks (I9).

The copy makes a snapshot of a file that grew cost its new chunks only. It lives in a private folder of this process and
is built again from the log whenever it does not fit: losing it costs time, never bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BufferedRandom
from pathlib import Path

import msgspec

from wal_agent.wal.blobs import Blobs
from wal_agent.wal.files import CHUNK, apply_layers, chunk_count, create_file, write_base
from wal_agent.wal.state import FileState


class Mirror:
    """`folder` exists and belongs to this process alone. Not for two threads at once."""

    def __init__(self, folder: Path, blobs: Blobs) -> None:
        self._folder, self._blobs = folder, blobs
        self._copies: dict[str, tuple[str, ...]] = {}  # logical name -> chunks of what stands on disk

    def compact(self, files: dict[str, FileState]) -> dict[str, FileState]:
        """The same files with all layers in chunks, which are durable. Damaged, Unavailable, Denied; OSError."""
        for gone in self._copies.keys() - files.keys():
            self._copies.pop(gone)
            self._at(gone).unlink(missing_ok=True)
        return {path: self._compact(path, file) if file.layers else file for path, file in files.items()}

    def _compact(self, path: str, file: FileState) -> FileState:
        known = self._copies.pop(path, None)  # not trusted again if something goes wrong below
        at = self._at(path)
        if known != file.chunks:
            at.unlink(missing_ok=True)
            with create_file(at) as out:
                write_base(self._blobs, file, out)
        with at.open("r+b") as out:
            touched = apply_layers(self._blobs, file, out)
            changed = [n for n in range(chunk_count(file.size)) if n in touched]
            names = dict(zip(changed, self._blobs.put_each(_chunks(out, changed)), strict=True))
        chunks = tuple(names.get(n) or file.chunks[n] for n in range(chunk_count(file.size)))
        self._copies[path] = chunks
        return msgspec.structs.replace(file, chunks=chunks, base_size=file.size, layers=())

    def _at(self, path: str) -> Path:
        # Logical names come from the log: hashed, they cannot leave the folder.
        return self._folder / hashlib.sha256(path.encode()).hexdigest()


def _chunks(out: BufferedRandom, numbers: list[int]) -> Iterator[bytes]:
    for number in numbers:
        out.seek(number * CHUNK)
        yield out.read(CHUNK)
