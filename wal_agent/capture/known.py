"""What is remembered of a captured version: hashes only, so that memory stays small whatever the file's size (I9)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Hash = hashlib._Hash

BLOCK = 128 * 1024  # unit in which a rewritten file is compared; more than a record carries inline (wal/blobs.py)
TAIL = 4 * 1024  # bytes before the end that must stand unchanged for a grown file to count as appended to
DIGEST = 32


@dataclass(slots=True)
class KnownVersion:
    """The first `size` bytes of a file, in running hashes: 32 bytes are kept for each block.

    `inode` is (device, inode); `mtime` in ns, -1 when the file grew while it was read (then no stat result can match).
    """

    inode: tuple[int, int]
    mtime: int = -1
    size: int = 0
    tail: bytes = b""
    sha: Hash = field(default_factory=hashlib.sha256)
    _whole: bytearray = field(default_factory=bytearray)  # digests of the blocks that are full
    _last: Hash = field(default_factory=hashlib.sha256)  # of the block that is not full yet

    def copy(self) -> KnownVersion:
        """A copy that can be fed without touching this one."""
        return KnownVersion(
            self.inode, self.mtime, self.size, self.tail, self.sha.copy(), bytearray(self._whole), self._last.copy()
        )

    def feed(self, data: bytes) -> None:
        """Append `data` to what is described."""
        self.sha.update(data)
        view = memoryview(data)
        while view:
            room = BLOCK - self.size % BLOCK
            part, view = view[:room], view[room:]
            self._last.update(part)
            self.size += len(part)
            if self.size % BLOCK == 0:
                self._whole += self._last.digest()
                self._last = hashlib.sha256()
        self.tail = (self.tail + data[-TAIL:])[-TAIL:]

    def block(self, offset: int) -> tuple[int, bytes]:
        """Length and sha256 of what is known of the block at `offset` (a multiple of BLOCK); 0 past the end."""
        at = offset // BLOCK * DIGEST
        if at < len(self._whole):
            return BLOCK, bytes(self._whole[at : at + DIGEST])
        length = max(0, self.size - offset)
        return length, self._last.digest() if length else b""

    @property
    def sha256(self) -> str:
        return self.sha.hexdigest()
