"""Make a folder's files equal to a captured tree, through git's own plumbing and never outside of the folder.

- Packs come from the bucket, which is hostile: sizes are bounded and checked before the disk fills, the hash is checked
  before git reads a byte, and git itself checks each object against its id.
- What the tree would replace and no save holds is renamed beside its place, never removed. Files that neither the tree
  nor the save of what was here knows (ignored ones) are left alone.
- A crash leaves a mixture; another restore mends that.
- Evidence rests on which paths a capture covers, so what is not sure is not covered.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from wal_agent.budget import FOREIGN
from wal_agent.capture.candidates import FULL, IGNORED
from wal_agent.capture.git import GitBounds, GitDirs, GitFailed, GitMissing
from wal_agent.capture.repository import find_location
from wal_agent.capture.scan import IGNORE_FILE
from wal_agent.capture.shadow import Shadow, is_object_id
from wal_agent.concurrency import prefetch_map
from wal_agent.errors import ConfigError, Damaged, Exhausted
from wal_agent.failpoints import failpoint
from wal_agent.records import Pack, Workspace
from wal_agent.safefs import open_plain
from wal_agent.text import shorten
from wal_agent.wal.blobs import Blobs

FILE_MODES = frozenset({"100644", "100755", "120000"})
NESTED_REPOSITORY = "160000"  # a repository inside: its files are not saved
_REFUSED = re.compile("not uptodate|would be overwritten|would be removed|would lose")
MAX_COMPARED = 256 << 20  # bytes of files whose content is compared
_BATCH = 32 << 20
_MAX_POINTER = 1024  # bytes
_STREAM = "core.bigFileThreshold=1m"  # bytes: what is bigger is not unpacked in memory
ASIDE_MARK = ".wal-agent-aside-"

_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:[^\n]+\n)*?oid sha256:([0-9a-f]{64})\n")


class TreeEntry(msgspec.Struct, frozen=True):
    """One path of a tree. `size` in bytes, 0 for a repository inside."""

    mode: str
    id: str
    size: int


Tree = Mapping[str, TreeEntry]


class Changes(msgspec.Struct, frozen=True):
    """How a tree differs from what was here, in files."""

    changed: int = 0
    new: int = 0
    gone: int = 0

    @property
    def any(self) -> bool:
        return bool(self.changed or self.new or self.gone)


NO_CHANGES = Changes()


def list_tree(
    shadow: Shadow, tree: str, *alternates: Path, whole: bool = True, most: int = FOREIGN.files
) -> dict[str, TreeEntry]:
    """List all paths of a tree, at most `most`. Damaged for what no folder can hold or what leads out of it, and where
    parts are missing; not `whole`: contents of files may be."""
    try:
        words = ("ls-tree", "-r", "-z", "-l", "--full-tree", tree)
        found = shadow.git.run(
            *words, at=shadow.at(*alternates), within=GitBounds(FOREIGN.of_listing(most), foreign=True)
        )
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
    if len(entries) > most:
        raise Damaged(f"The captured working tree has {len(entries)} files, more than are restored ({most}).")
    for path in entries:
        if file := next((p for p in parent_paths(path) if p in entries), None):
            raise Damaged(f"The captured working tree has {shorten(file)} both as a file and as a folder.")
    return entries


def _stays_inside(path: str) -> bool:
    """git refuses these too, with more spellings of .git: two checks, and neither is relied on alone."""
    return all(part not in ("", ".", "..") and part.lower() != ".git" for part in path.split("/"))


def parent_paths(path: str) -> Iterable[str]:
    """Yield the folders above a path, the highest first."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def count_changes(old: Tree, new: Tree) -> Changes:
    """Count the files that differ from `old` to `new`."""
    common = old.keys() & new.keys()
    differ = sum((old[p].mode, old[p].id) != (new[p].mode, new[p].id) for p in common)
    return Changes(differ, len(new) - len(common), len(old) - len(common))


