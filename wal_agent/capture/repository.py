"""Find the user's git repository around a workspace, and read it: HEAD and refs, what is in progress (a merge, a
rebase, a bisection), the commits that only this machine has, and the index.

Only reads (I7). What git is asked there are questions about refs and commits; objects are read in our own repository,
where nothing can be fetched. The index is read from a copy, since git writes into what it reads.

A workspace is marked by an extended attribute of its folder: the captures that jobs made of it, or put back into it.
Our own repository says the same, but is in the state folder of one machine; a workspace on a shared or persistent
volume outlives that. Where a file system has no such attributes nothing is marked, and our own repository alone counts.
No file of the user's is changed by it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from wal_agent.capture.candidates import bound_paths
from wal_agent.capture.git import Git, GitBounds, GitDirs, GitFailed, list_reachable, object_sizes, trees_of
from wal_agent.capture.shadow import GitState, Shadow, is_object_id, read_state
from wal_agent.records import Repository
from wal_agent.safefs import file_signature, open_plain, read_end, read_plain, real_path

LINKED = "worktrees"  # folder in a repository, with one for each worktree that `git worktree add` linked to it
MAX_LINKED = 200  # of them
_PATH_FILE = 4096  # bytes of a file that holds a path
# What git opens to find out where it is. A pipe among them blocks it for ever; its other files are copied first.
_OPENED = ("HEAD", "config", "config.worktree", "commondir", "packed-refs", "shallow", "objects/info/alternates")
MARK_NAME = "user.wal-agent.captures"
MAX_MARKS = 8  # of one job
MAX_MARKED_JOBS = 6
MAX_PROGRESS_FILE = 64 << 10  # bytes of one of the files
MAX_PROGRESS_FILES = 300
MAX_PROGRESS_SIZE = 1 << 20  # of all of them
PROGRESS_FOLDERS = ("rebase-merge", "rebase-apply", "sequencer")
MAX_COMMITS = 5000  # of the user's own, whose files go into the packs
MAX_HISTORY = 256 << 20  # bytes, as git stores them, of the files of all these commits
MAX_SHALLOW = 1 << 20  # bytes of the list of commits where a shallow clone is cut
ROOT_TIME = 20.0  # seconds for the first commit of a history
MAX_INDEX = 256 << 20  # bytes of the user's index file
_PLAIN_INDEX = b"DIRC\0\0\0\x02"  # how one begins in which nothing is skip-worktree
MAX_SHARED = 16  # files that a split index stands on
MAX_UNMERGED = 1 << 20  # bytes of the list of what is unmerged
MAX_REFS = 2000
MAX_STASHES = 100
MAX_STASH_LOG = 64 << 10  # bytes
MAX_SPARSE = 64 << 10  # bytes of the sparse patterns
PROGRESS_FILES = (
    *("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "AUTO_MERGE", "SQUASH_MSG", "ORIG_HEAD"),
    *("CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD"),
    *("BISECT_LOG", "BISECT_START", "BISECT_NAMES", "BISECT_TERMS", "BISECT_EXPECTED_REV"),
)
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


class Location(msgspec.Struct, frozen=True):
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

    @property
    def linked(self) -> bool:
        """Whether it is a linked worktree: its own part of the repository lies in the common one."""
        return self.git_dir is not None and self.git_dir.parent.name == LINKED and self.git_dir != self.common

    @property
    def at(self) -> GitDirs:
        """For git's questions to that repository."""
        assert self.git_dir is not None
        return GitDirs(self.git_dir, work_tree=self.top, cwd=self.top)


def linked_worktrees(place: Location) -> Iterator[tuple[str, Path]]:
    """The worktrees that are linked to the repository at `place`: the repository's own name of each, and its folder, a
    real path; none where `place` is one."""
    if place.common is None or place.linked:
        return
    with suppress(OSError):
        for name in sorted(os.listdir(place.common / LINKED))[:MAX_LINKED]:  # noqa: PTH208 - names, not paths
            if (folder := named_worktree(place.common / LINKED / name)) is not None:
                yield name, folder


def named_worktree(git_dir: Path) -> Path | None:
    """The folder that a linked worktree's part of a repository names as its own, a real path."""
    named = _named_in(git_dir / "gitdir")
    with suppress(OSError, ValueError):
        if named.endswith("/.git"):
            return real_path(Path(named).parent)
    return None


