"""What anything that a stranger may have written (objects of a bucket, packs, trees) may cost at most.

Who writes the bucket chooses the size and the content of each object, and some hundred bytes can mean gigabytes,
millions of files or minutes. All that reads such bytes takes its bounds from here. None of them can be met by what
wal-agent writes itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

_KINDS = MappingProxyType({"log": 4 << 20, "snapshots": 80 << 20, "inbox": 1 << 20, "outbox": 1 << 20})


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds. Of an object as it is stored: `object`, `lease`, `note` (beside the jobs),
    `kinds` (by its folder). Of what is in it: `segment`, `snapshot`, `swell` (how many times a snapshot may be as big
    as its object), `loose` (MessagePack that is read as whatever it is; one byte may become an object of 64).
    Of a working tree: `packs` together, `part` of one (held in memory), `files`, `listing`. `git_memory`: of a git that
    reads such bytes; `git_seconds`: of each. `log_seconds`: of one of several logs that are read for one answer."""

    object: int = 256 << 20
    lease: int = 1 << 20
    note: int = 16 << 20
    kinds: Mapping[str, int] = _KINDS
    segment: int = 2 << 20
    snapshot: int = 64 << 20
    swell: int = 200
    loose: int = 4 << 20
    packs: int = 256 << 30
    part: int = 256 << 20
    files: int = 5_000_000
    listing: int = 512 << 20
    git_memory: int = 3 << 30  # a file of a capture has 50 MiB
    git_seconds: float = 600.0
    log_seconds: float = 60.0

    def of_object(self, key: str) -> int:
        """How much of an object is read into memory, by what its key says that it is."""
        *folders, name = key.split("/")
        if name == "lease.json":
            return self.lease
        if name.endswith(".json"):
            return self.note
        return self.kinds.get(folders[-1], self.object) if folders else self.object

    def of_snapshot(self, stored: int) -> int:
        """How much content a snapshot of `stored` bytes may have."""
        return min(self.snapshot, 4 * self.segment + self.swell * stored)

    def of_tree(self, packs: Iterable[int]) -> int:
        """How many files a tree may have whose objects are all in packs of these sizes: a tree of trees that are all
        the same one names millions in some hundred bytes."""
        return min(self.files, 10_000 + 4 * sum(packs))

    def of_listing(self, files: int) -> int:
        """How long the listing of a tree of so many files may be, whatever their names."""
        return min(self.listing, files * 4200)


FOREIGN = Budget()
