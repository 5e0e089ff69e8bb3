"""Makes a folder's files equal to a captured tree, through git's own plumbing and never outside of the folder.

Files that neither the tree nor the save of what was here knows (ignored ones) are left alone. A crash leaves a mixture;
doing it again mends that.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.capture.git import GitDirs, GitFailed
from wal_agent.capture.shadow import Shadow
from wal_agent.errors import ConfigError, Damaged
from wal_agent.failpoints import failpoint
from wal_agent.safefs import open_plain
from wal_agent.sanitize import shorten

MAX_LISTING = 512 << 20  # bytes of a tree's listing
MAX_FILES = 5_000_000
FILE_MODES = frozenset({"100644", "100755", "120000"})
NESTED_REPOSITORY = "160000"  # a repository inside: its files are not saved
_REFUSED = re.compile("not uptodate|would be overwritten|would be removed|would lose")


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One path of a tree. `size` in bytes, 0 for a repository inside."""

    mode: str
    id: str
    size: int


Tree = Mapping[str, TreeEntry]


@dataclass(frozen=True, slots=True)
class Changes:
    """How a tree differs from what was here, in files."""

    changed: int = 0
    new: int = 0
    gone: int = 0

    @property
    def any(self) -> bool:
        return bool(self.changed or self.new or self.gone)


NO_CHANGES = Changes()


def list_tree(shadow: Shadow, tree: str, *alternates: Path, whole: bool = True) -> dict[str, TreeEntry]:
    """All paths of a tree. Damaged for what no folder can hold or what leads out of it, and where parts are missing;
    not `whole`: contents of files may be."""
    try:
        words = ("ls-tree", "-r", "-z", "-l", "--full-tree", tree)
        found = shadow.git.run(*words, at=shadow.at(*alternates), most=MAX_LISTING)
    except GitFailed as error:
        raise Damaged(f"The captured working tree cannot be read: {error}.") from error
    entries: dict[str, TreeEntry] = {}
    for line in found.split(b"\0")[:-1]:
        head, _, name = line.partition(b"\t")
        path = os.fsdecode(name)
        mode, _, id, size = head.decode().split()
        if size == "BAD" and whole:
            raise Damaged(f"The captured working tree is not whole: {shorten(path)} is missing.")
        if path in entries or mode not in (*FILE_MODES, NESTED_REPOSITORY) or not _stays_inside(path):
            raise Damaged(f"The captured working tree names what cannot be restored: {shorten(path)}.")
        entries[path] = TreeEntry(mode, id, int(size) if size.isdigit() else 0)
    if len(entries) > MAX_FILES:
        raise Damaged(f"The captured working tree has {len(entries)} files, more than are restored.")
    for path in entries:
        if file := next((p for p in parent_paths(path) if p in entries), None):
            raise Damaged(f"The captured working tree has {shorten(file)} both as a file and as a folder.")
    return entries


def _stays_inside(path: str) -> bool:
    """git refuses these too, with more spellings of .git; nothing rests on one of us alone."""
    return all(part not in ("", ".", "..") and part.lower() != ".git" for part in path.split("/"))


def parent_paths(path: str) -> Iterable[str]:
    """The folders above a path, the highest first."""
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)


def count_changes(old: Tree, new: Tree) -> Changes:
    """From `old` to `new`."""
    common = old.keys() & new.keys()
    differ = sum((old[p].mode, old[p].id) != (new[p].mode, new[p].id) for p in common)
    return Changes(differ, len(new) - len(common), len(old) - len(common))


def restrict_modes(folder: Path, tree: Tree, private: Iterable[bytes]) -> None:
    """Take group's and others' rights away from the plain files of `tree` that `private` names. OSError."""
    for path in map(os.fsdecode, private):
        if path in tree and tree[path].mode.startswith("100"):
            with open_plain(folder / path) as file:
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o700)


def tree_size(tree: Tree) -> int:
    """Bytes."""
    return sum(entry.size for entry in tree.values())


class ChangedMeanwhile(Exception):
    """Something in the folder is not as it was saved a moment ago."""


def checkout_tree(
    shadow: Shadow, folder: Path, here: str, tree: str, leave: Iterable[str], same: Iterable[str], *alternates: Path
) -> None:
    """Make the files in `folder` those of the tree `tree`. Under the shadow's lock.

    `here`: the tree that was saved of what is there, "" for an empty folder; what it lacks was moved aside before, or
    has the wanted bytes already (`same`). `leave`: paths of `here` that stay as they are. Moved: nothing was written,
    and what is there is to be saved again. ConfigError: this machine cannot take it; it may stand half done, and can be
    done again."""
    index = shadow.tmp / "restore-index"
    with suppress(FileNotFoundError):
        index.unlink()
    at = shadow.at(*alternates, work_tree=folder, index=index)
    try:
        if here:
            shadow.git.run("read-tree", here, at=at)
            if name := _first_difference(shadow, at):
                raise ChangedMeanwhile(name)
        _update_index(shadow, at, "--force-remove", leave)
        base = shadow.git.text("write-tree", at=at)
        _update_index(shadow, at, "--add", same)
        failpoint("restore.before_tree")
        _merge_tree(shadow, at, base, tree)
        name = _first_difference(shadow, at)
    except GitFailed as error:
        raise ConfigError(f"The working tree could not be put back into {folder}: {shorten(str(error))}") from error
    if name:
        raise ConfigError(f"The working tree could not be put back into {folder}: {name} is not as it was saved.")
    sync_filesystem(folder)
    index.replace(shadow.folder / "index")


def _merge_tree(shadow: Shadow, at: GitDirs, base: str, tree: str) -> None:
    """git itself refuses, before it writes anything, to replace what is not as the index has it."""
    try:
        shadow.git.run("read-tree", "-m", "-u", base, tree, at=at)
    except GitFailed as error:
        if _REFUSED.search(error.said):
            raise ChangedMeanwhile(shorten(error.said.strip(), 200)) from error
        raise


def _update_index(shadow: Shadow, at: GitDirs, how: str, paths: Iterable[str]) -> None:
    if listed := b"".join(os.fsencode(path) + b"\0" for path in paths):
        shadow.git.run("update-index", how, "-z", "--stdin", at=at, input=listed)


def _first_difference(shadow: Shadow, at: GitDirs) -> str:
    """The first file that is not as the index has it, for people; "" for none."""
    shadow.git.run("update-index", "-q", "--really-refresh", at=at, ok=(0, 1))
    found = shadow.git.run("diff-files", "--name-only", "-z", "--ignore-submodules=all", at=at)
    return shorten(os.fsdecode(found.split(b"\0")[0]))


def sync_filesystem(folder: Path) -> None:
    """Make what was written below `folder` durable, where the system can do that for one file system."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)