def find_location(git: Git, workspace: Path) -> Location:
    """`workspace`: a real path. A repository that git cannot read is none."""
    plain = Location(workspace)
    if _would_block(workspace):
        return plain
    # A git that does not know the last word repeats it.
    asked = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--show-object-format")
    try:
        said = git.text("rev-parse", *asked, cwd=workspace).split("\n")
        if len(said) != len(asked):  # a name with a newline in it
            said = [git.text("rev-parse", one, cwd=workspace) for one in asked]
        top = real_path(said[0])
        prefix = workspace.relative_to(top).as_posix()
        place = Location(top, "" if prefix == "." else prefix, Path(said[1]), real_path(workspace / said[2]))
        if place.prefix and _ignores(git, place):
            return plain  # by the rules of the repository around it all of it would be left out
    except (GitFailed, ValueError, OSError):
        return plain
    return replace(place, object_format="sha256" if said[3] == "sha256" else "sha1")


def _would_block(workspace: Path) -> bool:
    """Whether a file of the repository around is a pipe or a device."""
    for folder in (workspace, *workspace.parents):
        git_dir = folder / ".git"
        if git_dir.is_file():  # of a linked worktree or a submodule
            git_dir = folder / _named_in(git_dir).removeprefix("gitdir:").strip()
        if git_dir.is_dir():
            common = git_dir / _named_in(git_dir / "commondir")
            return any(_is_special(at / name) for at in (git_dir, common) for name in _OPENED)
    return False


def _named_in(file: Path) -> str:
    return os.fsdecode(read_plain(file, _PATH_FILE) or b"").strip()


def _is_special(path: Path) -> bool:
    return path.exists() and not (path.is_file() or path.is_dir())


def _ignores(git: Git, place: Location) -> bool:
    said = git.run("check-ignore", "--no-index", f"./{place.prefix}", at=place.at, ok=(0, 1))
    return bool(said)


def mark_folder(folder: Path, commits: Sequence[str], job: str = "") -> None:
    """Mark the folder with `commits`, the newest captures of it by `job`; with none: it is no capture of any job's."""
    entries = {
        _key(job): tuple(commits[:MAX_MARKS]),
        **{k: v for k, v in _read_all_marks(folder).items() if k != _key(job)},
    }
    text = (
        " ".join(f"{key}={','.join(found)}" for key, found in list(entries.items())[:MAX_MARKED_JOBS])
        if commits
        else ""
    )
    with suppress(OSError, AttributeError):
        os.setxattr(folder, MARK_NAME, text.encode(), follow_symlinks=False)


def read_marks(folder: Path, job: str | None = None) -> tuple[str, ...]:
    """The captures that this folder is, or has grown out of, the newest first; of any job's, or of one's."""
    found = _read_all_marks(folder)
    return tuple(c for each in found.values() for c in each) if job is None else found.get(_key(job), ())


def _read_all_marks(folder: Path) -> dict[str, tuple[str, ...]]:
    text = ""
    with suppress(OSError, AttributeError):
        text = os.getxattr(folder, MARK_NAME, follow_symlinks=False).decode("ascii", "replace")
    entries = (word.partition("=") for word in text.split()[:MAX_MARKED_JOBS])
    return {key: tuple(commits.split(",")[:MAX_MARKS]) for key, _, commits in entries if commits}


def _key(job: str) -> str:
    return hashlib.sha256(job.encode()).hexdigest()[:8]


