"""Our own git repository for one workspace, in and outside of git: what is captured, and how it is read again.

It is a bare repository of ours in the user's state folder, with its own index; the user's object directory is only read
(an alternate). Nothing is written to the user's repository (I7).

A capture is a commit without parents. Its tree has up to three entries:

* `work`   tree: the workspace folder's files as they are on the disk, byte for byte: no filter has seen them. Modes are
           100644, 100755, 120000 (the link's words) and 160000 (a repository inside, at this commit; its files are not
           captured).
* `index`  tree: the user's whole index (from the top of the repository), without unmerged entries; absent outside of
           git and where it cannot be written.
* `state`  blob: JSON of `GitState`; absent outside of git where it would say nothing.

Jobs may share a folder, so each has refs of its own in `refs/wal-agent/<hash of its name>/`: `saved` is its newest
capture, `base` the one that its first pack holds, `recent/*` all that the log may hold as its newest, as long as it is
not known which. A run whose replay has a commit with a ref in `State.workspace` goes on from it, any other one sends
everything. A restore that unpacked a capture here leaves that one alone (`Shadow.save`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from wal_agent import msgspec_compat
from wal_agent.capture.git import Git, GitBounds, GitDirs, GitFailed
from wal_agent.errors import Damaged

FOLDER = "workspaces"  # in the user's state folder
REFS = "refs/wal-agent/"
SAVED, BASE, RECENT = "saved", "base", "recent/"
BORN = "born"  # file: the repository is whole
MAX_LISTED = 4096  # bytes of the names in a capture
MAX_STATE = 12 << 20  # bytes of `state`
WORK, INDEX, STATE = "work", "index", "state"

# The place of attributes that git prefers to all others: whatever the project says, bytes stay what they are. (`-eol`
# or `-working-tree-encoding` would be errors where git asks for their value, hence "!".)
ATTRIBUTES = "* -text !eol -crlf -ident !filter !working-tree-encoding\n"
CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tbare = true
\tfilemode = true
\tsymlinks = true
\tignorecase = false
\tautocrlf = false
\tsafecrlf = false
\tfsmonitor = false
\tsparseCheckout = false
\tlogAllRefUpdates = false
\tcompression = 1
\tfsync = none
\tcommitGraph = false
[index]
\tversion = 4
\tthreads = 1
[gc]
\tauto = 0
[pack]
	compression = 6
\tthreads = 1
"""
_ID = frozenset("0123456789abcdef")


class GitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The repository around the working tree. Bytes are base64 in the JSON.

    `files`: of the git folder, by their names in it (MERGE_HEAD, rebase-merge/done, ...): what shows a merge,
    rebase, cherry-pick, revert or bisect in progress. `refs`: local branches and the newest stash; `stashes`: the older
    ones, the newest first. `commits`: commits of the
    user's that the packs hold whole, with all their files: HEAD, and what no remote-tracking ref has. `shallow`: those
    of them with parents that the packs do not hold, as git's `shallow` file wants it. `missing`: some files of these
    commits were not on the machine (a partial clone). `unmerged`: `git ls-files -u -z`. `sparse`: what of the
    repository was checked out (info/sparse-checkout), where not all was.

    The last two are of any folder, also outside of git; paths below the workspace, raw bytes, bounded. `left_out`: what
    was there and could not be saved, though nobody chose to leave it out, or is in the index and was not checked out (a
    sparse checkout, skip-worktree). Each names a file or a folder: what is at or below it, and not in `work`, stays as
    it is where the capture is put back. `private`: files of `work` that nobody but their owner may open (mode & 077 is
    0)."""

    head: str = ""
    branch: str = ""
    files: dict[str, bytes] = {}
    refs: dict[str, str] = {}
    stashes: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    shallow: tuple[str, ...] = ()
    missing: bool = False
    unmerged: bytes = b""
    sparse: bytes = b""
    left_out: tuple[bytes, ...] = ()
    private: tuple[bytes, ...] = ()


_STATE = msgspec_compat.of_json(GitState)


class Contents(msgspec.Struct, frozen=True):
    """A capture as it is read: ids of its trees ("": it has none), and the state of the repository. `tree`: the
    commit's own, of a capture that was just made."""

    commit: str
    work: str
    index: str = ""
    state_id: str = ""
    state: GitState = msgspec.field(default_factory=GitState)
    tree: str = ""