def restrict_modes(folder: Path, tree: Tree, private: Iterable[bytes]) -> None:
    """Remove group's and others' rights from the plain files of `tree` that `private` names. OSError."""
    for path in map(os.fsdecode, private):
        if path in tree and tree[path].mode.startswith("100"):
            with open_plain(folder / path) as file:
                os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o700)


def filtered_files(shadow: Shadow, files: Tree, committed: Tree, *alternates: Path) -> frozenset[str]:
    """Those of the files that the commit has in the form in which git keeps them: with other ends of lines, or as a
    pointer of git-lfs. Bounded, and no filter runs. GitFailed."""
    room, asked = MAX_COMPARED, []
    for path, entry in files.items():
        known = committed.get(path)
        if known is not None and known.mode == entry.mode != "120000" and known.size < entry.size:
            room -= entry.size
            if room < 0:
                break
            asked.append((path, entry, known))
    found: set[str] = set()
    while asked:
        size, taken = 0, 0
        for _, entry, _ in asked:
            size, taken = size + entry.size, taken + 1
            if size > _BATCH:
                break
        now, asked = asked[:taken], asked[taken:]
        pointers = {k.id for _, _, k in now if k.size <= _MAX_POINTER}
        blobs = _read_blobs(shadow, {*(e.id for _, e, _ in now), *pointers}, *alternates)
        found |= {path for path, e, k in now if _is_filtered(blobs.get(e.id, b""), k.id, blobs.get(k.id, b""))}
    return frozenset(found)


def _is_filtered(data: bytes, id: str, kept: bytes) -> bool:
    if pointer := _POINTER.match(kept):
        return hashlib.sha256(data).hexdigest() == pointer[1].decode()
    plain = data.replace(b"\r\n", b"\n")
    digest = _blob_digest(len(id), len(plain))
    digest.update(plain)
    return digest.hexdigest() == id


def _blob_digest(digits: int, size: int) -> hashlib._Hash:
    """As git begins the id of a file, where ids have so many digits."""
    return hashlib.new("sha1" if digits == 40 else "sha256", b"blob %d\0" % size, usedforsecurity=False)


def _read_blobs(shadow: Shadow, ids: Iterable[str], *alternates: Path) -> dict[str, bytes]:
    said = shadow.git.run(
        "cat-file",
        "--batch",
        at=shadow.at(*alternates),
        input="".join(f"{id}\n" for id in ids).encode(),
        within=GitBounds(4 * _BATCH),
    )
    found: dict[str, bytes] = {}
    start = 0
    while start < len(said):
        end = said.index(b"\n", start)
        words, start = said[start:end].split(), end + 1
        if len(words) == 3:
            size = int(words[2])
            found[words[0].decode()] = said[start : start + size]
            start += size + 1
    return found


def tree_size(tree: Tree) -> int:
    """Bytes."""
    return sum(entry.size for entry in tree.values())


class ChangedMeanwhile(Exception):
    """The folder has changed since it was saved a moment ago."""


def checkout_tree(
    shadow: Shadow, folder: Path, here: str, tree: str, leave: Iterable[str], same: Iterable[str], *alternates: Path
) -> None:
    """Make the files in `folder` those of the tree `tree`. Under the shadow's lock.

    `here`: the tree that was saved of what is there, "" for an empty folder; what it lacks was moved aside before, or
    has the wanted bytes already (`same`). `leave`: paths of `here` that are not changed. ChangedMeanwhile: nothing was
    written, and the folder must be saved again. ConfigError: this machine cannot take it; a part may be written, and
    the restore can run again."""
    index = shadow.tmp / "restore-index"
    with suppress(FileNotFoundError):
        index.unlink()
    dirs = shadow.at(*alternates, work_tree=folder, index=index)
    try:
        if here:
            shadow.git.run("read-tree", here, at=dirs)
            if name := _first_difference(shadow, dirs):
                raise ChangedMeanwhile(name)
        _update_index(shadow, dirs, "--force-remove", leave)
        base = shadow.git.text("write-tree", at=dirs)
        _update_index(shadow, dirs, "--add", same)
        failpoint("restore.before_tree")
        _merge_tree(shadow, dirs, base, tree)
        name = _first_difference(shadow, dirs)
    except GitFailed as error:
        raise ConfigError(f"The working tree could not be put back into {folder}: {shorten(str(error))}") from error
    if name:
        raise ConfigError(f"The working tree could not be put back into {folder}: {name} is not as it was saved.")
    sync_filesystem(folder)
    index.replace(shadow.folder / "index")