def progress_heads(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The commits that these files name."""
    words = [word for name in _HEADS if name in files for word in files[name].decode("ascii", "replace").split()]
    return tuple(filter(is_object_id, words))


def operation_in_progress(files: Iterable[str]) -> str:
    """What is in progress, in git's word for it; "" for nothing."""
    names = tuple(files)
    return next((word for sign, word in _BUSY if any(n == sign or n.startswith(sign) for n in names)), "")


def read_progress_files(git_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Return the files that show something in progress, as far as the bounds go."""
    size = count = 0
    for name in (*PROGRESS_FILES, *_listed(git_dir, PROGRESS_FOLDERS)):
        data = read_plain(git_dir / name, MAX_PROGRESS_FILE)
        if data is None:
            continue
        size, count = size + len(data), count + 1
        if size > MAX_PROGRESS_SIZE or count > MAX_PROGRESS_FILES:
            return
        yield name, data


def _listed(git_dir: Path, folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        if (git_dir / folder).is_symlink():  # it may lead to credentials
            continue
        with suppress(OSError):
            for entry in sorted(os.listdir(git_dir / folder)):  # noqa: PTH208 - names, not paths
                if entry.isprintable():
                    yield f"{folder}/{entry}"


class History:
    """Remembers what was weighed and who the project is. Used under the shadow's lock."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._git = shadow.git
        self._identity: tuple[object, tuple[str, ...]] | None = None
        self._weighed: dict[str, int] = {}  # commits, and bytes of what they hold
        self.weight = 0  # bytes of what they hold

    def commits(
        self, place: Location, head: str, roots: tuple[str, ...], remotes: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], bool, bool]:
        """The commits that the packs are to hold, those of them with parents that they do not, whether a remote has
        HEAD, and whether there are more that no remote has. Bounded: the newest of the history."""
        if not head and not roots:
            return (), (), False, False
        own = self._own(place, [head] if head else [], remotes)
        remote = bool(head) and bool(remotes) and head not in own
        others = self._own(place, [id for id in roots if id != head], remotes) if len(own) <= MAX_COMMITS else {}
        all = {**own, **others}
        chosen = self._affordable(place, dict(list(all.items())[:MAX_COMMITS]))
        partial = len(chosen) < len(all)
        if head and head not in chosen:
            parents = self._own(place, [head], (), most=1)
            chosen = {**chosen, **(parents or {head: ()})}
        listed = read_plain(place.common / "shallow", MAX_SHALLOW) if place.common else None
        cut = set((listed or b"").decode("ascii", "replace").split())
        shallow = [id for id, parents in chosen.items() if id in cut or any(p not in chosen for p in parents)]
        return tuple(chosen), tuple(shallow), remote, partial

    def _affordable(self, place: Location, chosen: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Those of the newest whose files are not too much together. What was weighed once is not weighed again."""
        self._weighed = {id: weight for id, weight in self._weighed.items() if id in chosen}
        taken: dict[str, tuple[str, ...]] = {}
        room, ids, some = MAX_HISTORY, list(chosen), 1
        while ids:
            now, ids, some = ids[:some], ids[some:], 2 * some  # a big history is weighed in few steps
            self._weigh(place, [id for id in now if id not in self._weighed])
            room -= sum(self._weighed.get(id, MAX_HISTORY + 1) for id in now)
            if room < 0:
                break
            taken |= {id: chosen[id] for id in now}
        self.weight = sum(self._weighed[id] for id in taken)
        return taken

    def _weigh(self, place: Location, new: list[str]) -> None:
        """Of commits that are weighed together the first has the weight of all."""
        if not new:
            return
        at = self._shadow.at(*place.alternates)
        known = trees_of([id for id in self._weighed if self._weighed[id]][-1:])
        with suppress(GitFailed):
            listed = [
                line.partition(b" ")[0].decode() for line in list_reachable(self._git, at, trees_of(new), known, False)
            ]
            weight = sum(object_sizes(self._git, at, listed, "objectsize:disk"))
            self._weighed |= {id: weight if id == new[0] else 0 for id in new}

    def _own(
        self, place: Location, roots: list[str], remotes: tuple[str, ...], most: int = 0
    ) -> dict[str, tuple[str, ...]]:
        """Commits that `roots` reach and `remotes` do not, newest first, each with its parents, one more than are saved
        or `most`; what is broken in the history hides what is behind it."""
        if not roots:
            return {}
        words = (
            "rev-list",
            "--parents",
            f"--max-count={most or MAX_COMMITS + 1}",
            "--ignore-missing",
            "--topo-order",
            "--stdin",
        )
        asked = "".join(f"{id}\n" for id in (*roots, *(f"^{id}" for id in remotes)))
        try:
            said = self._git.run(*words, at=place.at, input=asked.encode()).decode()
        except GitFailed:
            return {}
        return {line.split()[0]: tuple(line.split()[1:]) for line in said.splitlines()}

    def who(self, place: Location, head: str) -> tuple[str, ...]:
        """What clones of this project share. The first commit is searched once, and not in a shallow clone, which
        does not have it."""
        assert place.git_dir is not None and place.common is not None
        settings = file_signature(place.common / "config", place.git_dir / "config.worktree")
        key = (place, settings, bool(head))
        if self._identity is None or self._identity[0] != key:
            url = self._git.text("config", "--get", "remote.origin.url", at=place.at, ok=(0, 1))
            known = (f"origin:{strip_credentials(url)}",) if url else ()
            self._identity = (key, (*known, *(f"root:{id}" for id in self._first(place, head))))
        return self._identity[1]

    def _first(self, place: Location, head: str) -> tuple[str, ...]:
        assert place.common is not None
        if not head or (place.common / "shallow").exists():
            return ()
        kept = self._shadow.folder / "roots"
        name = os.fsencode(place.common)
        with suppress(OSError):
            found, _, of = kept.read_bytes().partition(b" ")
            if of == name and is_object_id(found.decode("ascii", "replace")):
                return (found.decode(),)
        words = ("rev-list", "--max-parents=0", "--first-parent", head)
        try:
            said = self._git.run(*words, at=place.at, within=GitBounds(timeout=ROOT_TIME)).decode().split()
        except GitFailed:
            return ()
        if said:
            kept.write_bytes(said[-1].encode() + b" " + name)
        return tuple(said[-1:])


def strip_credentials(url: str) -> str:
    """An origin that may be logged: no user, password, query or fragment."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


class IndexContents(msgspec.Struct, frozen=True):
    """`tree`: "" for none. `unmerged`: `git ls-files -u -z`. `away`: files, or whole folders, that git does not want in
    the working tree (a sparse checkout, skip-worktree); paths below the top."""

    tree: str = ""
    unmerged: bytes = b""
    away: tuple[bytes, ...] = ()


class UserIndex:
    """Reads it anew when it is another one. Used under the shadow's lock."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._git = shadow.git
        self._known: tuple[object, IndexContents] | None = None

    @property
    def stamp(self) -> object:
        """Another one when the index is another one."""
        return self._known[0] if self._known else None

    def forget(self) -> None:
        self._known = None

    def read(self, place: Location) -> IndexContents:
        """The copy stays in the shadow's `user-index` for the scan."""
        assert place.git_dir is not None
        copy = self._shadow.folder / "user-index"
        found = _copy_index(place.git_dir / "index", copy, MAX_INDEX)
        stamp = (place, found)
        if self._known is not None and self._known[0] == stamp and found is not None:
            return self._known[1]
        self._known = (stamp, self._written(place, copy) if found else IndexContents())
        return self._known[1]

    def _written(self, place: Location, copy: Path) -> IndexContents:
        assert place.git_dir is not None
        for old in self._shadow.folder.glob("sharedindex.*"):
            old.unlink()
        for shared in islice(place.git_dir.glob("sharedindex.*"), MAX_SHARED):
            _copy_index(shared, self._shadow.folder / shared.name, MAX_INDEX)
        work = self._shadow.tmp / "index-tree"
        at = self._shadow.at(*place.alternates, work_tree=place.top, index=work)
        try:
            _copy_index(copy, work, MAX_INDEX)
            away = self._away(at)
            unmerged = self._git.run("ls-files", "-u", "-z", at=at)
            if unmerged:
                nothing = b"0 " + b"0" * (64 if place.object_format == "sha256" else 40) + b"\t"
                paths = {entry.partition(b"\t")[2] for entry in unmerged.split(b"\0")[:-1]}
                gone = b"".join(nothing + path + b"\0" for path in sorted(paths))
                self._git.run("update-index", "-z", "--index-info", at=at, input=gone)
            tree = self._git.run("write-tree", "--missing-ok", at=at).decode().strip()
        except GitFailed:
            return IndexContents()
        return IndexContents(tree, unmerged if len(unmerged) <= MAX_UNMERGED else b"", away)

    def _away(self, at: GitDirs) -> tuple[bytes, ...]:
        assert at.index is not None
        with at.index.open("rb") as file:
            if file.read(len(_PLAIN_INDEX)) == _PLAIN_INDEX:
                return ()
        words = ("ls-files", "-t", "-z")
        listed = self._git.run(*words, at=at, within=GitBounds(MAX_INDEX)).split(b"\0")[:-1]
        away = [entry[2:] for entry in listed if entry.startswith(b"S ")]
        return whole_folders(away, (entry[2:] for entry in listed if not entry.startswith(b"S ")))


def whole_folders(paths: Iterable[bytes], others: Iterable[bytes]) -> tuple[bytes, ...]:
    """`paths`, with one folder instead of all of them in it where none of `others` is in that."""
    shared = {b""}
    for path in others:
        while path := path.rpartition(b"/")[0]:
            if path in shared:
                break
            shared.add(path)
    found: dict[bytes, None] = {}
    for path in paths:
        folders = (match.start() for match in re.finditer(b"/", path))
        found[path[: next((end for end in folders if path[:end] not in shared), None)]] = None
    return tuple(found)


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
            shutil.copyfileobj(file, out)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    return (info.st_ino, info.st_size, info.st_mtime_ns)


class RepositoryState(msgspec.Struct, frozen=True):
    """The repository around the working tree, as of now. `index`: tree, "" for none. `extra`: objects that `state`
    names and nothing else holds."""

    repository: Repository | None = None
    index: str = ""
    state: bytes = b""
    extra: tuple[str, ...] = ()
    weight: int = 0  # bytes, as git stores them, of the files of the commits that it names
    partial: bool = False  # there are more commits that no remote has

    def without_history(self) -> RepositoryState:
        """With the commits and the index left for a later capture."""
        state = msgspec.structs.replace(read_state(self.state), commits=(), shallow=(), unmerged=b"")
        return replace(self, index="", state=msgspec.json.encode(state), extra=())


class RepositoryReader:
    """Remembers what cost something to find out, as long as it still holds. Used under the shadow's lock."""

    def __init__(self, shadow: Shadow) -> None:
        self._git = shadow.git
        self._history = History(shadow)
        self._index = UserIndex(shadow)
        self._commits: tuple[object, tuple[tuple[str, ...], tuple[str, ...], bool, bool]] | None = None

    @property
    def index_stamp(self) -> object:
        """Another one when the user's index is another one."""
        return self._index.stamp

    def read(self, place: Location) -> RepositoryState:
        """Everything about the repository at `place`; GitFailed."""
        if place.git_dir is None:
            self._index.forget()
            return RepositoryState()
        files = dict(read_progress_files(place.git_dir))
        refs, remotes, head, branch = self._refs(place)
        if place.linked:  # the others are the main worktree's to save
            refs = {name: id for name, id in refs.items() if name == branch}
        stashes = _older_stashes(place, refs)
        roots = tuple(dict.fromkeys((*progress_heads(files), *refs.values(), *stashes)))
        key = (place, head, roots, remotes)
        if self._commits is None or self._commits[0] != key:
            self._commits = (key, self._history.commits(place, head, roots, remotes))
        commits, shallow, remote, partial = self._commits[1]
        index = self._index.read(place)
        below = os.fsencode(place.prefix) + b"/" if place.prefix else b""
        state = GitState(
            head=head,
            branch=branch,
            files=files,
            refs=refs,
            stashes=stashes,
            commits=commits,
            shallow=shallow,
            missing=any(True for objects in place.alternates for _ in objects.glob("pack/*.promisor")),
            unmerged=index.unmerged,
            sparse=read_plain(place.git_dir / "info" / "sparse-checkout", MAX_SPARSE) or b"",
            left_out=bound_paths(path.removeprefix(below) for path in index.away if path.startswith(below)),
        )
        repository = Repository(
            head=head,
            branch=branch,
            identity=self._history.who(place, head),
            prefix=place.prefix,
            remote=remote,
            busy=operation_in_progress(files),
            linked=place.linked,
        )
        state_bytes = msgspec.json.encode(state)
        extra = tuple(_stages(index.unmerged))
        return RepositoryState(repository, index.tree, state_bytes, extra, self._history.weight, partial)

    def _refs(self, place: Location) -> tuple[dict[str, str], tuple[str, ...], str, str]:
        """Local branches and stash, what remote-tracking refs name, HEAD's commit and branch."""
        at = place.at
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
            elif len(refs) < MAX_REFS:
                refs[os.fsencode(name).decode(errors="backslashreplace")] = id
        if not head:  # detached, or unborn
            branch = self._git.text("symbolic-ref", "-q", "HEAD", at=at, ok=(0, 1, 128))
            head = self._git.text("rev-parse", "-q", "--verify", "HEAD^{commit}", at=at, ok=(0, 1, 128))
        name = os.fsencode(branch).decode(errors="backslashreplace")
        return refs, tuple(sorted(set(remotes))), head if is_object_id(head) else "", name


def _older_stashes(place: Location, refs: Mapping[str, str]) -> tuple[str, ...]:
    """All but the newest, the newest first: only their log names them."""
    if "refs/stash" not in refs or place.common is None:
        return ()
    lines = read_end(place.common / "logs/refs/stash", MAX_STASH_LOG).decode("ascii", "replace").split("\n")
    ids = (words[1] for line in reversed(lines) if len(words := line.split(" ", 2)) == 3)
    return tuple(islice((id for id in ids if is_object_id(id) and id != refs["refs/stash"]), MAX_STASHES))


def _stages(unmerged: bytes) -> Iterator[str]:
    for entry in unmerged.split(b"\0")[:-1]:
        mode, id, _ = entry.split(b" ", 2)
        if mode != b"160000":
            yield id.decode()
