"""Brings the packs of a captured working tree from the bucket into our own repository.

What comes from the bucket is hostile: sizes are bounded and checked before the disk fills, the hash is checked before
git reads a byte, and git itself checks each object against its id.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from wal_agent.capture.git import GitFailed
from wal_agent.capture.shadow import Shadow, is_object_id
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import ConfigError, Damaged
from wal_agent.records import Pack, Workspace
from wal_agent.wal.blobs import Blobs

MAX_PACK_BYTES = 256 << 30  # of all packs together
MAX_PART = 256 << 20  # bytes of one part, which is held in memory
_STREAM = "core.bigFileThreshold=1m"  # bytes: what is bigger is not unpacked in memory


def fetch_packs(shadow: Shadow, captured: Workspace, blobs: Blobs, *alternates: Path) -> None:
    """Unpack all packs of `captured` in `shadow`. Under its lock. Damaged; ConfigError where the disk cannot hold them;
    BucketError."""
    check_packs(captured)
    size = sum(pack.size for pack in captured.packs)
    free = shutil.disk_usage(shadow.folder).free
    if 2 * size > free:
        raise ConfigError(
            f"The working tree needs {2 * size} bytes in {shadow.folder}, and {free} are free.", "Make room there."
        )
    for number, pack in enumerate(captured.packs, 1):
        path = shadow.tmp / "part.pack"
        _download_pack(pack, blobs, path, f"{number} of {len(captured.packs)}")
        try:
            _index_pack(shadow, path, pack.sha256, *alternates)
        except GitFailed as error:
            raise Damaged(f"Pack {number} of the captured working tree cannot be read: {error}.") from error


def check_packs(captured: Workspace) -> None:
    """Damaged for what no capture says. Reads nothing."""
    if not is_object_id(captured.commit):
        raise Damaged("The log names a captured working tree by what is no commit's id.")
    for pack in captured.packs:
        parts = [part.size for part in pack.parts]
        if pack.size != sum(parts) or not all(0 < size <= MAX_PART for size in parts):
            raise Damaged("The log names a pack of the working tree whose parts cannot make it up.")
    if sum(pack.size for pack in captured.packs) > MAX_PACK_BYTES:
        raise Damaged("The log names packs of the working tree that are bigger than any that was saved.")


def _download_pack(pack: Pack, blobs: Blobs, path: Path, which: str) -> None:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in _fetch_parts(pack, blobs):
            digest.update(data)
            file.write(data)
    if digest.hexdigest() != pack.sha256:
        raise Damaged(f"Pack {which} of the captured working tree is damaged: its bytes have another hash.")


def _fetch_parts(pack: Pack, blobs: Blobs) -> Iterator[bytes]:
    return prefetch_map(blobs.fetch, pack.parts, blobs.parallel)


def _index_pack(shadow: Shadow, path: Path, name: str, *alternates: Path) -> None:
    """Index the pack file, where each object is checked against its id, and move it to the others. GitFailed."""
    shadow.git.run("-c", _STREAM, "index-pack", str(path), at=shadow.at(*alternates))
    target = shadow.objects / "pack" / f"pack-{name}.pack"
    for suffix in (".pack", ".rev", ".idx"):  # a pack is one from when its index is there
        if path.with_suffix(suffix).exists():
            path.with_suffix(suffix).replace(target.with_suffix(suffix))