def _merge_tree(shadow: Shadow, dirs: GitDirs, base: str, tree: str) -> None:
    """git itself refuses, before it writes anything, to replace what is not as the index has it."""
    try:
        shadow.git.run("read-tree", "-m", "-u", base, tree, at=dirs, within=GitBounds(foreign=True))
    except GitFailed as error:
        if _REFUSED.search(error.said):
            raise ChangedMeanwhile(shorten(error.said.strip(), 200)) from error
        raise


def _update_index(shadow: Shadow, dirs: GitDirs, how: str, paths: Iterable[str]) -> None:
    if listed := b"".join(os.fsencode(path) + b"\0" for path in paths):
        shadow.git.run("update-index", how, "-z", "--stdin", at=dirs, input=listed)


def _first_difference(shadow: Shadow, dirs: GitDirs) -> str:
    """Return the first file that differs from the index, for people; "" for none."""
    shadow.git.run("update-index", "-q", "--really-refresh", at=dirs, ok=(0, 1))
    found = shadow.git.run("diff-files", "--name-only", "-z", "--ignore-submodules=all", at=dirs)
    return shorten(os.fsdecode(found.split(b"\0")[0]))


def sync_filesystem(folder: Path) -> None:
    """Make writes below `folder` durable, where the system can do that for one file system."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)


def fetch_packs(shadow: Shadow, captured: Workspace, blobs: Blobs, *alternates: Path) -> None:
    """Unpack all packs of `captured` in `shadow`. Under its lock. Damaged; Exhausted where the disk cannot hold them;
    BucketError."""
    check_packs(captured)
    size = sum(pack.size for pack in captured.packs)
    free = shutil.disk_usage(shadow.folder).free
    if 2 * size > free:
        raise Exhausted(
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
    """Raise Damaged for what no capture says. Reads nothing."""
    if not is_object_id(captured.commit):
        raise Damaged("The log names a captured working tree by what is no commit's id.")
    for pack in captured.packs:
        parts = [part.size for part in pack.parts]
        if pack.size != sum(parts) or not all(0 < size <= FOREIGN.part for size in parts):
            raise Damaged("The log names a pack of the working tree whose parts cannot make it up.")
    if sum(pack.size for pack in captured.packs) > FOREIGN.packs:
        raise Damaged("The log names packs of the working tree that are bigger than any that was saved.")


def _download_pack(pack: Pack, blobs: Blobs, path: Path, which: str) -> None:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for data in prefetch_map(blobs.fetch, pack.parts, blobs.parallel):
            digest.update(data)
            file.write(data)
    if digest.hexdigest() != pack.sha256:
        raise Damaged(f"Pack {which} of the captured working tree is damaged: its bytes have another hash.")


def _index_pack(shadow: Shadow, path: Path, name: str, *alternates: Path) -> None:
    """Index the pack file, where each object is checked against its id, and move it to the others. GitFailed."""
    shadow.git.run("-c", _STREAM, "index-pack", str(path), at=shadow.at(*alternates), within=GitBounds(foreign=True))
    target = shadow.objects / "pack" / f"pack-{name}.pack"
    for suffix in (".pack", ".rev", ".idx"):  # a pack is one from when its index is there
        if path.with_suffix(suffix).exists():
            path.with_suffix(suffix).replace(target.with_suffix(suffix))


def move_aside(folder: Path, here: Tree, tree: Tree, now: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rename what `tree` would replace in `folder` and what is not in `here`, the save of it. OSError.

    Returns the new names, relative; and the paths that are not in the save and hold what is wanted already."""
    mover = _Mover(folder, here, tree, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now)))
    mover.clear()
    return tuple(mover.moved), tuple(mover.same)


