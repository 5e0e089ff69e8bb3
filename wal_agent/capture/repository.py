"""Looks at the user's git repository around a workspace: where it is, where it stands, what is in progress.

Only reads (I7). What git is asked there are questions about refs and commits; objects are read in our own repository,
where nothing can be fetched.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from wal_agent.capture.git import At, Git, GitFailed
from wal_agent.capture.objects import object_sizes, reached, trees_of
from wal_agent.capture.shadow import GitState, Shadow, is_id
from wal_agent.records import Repository

MOST_COMMITS = 500  # of the user's own, whose files go into the packs
MOST_HISTORY = 256 << 20  # bytes, as git stores them, of the files of all these commits
MOST_REFS = 2000
MOST_FILE = 64 << 10  # bytes of a file of the git folder
MOST_FILES = 300
MOST_BYTES = 1 << 20  # of all of them
MOST_INDEX = 256 << 20  # bytes of the user's index file
ROOT_TIME = 20.0  # seconds for the first commit of a history
FILES = (
    *("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "AUTO_MERGE", "SQUASH_MSG", "ORIG_HEAD"),
    *("CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    *("BISECT_LOG", "BISECT_START", "BISECT_NAMES", "BISECT_TERMS", "BISECT_EXPECTED_REV"),
)
FOLDERS = ("rebase-merge", "rebase-apply", "sequencer")
_BUSY = (
    ("rebase-merge/", "rebase"),
    ("rebase-apply/applying", "am"),
    ("rebase-apply/", "rebase"),
    ("MERGE_HEAD", "merge"),
    ("CHERRY_PICK_HEAD", "cherry-pick"),
    ("REVERT_HEAD", "revert"),
    ("sequencer/", "cherry-pick"),
    ("BISECT_LOG", "bisect"),
)
_HEADS = (
    *("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    *("rebase-merge/onto", "rebase-merge/orig-head", "rebase-apply/onto", "rebase-apply/orig-head"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a workspace lies: `prefix` is its place below `top`, posix, "" for the top itself. `git_dir` None: in no
    repository, or ignored by the one around it."""

    top: Path
    prefix: str = ""
    git_dir: Path | None = None
    common: Path | None = None
    object_format: str = "sha1"

    @property
    def alternates(self) -> tuple[Path, ...]:
        return (self.common / "objects",) if self.common is not None else ()


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around the working tree now. `index`: tree, "" for none. `extra`: objects that `state` names and
    nothing else holds."""

    repository: Repository | None = None
    index: str = ""
    state: bytes = b""
    extra: tuple[str, ...] = ()


def find(git: Git, workspace: Path) -> Place:
    """`workspace`: a real path."""
    plain = Place(workspace)
    asked = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir")
    try:
        said = git.text("rev-parse", *asked, cwd=workspace).split("\n")
        if len(said) != len(asked):  # a name with a newline in it
            said = [git.text("rev-parse", one, cwd=workspace) for one in asked]
        top = Path(said[0]).resolve()
        prefix = workspace.relative_to(top).as_posix()
        place = Place(top, "" if prefix == "." else prefix, Path(said[1]), (workspace / said[2]).resolve())
        found = git.text("rev-parse", "--show-object-format", at=_at(place))
        if place.prefix and _ignores(git, place):
            return plain  # by the rules of the repository around it all of it would be left out
    except (GitFailed, ValueError, OSError):
        return plain
    return replace(place, object_format=found if found == "sha256" else "sha1")


def _ignores(git: Git, place: Place) -> bool:
    said = git.run("check-ignore", "--no-index", f"./{place.prefix}", at=_at(place), ok=(0, 1), literal=False)
    return bool(said)


def _at(place: Place) -> At:
    assert place.git_dir is not None
    return At(place.git_dir, work_tree=place.top, cwd=place.top)


class Surroundings:
    """Remembers what cost something to find out, as long as it still holds. Used under the shadow's lock."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._git = shadow.git
        self._history: tuple[object, tuple[tuple[str, ...], tuple[str, ...], bool]] | None = None
        self._index: tuple[object, tuple[str, bytes]] | None = None
        self._identity: tuple[object, tuple[str, ...]] | None = None
        self._weighed: dict[str, None] = {}  # commits, the newest last
        self._weight = 0  # bytes of what they hold

    @property
    def index_stamp(self) -> object:
        """Another one when the user's index is another one."""
        return self._index[0] if self._index else None

    def look(self, place: Place) -> Around:
        """Everything about the repository at `place`; GitFailed."""
        if place.git_dir is None:
            self._index = None
            return Around()
        files = dict(_files(place.git_dir))
        refs, remotes, head, branch = self._refs(place)
        heads = [word for name in _HEADS if name in files for word in files[name].decode("ascii", "replace").split()]
        roots = tuple(dict.fromkeys((*filter(is_id, heads), *refs.values())))
        key = (place, head, roots, remotes)
        if self._history is None or self._history[0] != key:
            self._history = (key, self._commits(place, head, roots, remotes))
        commits, shallow, remote = self._history[1]
        index, unmerged = self._user_index(place)
        state = GitState(
            head=head,
            branch=branch,
            files=files,
            refs=refs,
            commits=commits,
            shallow=shallow,
            missing=any(True for objects in place.alternates for _ in objects.glob("pack/*.promisor")),
            unmerged=unmerged,
            sparse=read_file(place.git_dir / "info" / "sparse-checkout") or b"",
        )
        repository = Repository(
            head=head,
            branch=branch,
            identity=self._who(place, head),
            prefix=place.prefix,
            remote=remote,
            busy=next((word for sign, word in _BUSY if any(f == sign or f.startswith(sign) for f in files)), ""),
        )
        return Around(repository, index, msgspec.json.encode(state), tuple(_stages(unmerged)))

    # ---- refs and commits

    def _refs(self, place: Place) -> tuple[dict[str, str], tuple[str, ...], str, str]:
        """Local branches and stash, what remote-tracking refs name, HEAD's commit and branch."""
        at = _at(place)
        form = "--format=%(objectname) %(HEAD) %(refname)"
        listed = self._git.text("for-each-ref", form, "refs/heads", "refs/remotes", "refs/stash", at=at)
        refs: dict[str, str] = {}
        remotes: list[str] = []
        head = branch = ""
        for line in filter(None, listed.split("\n")):
            id, name = line[: line.index(" ")], line[line.index(" ") + 3 :]
            if line[len(id) + 1] == "*":
                head, branch = id, name
            if name.startswith("refs/remotes/"):
                remotes.append(id)
            elif len(refs) < MOST_REFS:
                refs[os.fsencode(name).decode(errors="backslashreplace")] = id
        if not head:  # detached, or unborn
            branch = self._git.text("symbolic-ref", "-q", "HEAD", at=at, ok=(0, 1, 128))
            head = self._git.text("rev-parse", "-q", "--verify", "HEAD^{commit}", at=at, ok=(0, 1, 128))
        name = os.fsencode(branch).decode(errors="backslashreplace")
        return refs, tuple(sorted(set(remotes))), head if is_id(head) else "", name

    def _commits(
        self, place: Place, head: str, roots: tuple[str, ...], remotes: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """The commits that the packs are to hold, those of them with parents that they do not, and whether a remote has
        HEAD. Bounded: where no remote has anything, the newest of the history."""
        if not head and not roots:
            return (), (), False
        own = self._own(place, [head] if head else [], remotes)
        remote = bool(head) and bool(remotes) and head not in own
        others = self._own(place, [id for id in roots if id != head], remotes) if len(own) < MOST_COMMITS else {}
        chosen = self._affordable(place, dict(list({**own, **others}.items())[:MOST_COMMITS]))
        if head and head not in chosen:
            parents = self._own(place, [head], (), most=1)
            chosen = {**chosen, **(parents or {head: ()})}
        cut = (
            set((read_file(place.common / "shallow", 1 << 20) or b"").decode("ascii", "replace").split())
            if (place.common)
            else set()
        )
        shallow = [id for id, parents in chosen.items() if id in cut or any(p not in chosen for p in parents)]
        return tuple(chosen), tuple(shallow), remote

    def _affordable(self, place: Place, chosen: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """None where the files of all of them would be too much. What was weighed once is not weighed again."""
        at = self._shadow.at(*place.alternates)
        new = [id for id in chosen if id not in self._weighed]
        known = trees_of(list(self._weighed)[-1:])
        try:
            listed = [line.split(b" ", 1)[0].decode() for line in reached(self._git, at, trees_of(new), known, False)]
            self._weight += sum(object_sizes(self._git, at, listed, "objectsize:disk"))
        except GitFailed:
            return {}
        self._weighed.update(dict.fromkeys(reversed(new)))
        return chosen if self._weight <= MOST_HISTORY else {}

    def _own(
        self, place: Place, roots: list[str], remotes: tuple[str, ...], most: int = MOST_COMMITS
    ) -> dict[str, tuple[str, ...]]:
        """Commits that `roots` reach and `remotes` do not, newest first, each with its parents; what is broken in the
        history hides what is behind it."""
        if not roots:
            return {}
        words = ("rev-list", "--parents", f"--max-count={most}", "--ignore-missing", "--topo-order", "--stdin")
        asked = "".join(f"{id}\n" for id in (*roots, *(f"^{id}" for id in remotes)))
        try:
            said = self._git.run(*words, at=_at(place), input=asked.encode()).decode()
        except GitFailed:
            return {}
        return {line.split()[0]: tuple(line.split()[1:]) for line in said.splitlines()}

    def _who(self, place: Place, head: str) -> tuple[str, ...]:
        """What clones of this project share. The first commit is looked for once, and not in a shallow clone, which
        does not have it."""
        url = self._git.text("config", "--get", "remote.origin.url", at=_at(place), ok=(0, 1))
        key = (place, url, bool(head))
        if self._identity is None or self._identity[0] != key:
            known = (f"origin:{without_credentials(url)}",) if url else ()
            self._identity = (key, (*known, *(f"root:{id}" for id in self._first(place, head))))
        return self._identity[1]

    def _first(self, place: Place, head: str) -> tuple[str, ...]:
        assert place.common is not None
        if not head or (place.common / "shallow").exists():
            return ()
        kept = self._shadow.folder / "roots"
        name = os.fsencode(place.common)
        with suppress(OSError):
            found, _, of = kept.read_bytes().partition(b" ")
            if of == name and is_id(found.decode("ascii", "replace")):
                return (found.decode(),)
        words = ("rev-list", "--max-parents=0", "--first-parent", head)
        try:
            said = self._git.run(*words, at=_at(place), timeout=ROOT_TIME).decode().split()
        except GitFailed:
            return ()
        if said:
            kept.write_bytes(said[-1].encode() + b" " + name)
        return tuple(said[-1:])

    # ---- the index

    def _user_index(self, place: Place) -> tuple[str, bytes]:
        """The tree of the user's index, and what is unmerged in it; from a copy, since git writes into what it reads.

        The copy stays in the shadow's `user-index` for the scan."""
        assert place.git_dir is not None
        copy = self._shadow.folder / "user-index"
        found = copy_file(place.git_dir / "index", copy, MOST_INDEX)
        stamp = (place, found)
        if self._index is not None and self._index[0] == stamp and found is not None:
            return self._index[1]
        self._index = (stamp, self._written(place, copy) if found else ("", b""))
        return self._index[1]

    def _written(self, place: Place, copy: Path) -> tuple[str, bytes]:
        assert place.git_dir is not None
        for old in self._shadow.folder.glob("sharedindex.*"):
            old.unlink()
        for shared in list(place.git_dir.glob("sharedindex.*"))[:16]:  # of a split index
            copy_file(shared, self._shadow.folder / shared.name, MOST_INDEX)
        work = self._shadow.tmp / "index-tree"
        at = self._shadow.at(*place.alternates, work_tree=place.top, index=work)
        try:
            copy_file(copy, work, MOST_INDEX)
            unmerged = self._git.run("ls-files", "-u", "-z", at=at)
            if unmerged:
                nothing = b"0 " + b"0" * (64 if place.object_format == "sha256" else 40) + b"\t"
                paths = {entry.partition(b"\t")[2] for entry in unmerged.split(b"\0")[:-1]}
                gone = b"".join(nothing + path + b"\0" for path in sorted(paths))
                self._git.run("update-index", "-z", "--index-info", at=at, input=gone)
            tree = self._git.run("write-tree", "--missing-ok", at=at).decode().strip()
        except GitFailed:
            return "", b""
        return tree, unmerged if len(unmerged) <= MOST_BYTES else b""


def _stages(unmerged: bytes) -> Iterator[str]:
    for entry in unmerged.split(b"\0")[:-1]:
        mode, id, _ = entry.split(b" ", 2)
        if mode != b"160000":
            yield id.decode()


def _files(git_dir: Path) -> Iterator[tuple[str, bytes]]:
    """The files that tell of something in progress, as far as the bounds go."""
    size = count = 0
    for name in (*FILES, *_listed(git_dir, FOLDERS)):
        data = read_file(git_dir / name)
        if data is None:
            continue
        size, count = size + len(data), count + 1
        if size > MOST_BYTES or count > MOST_FILES:
            return
        yield name, data


def _listed(git_dir: Path, folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        with suppress(OSError):
            for entry in sorted(os.listdir(git_dir / folder)):  # noqa: PTH208 - names, not paths
                if entry.isprintable():
                    yield f"{folder}/{entry}"


def read_file(path: Path, most: int = MOST_FILE) -> bytes | None:
    """A plain file's bytes; None for anything else, and for one with more than `most`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        data = file.read(most + 1)
    return data if len(data) <= most else None


def copy_file(source: Path, target: Path, most: int) -> tuple[int, ...] | None:
    """Copy a plain file, unless `target` has its size and times already; what identifies it. None: there is none, or it
    is too big."""
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        target.unlink(missing_ok=True)
        return None
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_size > most:
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


def without_credentials(url: str) -> str:
    """An origin as it may be told: no user, password, query or fragment."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
