"""Looks at the user's git repository around a workspace: where it stands, what is in progress, what only it has.

Only reads (I7). What git is asked there are questions about refs and commits; objects are read in our own repository,
where nothing can be fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec

from wal_agent.capture.history import History
from wal_agent.capture.location import Location
from wal_agent.capture.progress import operation_in_progress, progress_heads, read_progress_files
from wal_agent.capture.shadow import GitState, Shadow, is_object_id, read_state
from wal_agent.capture.user_index import UserIndex
from wal_agent.plainfile import read_plain
from wal_agent.records import Repository

MOST_REFS = 2000
MOST_SPARSE = 64 << 10  # bytes of the sparse patterns


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """What stands around the working tree now. `index`: tree, "" for none. `extra`: objects that `state` names and
    nothing else holds."""

    repository: Repository | None = None
    index: str = ""
    state: bytes = b""
    extra: tuple[str, ...] = ()
    weight: int = 0  # bytes, as git stores them, of the files of the commits that it names

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
        self._commits: tuple[object, tuple[tuple[str, ...], tuple[str, ...], bool]] | None = None

    @property
    def index_stamp(self) -> object:
        """Another one when the user's index is another one."""
        return self._index.stamp

    def look(self, place: Location) -> RepositoryState:
        """Everything about the repository at `place`; GitFailed."""
        if place.git_dir is None:
            self._index.forget()
            return RepositoryState()
        files = dict(read_progress_files(place.git_dir))
        refs, remotes, head, branch = self._refs(place)
        roots = tuple(dict.fromkeys((*progress_heads(files), *refs.values())))
        key = (place, head, roots, remotes)
        if self._commits is None or self._commits[0] != key:
            self._commits = (key, self._history.commits(place, head, roots, remotes))
        commits, shallow, remote = self._commits[1]
        index, unmerged = self._index.read(place)
        state = GitState(
            head=head,
            branch=branch,
            files=files,
            refs=refs,
            commits=commits,
            shallow=shallow,
            missing=any(True for objects in place.alternates for _ in objects.glob("pack/*.promisor")),
            unmerged=unmerged,
            sparse=read_plain(place.git_dir / "info" / "sparse-checkout", MOST_SPARSE) or b"",
        )
        repository = Repository(
            head=head,
            branch=branch,
            identity=self._history.who(place, head),
            prefix=place.prefix,
            remote=remote,
            busy=operation_in_progress(files),
        )
        state_bytes = msgspec.json.encode(state)
        return RepositoryState(repository, index, state_bytes, tuple(_stages(unmerged)), self._history.weight)

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
            elif len(refs) < MOST_REFS:
                refs[os.fsencode(name).decode(errors="backslashreplace")] = id
        if not head:  # detached, or unborn
            branch = self._git.text("symbolic-ref", "-q", "HEAD", at=at, ok=(0, 1, 128))
            head = self._git.text("rev-parse", "-q", "--verify", "HEAD^{commit}", at=at, ok=(0, 1, 128))
        name = os.fsencode(branch).decode(errors="backslashreplace")
        return refs, tuple(sorted(set(remotes))), head if is_object_id(head) else "", name


def _stages(unmerged: bytes) -> Iterator[str]:
    for entry in unmerged.split(b"\0")[:-1]:
        mode, id, _ = entry.split(b" ", 2)
        if mode != b"160000":
            yield id.decode()