class _Mover:
    def __init__(self, folder: Path, here: Tree, tree: Tree, stamp: str) -> None:
        self.folder, self.here, self.tree, self.stamp = folder, here, tree, stamp
        self.saved_folders = {parent for path in here for parent in parent_paths(path)}
        self.folders: dict[str, bool] = {}  # paths above: whether they are folders that may be written into
        self.moved: list[str] = []
        self.same: list[str] = []

    def clear(self) -> None:
        for path in sorted(p for p, e in self.tree.items() if p not in self.here or _hides(self.here[p], e)):
            # nothing is below what is no folder; that itself is in the save, or has just been moved
            if all(self._is_folder(parent) for parent in parent_paths(path)):
                self._make_way(path, self.tree[path])

    def _make_way(self, path: str, wanted: TreeEntry) -> None:
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
            above = Path(base)
            links = [name for name in folders if (above / name).is_symlink()]
            inside = above.relative_to(self.folder)
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
    """Whether the save has a nested repository, without its files, where something else is to be."""
    return old.mode == NESTED_REPOSITORY and new.mode != NESTED_REPOSITORY


def _is_same(path: Path, info: os.stat_result, wanted: TreeEntry) -> bool:
    """Whether a plain file already is what the tree wants there, by the id that git gives to its bytes."""
    size, mode = info.st_size, "100755" if info.st_mode & 0o100 else "100644"
    if not stat.S_ISREG(info.st_mode) or (size, mode) != (wanted.size, wanted.mode):
        return False
    digest = _blob_digest(len(wanted.id), size)
    try:
        file = open_plain(path)
    except OSError:
        return False
    with file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest() == wanted.id


def coverage_check(shadow: Shadow, folder: Path, captured: Workspace) -> Callable[[str], bool]:
    """Return a check whether an absolute path is of the tree that was put back into `folder`, or is absent in it."""
    with suppress(Damaged, GitMissing):
        if captured.pending is None:  # else any file may be older than the capture
            contents = shadow.contents(captured.commit)
            tree, out = list_tree(shadow, contents.work), frozenset(map(os.fsdecode, contents.state.left_out))
            return lambda path: _covers(shadow, folder, captured, tree, out, path)
    return lambda path: False


def _covers(shadow: Shadow, folder: Path, captured: Workspace, tree: Tree, out: frozenset[str], path: str) -> bool:
    wanted = Path(os.path.normpath(path))
    if not wanted.is_absolute() or wanted == folder or not wanted.is_relative_to(folder):
        return False
    name = str(wanted.relative_to(folder))
    if any(parent in tree or (folder / parent).is_symlink() for parent in parent_paths(name)):
        return False
    if name in tree:
        return tree[name].mode in FILE_MODES
    if not out.isdisjoint((name, *parent_paths(name))):
        return False
    if (folder / IGNORE_FILE).exists() or not _nothing_left_out(captured, name):
        return False
    return not _ignored(shadow, folder, name)


def _nothing_left_out(captured: Workspace, name: str) -> bool:
    """Whether only ignored files can have been left out at this path. Those are last in the list."""
    lines = [line.rpartition(": ") for line in captured.left_out]
    if any(why == FULL for _, _, why in lines) or (captured.left_out_more and lines and lines[-1][2] != IGNORED):
        return False
    paths = {*parent_paths(name), name}
    return not any(left in {shorten(path, 160) for path in paths} for left, _, _ in lines)


def _ignored(shadow: Shadow, folder: Path, name: str) -> bool:
    """Whether the rules of the folder as it is now ignore it; true as well where that is not known."""
    try:
        place = find_location(shadow.git, folder)
        dirs = shadow.at(*place.alternates, work_tree=place.top)
        path = f"./{place.prefix}/{name}" if place.prefix else f"./{name}"
        words = ("check-ignore", "--no-index", "-z", "--stdin")  # no literal paths; "./" leaves no room for magic
        return bool(shadow.git.run(*words, at=dirs, input=os.fsencode(path) + b"\0", ok=(0, 1)))
    except (GitFailed, GitMissing):
        return True
