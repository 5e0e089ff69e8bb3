"""The user's index: what is staged, and what is unmerged; from a copy, since git writes into what it reads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from wal_agent.capture.git import GitFailed
from wal_agent.capture.location import Location
from wal_agent.capture.shadow import Shadow
from wal_agent.plainfile import open_plain

MOST_INDEX = 256 << 20  # bytes of the user's index file
MOST_UNMERGED = 1 << 20  # bytes of the list of what is unmerged


class UserIndex:
    """Reads it anew when it is another one. Used under the shadow's lock."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._git = shadow.git
        self._known: tuple[object, tuple[str, bytes]] | None = None

    @property
    def stamp(self) -> object:
        """Another one when the index is another one."""
        return self._known[0] if self._known else None

    def forget(self) -> None:
        self._known = None

    def read(self, place: Location) -> tuple[str, bytes]:
        """Its tree ("" for none), and what is unmerged in it. The copy stays in the shadow's `user-index` for the
        scan."""
        assert place.git_dir is not None
        copy = self._shadow.folder / "user-index"
        found = _copy_index(place.git_dir / "index", copy, MOST_INDEX)
        stamp = (place, found)
        if self._known is not None and self._known[0] == stamp and found is not None:
            return self._known[1]
        self._known = (stamp, self._written(place, copy) if found else ("", b""))
        return self._known[1]

    def _written(self, place: Location, copy: Path) -> tuple[str, bytes]:
        assert place.git_dir is not None
        for old in self._shadow.folder.glob("sharedindex.*"):
            old.unlink()
        for shared in list(place.git_dir.glob("sharedindex.*"))[:16]:  # of a split index
            _copy_index(shared, self._shadow.folder / shared.name, MOST_INDEX)
        work = self._shadow.tmp / "index-tree"
        at = self._shadow.at(*place.alternates, work_tree=place.top, index=work)
        try:
            _copy_index(copy, work, MOST_INDEX)
            unmerged = self._git.run("ls-files", "-u", "-z", at=at)
            if unmerged:
                nothing = b"0 " + b"0" * (64 if place.object_format == "sha256" else 40) + b"\t"
                paths = {entry.partition(b"\t")[2] for entry in unmerged.split(b"\0")[:-1]}
                gone = b"".join(nothing + path + b"\0" for path in sorted(paths))
                self._git.run("update-index", "-z", "--index-info", at=at, input=gone)
            tree = self._git.run("write-tree", "--missing-ok", at=at).decode().strip()
        except GitFailed:
            return "", b""
        return tree, unmerged if len(unmerged) <= MOST_UNMERGED else b""


def _copy_index(source: Path, target: Path, most: int) -> tuple[int, ...] | None:
    """Copy a plain file, unless `target` has its size and times already; what identifies it. None: there is none, or it
    is too big."""
    try:
        file = open_plain(source)
    except OSError:
        target.unlink(missing_ok=True)
        return None
    with file:
        info = os.fstat(file.fileno())
        if info.st_size > most:
            target.unlink(missing_ok=True)
            return None
        with suppress(OSError):
            have = target.stat()
            if (have.st_size, have.st_mtime_ns) == (info.st_size, info.st_mtime_ns):
                return (info.st_ino, info.st_size, info.st_mtime_ns)
        with target.open("wb") as out:
            while part := file.read(1 << 20):
                out.write(part)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    return (info.st_ino, info.st_size, info.st_mtime_ns)
