"""Moves out of the way what a captured tree would replace and no save holds: renamed beside its place, never removed.

Nothing is followed: each path is looked at from the top, without links.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.recovery.restore_tree import NESTED_REPOSITORY, Tree, TreeEntry, parent_paths
from wal_agent.safefs import open_plain

ASIDE_MARK = ".wal-agent-aside-"


@dataclass(frozen=True, slots=True)
class MovedAside:
    """`moved`: the new names, relative. `same`: paths that are not in the save and hold what is wanted already."""

    moved: tuple[str, ...]
    same: tuple[str, ...]


def move_aside(folder: Path, here: Tree, tree: Tree, now: float) -> MovedAside:
    """Rename what `tree` would replace in `folder` and what is not in `here`, the save of it. OSError where that cannot
    be."""
    return _Mover(folder, here, tree, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))).clear()


class _Mover:
    def __init__(self, folder: Path, here: Tree, tree: Tree, stamp: str) -> None:
        self.folder, self.here, self.tree, self.stamp = folder, here, tree, stamp
        self.saved_folders = {parent for path in here for parent in parent_paths(path)}
        self.folders: dict[str, bool] = {}  # paths above: whether they are folders that may be written into
        self.moved: list[str] = []
        self.same: list[str] = []

    def clear(self) -> MovedAside:
        for path in sorted(p for p, e in self.tree.items() if p not in self.here or _hides(self.here[p], e)):
            # below what is no folder nothing can stand; what it is itself is in the save, or has just been moved
            if all(self._is_folder(parent) for parent in parent_paths(path)):
                self._look(path, self.tree[path])
        return MovedAside(tuple(self.moved), tuple(self.same))

    def _look(self, path: str, wanted: TreeEntry) -> None:
        info = self._lstat(path)
        if info is None:
            return
        if stat.S_ISDIR(info.st_mode):
            stays = wanted.mode == NESTED_REPOSITORY or (path in self.saved_folders and self._only_saved(path))
        else:
            stays = path not in self.here and _is_same(self.folder / path, info, wanted)
            self.same += [path] if stays else []
        if not stays:
            self._aside(path)

    def _is_folder(self, path: str) -> bool:
        if path not in self.folders:
            info = self._lstat(path)
            inside = path in self.here and self.here[path].mode == NESTED_REPOSITORY
            self.folders[path] = info is not None and stat.S_ISDIR(info.st_mode) and not inside
            if info is not None and not self.folders[path] and (inside or path not in self.here):
                self._aside(path)
        return self.folders[path]

    def _only_saved(self, path: str) -> bool:
        """Whether all below a folder is in the save."""
        for base, folders, files in os.walk(self.folder / path, followlinks=False):
            at = Path(base)
            links = [name for name in folders if (at / name).is_symlink()]
            inside = at.relative_to(self.folder)
            if any(str(inside / name) not in self.here for name in (*files, *links)) or not (folders or files):
                return False
        return True

    def _aside(self, path: str) -> None:
        wanted = f"{path}{ASIDE_MARK}{self.stamp}"
        name, n = wanted, 1
        while self._lstat(name) is not None:
            n += 1
            name = f"{wanted}-{n}"
        (self.folder / path).rename(self.folder / name)
        self.moved.append(name)

    def _lstat(self, path: str) -> os.stat_result | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self.folder / path).lstat()
        return None


def _hides(old: TreeEntry, new: TreeEntry) -> bool:
    """The save names a repository inside without its files, and something else is to stand there."""
    return old.mode == NESTED_REPOSITORY and new.mode != NESTED_REPOSITORY


def _is_same(path: Path, info: os.stat_result, wanted: TreeEntry) -> bool:
    """Whether a plain file already is what the tree wants there, by the id that git gives to its bytes."""
    size, mode = info.st_size, "100755" if info.st_mode & 0o100 else "100644"
    if not stat.S_ISREG(info.st_mode) or (size, mode) != (wanted.size, wanted.mode):
        return False
    digest = hashlib.new("sha1" if len(wanted.id) == 40 else "sha256", b"blob %d\0" % size)
    try:
        file = open_plain(path)
    except OSError:
        return False
    with file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest() == wanted.id
