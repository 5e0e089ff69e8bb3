"""What of a capture goes into a pack, and the pack into blobs (I9: what is sent is what is new).

The first pack holds everything; each later one only what the packs before it lack. When there are many, all but the
first are sent again as one; when they outgrow the first, everything is. A tree that is saved in parts has several first
packs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from wal_agent.capture.git import GitDirs
from wal_agent.capture.objects import diff_trees, list_reachable, trees_of
from wal_agent.capture.repository import RepositoryState
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.records import Pack, Payload, Pending, Repository

PACK_PART = 4 << 20  # bytes
PACK_FILE = "pack"  # the last one that was made, until the next capture
MANY_PACKS = 50  # packs behind those that hold the first capture
MAX_PACKS = 800  # packs; wal/state.py takes no more than 1000
PACK_SLACK = 4 << 20  # bytes that later packs may always have in all
EXACT_CHANGES = 500  # changed objects above which it is worth to look which of them are elsewhere already


@dataclass(frozen=True, slots=True)
class SavedCapture:
    """What the log holds: its newest capture, the one that the first pack holds ("" where that is not known here), and
    the sizes of its packs."""

    contents: Contents
    base: Contents | None
    packs: tuple[int, ...]
    repository: Repository | None
    holds: int
    files: int
    size: int
    left_out: tuple[str, ...]
    more: int
    also: tuple[int, ...] = ()
    pending: Pending | None = None
    parts: int = 1
    grown: int = 0

    @property
    def wasted(self) -> bool:
        """Whether what the later packs replaced outgrows what the first ones hold."""
        kept = self.packs[0] + self.grown
        return sum(self.packs) - kept > max(PACK_SLACK, kept) or len(self.packs) >= MAX_PACKS


@dataclass(frozen=True, slots=True)
class PackResult:
    """A pack; `whole`: it stands on no other; `dropped`: how many packs, from the newest on, it takes the place of."""

    pack: Pack
    whole: bool
    dropped: int


class Packer:
    """Used under the shadow's lock. `put` stores bulk bytes."""

    def __init__(self, shadow: Shadow, put: Callable[[bytes], Payload]) -> None:
        self._shadow, self._git, self._put = shadow, shadow.git, put

    def pack(
        self, at: GitDirs, saved: SavedCapture | None, made: Contents, around: RepositoryState, filling: bool = False
    ) -> PackResult:
        """The pack that this capture needs: of what is new, of all that is new since the first packs, or of all.
        `filling`: a tree is being saved in parts; then always of what is new, so that nothing is sent again."""
        if saved is not None and (filling or not saved.wasted):
            since, dropped = saved.contents, 0
            many = len(saved.packs) - saved.parts >= MANY_PACKS - 1
            if many and saved.base is not None and not filling:
                since, dropped = saved.base, len(saved.packs) - saved.parts
            if not many or dropped or filling:
                return PackResult(self._packed(at, self._needed(at, since, made, around)), False, dropped)
        return PackResult(self._packed(at, self._needed(at, None, made, around)), True, 0)

    def _needed(self, at: GitDirs, since: Contents | None, made: Contents, around: RepositoryState) -> Iterator[bytes]:
        """Lines of `id path` of the objects that the packs lack. The working tree's must all be there (GitFailed); of
        the index and of commits what is not on this machine is passed over, as in a partial clone."""
        yield made.commit.encode()
        yield self._git.run("rev-parse", f"{made.commit}^{{tree}}", at=at).strip()
        if made.state_id and (since is None or made.state_id != since.state_id):
            yield made.state_id.encode()
        known: list[str] = []
        if since is None:
            yield from list_reachable(self._git, at, [made.work], [])
        elif since.work != made.work:
            changed = [*diff_trees(self._git, at, since.work, made.work, trees=True)]
            if len(changed) > EXACT_CHANGES:
                yield from list_reachable(self._git, at, [made.work], [since.work])
            else:
                yield made.work.encode()
                yield from (c.new.encode() + b" " + c.path for c in changed if c.new_blob or c.new_tree)
        if since is not None:
            known = [t for t in (since.work, since.index) if t]
            if since.state.head in since.state.commits:
                known += trees_of([since.state.head])
        had = set(since.state.commits) if since is not None else set()
        commits = [id for id in made.state.commits if id not in had]
        wanted = [made.index] if made.index and (since is None or made.index != since.index) else []
        if wanted or commits:
            yield from (id.encode() for id in commits)
            yield from list_reachable(self._git, at, [*wanted, *trees_of(commits)], [*known, made.work], strict=False)
        if around.extra and (since is None or since.state.unmerged != made.state.unmerged):
            yield from (id.encode() for id in around.extra)

    def _packed(self, at: GitDirs, needed: Iterable[bytes]) -> Pack:
        """Into a file of ours first, since the whole may be big, and then in parts into the bucket."""
        path = self._shadow.tmp / PACK_FILE
        listed = b"".join(line + b"\n" for line in needed)
        with path.open("w+b") as file:
            words = ("pack-objects", "-q", "--stdout", "--delta-base-offset", "--threads=1")
            self._git.run(*words, at=at, input=listed, out=file)
            file.seek(0)
            sha256, parts = hashlib.sha256(), []
            while part := file.read(PACK_PART):
                sha256.update(part)
                parts.append(self._put(part))
            size = file.tell()
        return Pack(size=size, sha256=sha256.hexdigest(), parts=tuple(parts))