class Shadow(msgspec.Struct, frozen=True):
    """The repository in `folder`. Who changes anything in it holds `locked`. `job`: whose captures are saved."""

    folder: Path
    git: Git
    job: str = ""

    @classmethod
    def of(cls, state_dir: Path, workspace: Path, git: Git, job: str = "") -> Shadow:
        """`workspace`: a real path. Nothing is made yet."""
        name = hashlib.sha256(os.fsencode(workspace)).hexdigest()[:16]
        git.project = git.project or workspace
        return cls(state_dir / FOLDER / name, git, job)

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def tmp(self) -> Path:
        """For files that are gone when the lock is free."""
        return self.folder / "tmp"

    def at(self, *alternates: Path, work_tree: Path | None = None, index: Path | None = None) -> GitDirs:
        """For git. `alternates`: the user's object directory, where there is one."""
        return GitDirs(self.folder, work_tree, index or self.folder / "index", None, alternates, cwd=work_tree)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Alone with the repository; False at once where another process is at work in it. The lock stays held while a
        git process lives that outlived us."""
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self.git.keep
        fd = os.open(self.folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self.git.keep = (*before, fd)
            yield True
        finally:
            self.git.keep = before
            os.close(fd)

    def ensure(self, object_format: str = "sha1") -> bool:
        """Make it, or take up what is there; anew when that is half-made, of another object format, or no repository.
        Whether it was made anew. Under the lock."""
        fresh = not self.born or self._format() != object_format
        if fresh:
            self.wipe()
            self._make(object_format)
        (self.folder / "info").mkdir(exist_ok=True)
        (self.folder / "info" / "attributes").write_text(ATTRIBUTES)
        self._clear()
        self.tmp.mkdir(mode=0o700)
        return fresh

    def _make(self, object_format: str) -> None:
        """The marker `born` is written last: without it a start makes everything again."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # git before 2.29 does not know the option
        chosen = [f"--object-format={object_format}"] if object_format != "sha1" else []
        self.git.run("init", "-q", "--bare", "--template=", *chosen, ".", cwd=self.folder)
        config = CONFIG.format(version=0 if object_format == "sha1" else 1)
        if object_format != "sha1":
            config += f"[extensions]\n\tobjectFormat = {object_format}\n"
        (self.folder / "config").write_text(config)
        new = self.folder / f"{BORN}.new"
        new.write_text(secrets.token_hex())
        for path in (self.folder / "config", self.folder / "HEAD", new):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        new.replace(self.folder / BORN)

    def _clear(self) -> None:
        """Remove what a killed git left: while we hold the lock no own git runs here, and nobody else's does."""
        for path in (*self.folder.glob("*.lock"), *self.folder.glob("refs/**/*.lock"), self.folder / "gc.pid"):
            path.unlink(missing_ok=True)
        for pattern in ("tmp_*", ".tmp-*", "*.lock"):
            for path in (self.objects / "pack").glob(pattern):
                path.unlink(missing_ok=True)  # a git that was just ended may remove its own
        shutil.rmtree(self.tmp, ignore_errors=True)

    def _format(self) -> str:
        try:
            config = (self.folder / "config").read_text()
        except (OSError, ValueError):
            return ""
        return "sha256" if "objectFormat = sha256" in config else "sha1"

    @property
    def born(self) -> str:
        """Another one when another job began it anew; "" where there is none, or a half-made one."""
        try:
            return (self.folder / BORN).read_text()
        except (OSError, ValueError):
            return ""

    def wipe(self) -> None:
        """Begin anew: nothing in it is needed but to save work."""
        (self.folder / BORN).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what was saved

    def ref(self, name: str) -> str:
        """The commit's id, "" for none."""
        if not self.born:
            return ""
        found = self.git.text("rev-parse", "-q", "--verify", name, at=self.at(), ok=(0, 1, 128))
        return found if is_object_id(found) else ""

    def name(self, what: str) -> str:
        """A ref of this job's."""
        return f"{REFS}{hashlib.sha256(self.job.encode()).hexdigest()[:16]}/{what}"

    def has(self, commit: str) -> bool:
        """Whether a job has saved this capture here, or it was put back here. A repository that git cannot read has
        none."""
        try:
            return commit in self._refs(REFS).values()
        except GitFailed:
            return False

    def save(self, commit: str) -> None:
        """The folder is `commit` now, and none of the captures of before. Under the lock."""
        gone = "".join(f"delete {ref}\n" for ref in self._refs(REFS) if ref != self.name(SAVED))
        moves = f"update {self.name(SAVED)} {commit}\n{gone}"
        self.git.run("update-ref", "--stdin", at=self.at(), input=moves.encode())

    def hold(self, commit: str) -> None:
        """This capture is about to go into the log. Under the lock."""
        self.git.run("update-ref", self.name(RECENT) + commit, commit, at=self.at())

    def keep(self, commit: str, base: str, recent: Collection[str]) -> None:
        """The job's newest capture is `commit`; `base` is the one that its first pack holds, "" where that is not known
        here; `recent` are those that the log may have as its newest. Under the lock."""
        moves = f"update {self.name(SAVED)} {commit}\n"
        moves += f"update {self.name(BASE)} {base}\n" if base else f"delete {self.name(BASE)}\n"
        gone = [ref for ref, id in self._refs(self.name(RECENT)).items() if id not in recent]
        moves += "".join(f"delete {ref}\n" for ref in gone)
        self.git.run("update-ref", "--stdin", at=self.at(), input=moves.encode())

    def _refs(self, prefix: str) -> dict[str, str]:
        if not self.born:
            return {}
        said = self.git.text("for-each-ref", "--format=%(refname) %(objectname)", prefix, at=self.at())
        return dict(line.split(" ") for line in filter(None, said.split("\n")))

    def take_in(self, pack: Path, *alternates: Path) -> None:
        """Keep a pack that was made of loose objects instead of them. Under the lock."""
        with pack.open("rb") as file:
            self.git.run("index-pack", "--stdin", at=self.at(*alternates), input=file)
        self.git.run("prune-packed", "-q", at=self.at())

    def tidy(self, pack: Path | None, *alternates: Path) -> None:
        """Drop objects that no capture which is saved here needs any more, nor our index: one pack is left. `pack`: one
        with what is loose, made already. Under the lock."""
        at = self.at(*alternates)
        if pack is not None:
            self.take_in(pack, *alternates)
        folder = self.objects / "pack"
        before = [path.stem for path in folder.glob("pack-*.pack")]
        if len(before) > (pack is not None):
            words = (
                "--all",
                "--indexed-objects",
                "--local",
                "--missing=allow-any",
                "--window=0",
                "--delta-base-offset",
            )
            made = self.git.text("pack-objects", "-q", *words, str(folder / "pack"), at=at).split()
            for name in before:
                if name.removeprefix("pack-") not in made:
                    for suffix in (".idx", ".rev", ".pack"):  # without its index it is none
                        (folder / f"{name}{suffix}").unlink(missing_ok=True)
            self.git.run("prune-packed", "-q", at=self.at())
        self.git.run("prune", "--expire=now", at=at)

    def contents(self, commit: str, *alternates: Path) -> Contents:
        """Read a capture. Damaged when it is not one, or not all of it is here."""
        at = self.at(*alternates)
        try:
            listed = self.git.run(
                "ls-tree", "-z", "--full-tree", commit, at=at, within=GitBounds(MAX_LISTED, foreign=True)
            )
            found = {}
            for entry in listed.split(b"\0")[:-1]:
                head, _, name = entry.partition(b"\t")
                mode, kind, id = head.decode().split(" ")
                found[name.decode()] = (mode, kind, id)
            state_id, state = "", GitState()
            if STATE in found:
                state_id = found[STATE][2]
                state = read_state(
                    self.git.run("cat-file", "blob", state_id, at=at, within=GitBounds(MAX_STATE, foreign=True))
                )
            trees = {name: found[name][2] for name in (WORK, INDEX) if name in found and found[name][1] == "tree"}
        except (GitFailed, ValueError) as error:
            raise Damaged(f"The captured working tree {commit[:12]} cannot be read: {error}.") from error
        if WORK not in trees or set(found) - {WORK, INDEX, STATE}:
            raise Damaged(f"The captured working tree {commit[:12]} has not the form that it should have.")
        return Contents(commit, trees[WORK], trees.get(INDEX, ""), state_id, state)

    # ---- making one

    def commit(
        self, work: str, index: str, state: bytes, now: float, *alternates: Path, before: Contents | None = None
    ) -> Contents:
        """Write the capture that holds these trees; `state` is `GitState` as bytes, empty outside of git. `before`: a
        capture that is here, whose state is not written again where it is the same."""
        at = self.at(*alternates)
        entries = [f"040000 tree {work}\t{WORK}"]
        if index:
            entries.append(f"040000 tree {index}\t{INDEX}")
        around, state_id = read_state(state) if state else GitState(), ""
        if state and before is not None and before.state_id and before.state == around:
            state_id = before.state_id
        elif state:
            state_id = self.git.run("hash-object", "-w", "--stdin", at=at, input=state).decode().strip()
        if state_id:
            entries.append(f"100644 blob {state_id}\t{STATE}")
        tree = self.git.run("mktree", "-z", at=at, input="".join(f"{e}\0" for e in entries).encode()).decode().strip()
        who = f"wal-agent <wal-agent@localhost> {int(now)} +0000"
        text = f"tree {tree}\nauthor {who}\ncommitter {who}\n\nworking tree\n"
        commit = self.git.run("hash-object", "-t", "commit", "-w", "--stdin", at=at, input=text.encode())
        return Contents(commit.decode().strip(), work, index, state_id, around, tree)


def read_state(data: bytes) -> GitState:
    """ValueError for what is not one."""
    state = _STATE.decode(data)
    ids = (*state.commits, *state.shallow, *state.refs.values(), *state.stashes, *filter(None, [state.head]))
    if not all(map(is_object_id, ids)):
        raise ValueError("an id in it is none")
    return state


def is_object_id(text: str) -> bool:
    """Whether it is spelled as an object's id: 40 hex digits, or 64 in a SHA-256 repository."""
    return len(text) in (40, 64) and _ID.issuperset(text)
