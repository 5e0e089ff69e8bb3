"""Capture a workspace: the files, the index and the state of its git repository, as records that name packs in blobs.

The first pack holds everything; each later one only what the packs before it lack (I9: what is sent is what is new).
When there are many, all but the first are sent again as one; when they outgrow the first, everything is. A tree that is
saved in parts has several first packs.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.capture.candidates import BROUGHT_IN, HISTORY, OUTSIDE, Caps, bound_paths
from wal_agent.capture.git import (
    Busy,
    Change,
    Git,
    GitDirs,
    GitFailed,
    GitStopped,
    diff_trees,
    file_sizes,
    list_reachable,
    object_sizes,
    trees_of,
)
from wal_agent.capture.glance import glance_at
from wal_agent.capture.repository import (
    MAX_MARKS,
    Location,
    RepositoryReader,
    RepositoryState,
    find_location,
    linked_worktrees,
    mark_folder,
    read_marks,
)
from wal_agent.capture.scan import Scanned, Scanner
from wal_agent.capture.shadow import BASE, SAVED, Contents, GitState, Shadow, read_state
from wal_agent.errors import Damaged
from wal_agent.records import Pack, Payload, Pending, Workspace

PACK_PART = 4 << 20  # bytes
PACK_FILE = "pack"  # the last one that was made, until the next capture
MANY_PACKS = 50  # packs behind those that hold the first capture
MAX_PACKS = 800  # packs; wal/state.py takes no more than 1000
PACK_SLACK = 4 << 20  # bytes that later packs may always have in all
EXACT_CHANGES = 500  # changed objects above which it is worth to check which of them are elsewhere already
LOCK_TIMEOUT = 2.0  # seconds, for another run in the same workspace
PAUSE = 300.0  # seconds after which something that cannot be captured is tried again
MARGIN = 2.0  # seconds by which a file may seem older than it is
LEAST_PART, MAX_PART = 4 << 20, 64 << 20  # bytes of files that one capture takes in
MAX_PARTS = 256  # of a tree that is as big as its cap
PART_SECONDS = 3.0
MANY_LOOSE = 500  # files of one part, above which our repository keeps a pack instead of a file for each


class SavedCapture(msgspec.Struct, frozen=True):
    """What the log holds: its newest capture and that one's record, the capture that the first pack holds (None where
    that is not known here), and the sizes of its packs."""

    contents: Contents
    base: Contents | None
    packs: tuple[int, ...]
    record: Workspace

    @property
    def wasted(self) -> bool:
        """Whether what the later packs replaced outgrows what the first ones hold."""
        kept = self.packs[0] + self.record.grown
        return sum(self.packs) - kept > max(PACK_SLACK, kept) or len(self.packs) >= MAX_PACKS


class PackResult(msgspec.Struct, frozen=True):
    """A pack; `whole`: it needs no other; `dropped`: how many packs, from the newest on, it takes the place of."""

    pack: Pack
    whole: bool
    dropped: int


class Packer:
    """Used under the shadow's lock. `put` stores bulk bytes."""

    def __init__(self, shadow: Shadow, put: Callable[[bytes], Payload]) -> None:
        self._shadow, self._git, self._put = shadow, shadow.git, put

    def pack(
        self,
        dirs: GitDirs,
        saved: SavedCapture | None,
        made: Contents,
        around: RepositoryState,
        changed: Sequence[Change] | None,
        filling: bool = False,
    ) -> PackResult:
        """The pack that this capture needs: of what is new, of all that is new since the first packs, or of all.
        `changed`: what differs from the tree of `saved`, folders too. `filling`: a tree is being saved in parts; then
        always of what is new, so that nothing is sent again."""
        if saved is not None and (filling or not saved.wasted):
            since, dropped = saved.contents, 0
            many = len(saved.packs) - saved.record.parts >= MANY_PACKS - 1
            if many and saved.base is not None and not filling:
                since, dropped = saved.base, len(saved.packs) - saved.record.parts
                changed = None
            if not many or dropped or filling:
                return PackResult(self._packed(dirs, self._needed(dirs, since, made, around, changed)), False, dropped)
        return PackResult(self._packed(dirs, self._needed(dirs, None, made, around)), True, 0)

    def _needed(
        self,
        dirs: GitDirs,
        since: Contents | None,
        made: Contents,
        around: RepositoryState,
        changed: Sequence[Change] | None = None,
    ) -> Iterator[bytes]:
        """Lines of `id path` of the objects that the packs lack. `changed`: between the trees of `since` and `made`, if
        git was asked already. The working tree's must all be there (GitFailed); of the index and of commits what is not
        on this machine is passed over, as in a partial clone."""
        yield made.commit.encode()
        yield made.tree.encode()
        if made.state_id and (since is None or made.state_id != since.state_id):
            yield made.state_id.encode()
        known: list[str] = []
        if since is None:
            yield from list_reachable(self._git, dirs, [made.work], [])
        elif since.work != made.work:
            if changed is None:
                changed = [*diff_trees(self._git, dirs, since.work, made.work, trees=True)]
            if len(changed) > EXACT_CHANGES:
                yield from list_reachable(self._git, dirs, [made.work], [since.work])
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
            yield from list_reachable(self._git, dirs, [*wanted, *trees_of(commits)], [*known, made.work], strict=False)
        if around.extra and (since is None or since.state.unmerged != made.state.unmerged):
            yield from (id.encode() for id in around.extra)

    def _packed(self, dirs: GitDirs, needed: Iterable[bytes]) -> Pack:
        """Into an own file first, since the whole may be big, and then in parts into the bucket."""
        path = self._shadow.tmp / PACK_FILE
        listed = b"".join(line + b"\n" for line in needed)
        with path.open("w+b") as file:
            words = ("pack-objects", "-q", "--stdout", "--delta-base-offset", "--threads=1")
            self._git.run(*words, at=dirs, input=listed, out=file)
            file.seek(0)
            sha256, parts = hashlib.sha256(), []
            while part := file.read(PACK_PART):
                sha256.update(part)
                parts.append(self._put(part))
            size = file.tell()
        return Pack(size=size, sha256=sha256.hexdigest(), parts=tuple(parts))


class SavedInside(msgspec.Struct, frozen=True):
    """What became of the repositories inside: those that captures of their own hold, and whether one of these lags."""

    saved: tuple[str, ...] = ()
    lags: bool = False


SaveInside = Callable[[Mapping[str, Path], int, float, tuple[int, ...]], SavedInside]


class Nesting(msgspec.Struct, frozen=True):
    """How a capture stands to others. `save` gets the folders of the repositories inside, by their paths below the
    workspace, and what `capture` got, to capture them before this one is made. `outside`: whether a linked worktree
    outside of the workspace is saved too. `folder`: of the record, where this is a repository inside; `git` and
    `restored`: the git of the workspace that it is in, and where there a restore puts it."""

    save: SaveInside = lambda *_: SavedInside()
    outside: Callable[[Path], bool] = lambda _: False
    folder: str = ""
    git: Git | None = None
    restored: Path | None = None


ALONE = Nesting()


class WorkspaceCapture:
    """One run's. `capture` and `commit` are called by one thread, in turn."""

    def __init__(
        self,
        state_dir: Path,
        workspace: Path,
        env: Mapping[str, str],
        put: Callable[[bytes], Payload],
        private: Iterable[Path] = (),
        caps: Caps | None = None,
        job: str = "",
        nesting: Nesting = ALONE,
    ) -> None:
        """`workspace`: a real path. `private`: folders that are never captured."""
        self.git = nesting.git or Git(env)
        self._shadow = Shadow.of(state_dir, nesting.restored or workspace, self.git, job)
        self._packer = Packer(self._shadow, put)
        self._workspace, self._env = workspace, env
        self._private = (*private, state_dir)
        self._caps = caps or Caps()
        self._inside, self._outside, self._folder = nesting.save, nesting.outside, nesting.folder
        self._saved: SavedCapture | None = None
        self._next: SavedCapture | None = None
        self._tidy: Location | None = None
        self._loose: Location | None = None
        self._logged: Workspace | None = None
        self._failed: tuple[GitFailed, float] | None = None
        self._recent = read_marks(workspace, job)  # captures that the log may have as its newest
        self._born = ""
        self._began = time.time() - MARGIN  # file times are by the same clock
        self._held: tuple[int, tuple[int, ...]] = (0, ())  # by the newest capture: Workspace.holds and .also
        self._lags = False
        self._least = max(LEAST_PART, self._caps.total // MAX_PARTS)
        self._budget = self._least
        self.place: Location | None = None  # of the last capture
        self._big = False  # for a glance
        self.look = 0.0  # seconds that the last capture took to find what is new: the next one takes as long again
        self._anew()

    def _anew(self) -> None:
        self._scanner = Scanner(self._shadow, self._workspace, self._env, self._private, self._caps)
        self._around = RepositoryReader(self._shadow)
        self._total = 0

    def go_on_from(self, logged: Workspace | None) -> None:
        """At the beginning of a run: the log's newest capture is this one. If it is here too, what is sent builds on
        it."""
        self._logged = logged
        if logged is not None:
            self._held = (logged.holds, logged.also)

    def _go_on(self, place: Location) -> None:
        logged, self._logged = self._logged, None
        if logged is None or not logged.packs or not self._shadow.has(logged.commit):
            return
        self.acked(logged.commit)
        if self._recent[-1:] != (logged.commit,) and logged.commit in (*read_marks(self._workspace), *self._here()):
            self._recent = (logged.commit,)
        try:
            contents = self._shadow.contents(logged.commit, *place.alternates)
            base = self._shadow.ref(self._shadow.name(BASE)) if logged.commit in self._here() else ""
            first = self._shadow.contents(base, *place.alternates) if base else None
        except Damaged:
            return
        record = msgspec.structs.replace(logged, parts=min(max(1, logged.parts), len(logged.packs)))
        self._saved = SavedCapture(contents, first, tuple(pack.size for pack in logged.packs), record)
        self._total = logged.size

    def _here(self) -> tuple[str, ...]:
        return (self._shadow.ref(self._shadow.name(SAVED)),)

    def acked(self, commit: str) -> None:
        """The log's newest capture is this one, or a later one: what was before it is not needed any more."""
        if commit in self._recent:
            self._recent = self._recent[: self._recent.index(commit) + 1]

    @property
    def many_waiting(self) -> bool:
        """Whether the log has not taken as many captures as can be remembered."""
        return len(self._recent) >= MAX_MARKS

    @property
    def pending(self) -> Pending | None:
        """What the newest capture does not hold yet: another one goes on with it."""
        return self._saved.record.pending if self._saved is not None else None

    @property
    def lags(self) -> bool:
        """Whether something that changed in this run may not be in the newest captures."""
        return self._lags

    @property
    def newest(self) -> Workspace | None:
        """The newest record that was committed."""
        return self._saved.record if self._saved is not None else None

    def in_small_parts(self) -> None:
        """From now on: time is short, and what is cut off is lost."""
        self._budget = self._least

    def glance(self) -> object:
        """What everything that a capture reads here is known by, without git; None where only git can tell."""
        place, newest = self.place, self.newest
        if place is None or place.git_dir is None or self._big:
            return None
        if newest is None or newest.pending is not None or newest.inside:
            return None
        seen = glance_at(place)
        self._big = seen is None
        return (seen, self._scanner.settings(place)) if seen else None

    def capture(
        self, holds: int, now: float, also: tuple[int, ...] = (), place: Location | None = None
    ) -> Workspace | None:
        """What is new, as a record to append; then `commit` it. None: nothing is. `holds`: every call up to this number
        has ended, and so have those in `also`. `now`: seconds since 1970. `place`: where git has just found the
        repository, if the caller knows. Bounded: what does not fit is `pending`.

        Busy: another run is at work on this workspace. GitMissing, GitStopped, GitFailed; BucketError when bulk bytes
        could not be stored: the next call finds everything again."""
        with self._alone():
            if self._failed is not None and abs(now - self._failed[1]) < PAUSE:
                raise self._failed[0]
            try:
                return self._capture(holds, also, now, place)
            except (GitFailed, Damaged):
                # Objects that a gc of the user's took, or something broken in our repository: all from nothing.
                self._shadow.wipe()
                self._saved = None
                self._anew()
                try:
                    return self._capture(holds, also, now, place)
                except GitFailed as error:
                    self._failed = (error, now)  # to hash everything again and again would help nobody
                    raise

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Under the shadow's lock. Another run of the user's in this workspace holds it for moments only."""
        until = time.monotonic() + LOCK_TIMEOUT
        while True:
            with self._shadow.locked() as mine:
                if mine:
                    yield
                    return
            if time.monotonic() > until:
                raise Busy
            time.sleep(0.02)

    def commit(self) -> None:
        """The record of the last `capture` is in the log, or on its way behind all that it builds on."""
        if self._next is None:
            return
        moved = self._saved is None or self._saved.contents.commit != self._next.contents.commit
        self._saved, self._next = self._next, None
        self._held = (self._saved.record.holds, self._saved.record.also)
        if not moved:
            return
        self._recent = self._with(self._saved.contents.commit)
        with suppress(Busy, GitFailed, GitStopped), self._alone():  # without it the next run sends all
            base = self._saved.base
            self._shadow.keep(self._saved.contents.commit, base.commit if base else "", self._recent)
            if self._loose is not None:
                place, self._loose = self._loose, None
                self._shadow.take_in(self._shadow.tmp / PACK_FILE, *place.alternates)
            if self._tidy is not None:
                place, self._tidy = self._tidy, None
                # Outside of git all that is hashed is loose in our repository; the first pack holds it as well.
                pack = self._shadow.tmp / PACK_FILE
                alone = len(self._saved.packs) == 1 and not place.alternates and pack.exists()
                with suppress(GitFailed):  # something that it needs is gone: the next capture finds that
                    self._shadow.tidy(pack if alone else None, *place.alternates)

    def _with(self, commit: str) -> tuple[str, ...]:
        """The newest ones, and always the oldest: the log has that one for certain."""
        recent = (commit, *(each for each in self._recent if each != commit))
        return (*recent[: MAX_MARKS - 1], *recent[MAX_MARKS - 1 :][-1:])

    # ---- one capture

    def _capture(
        self, holds: int, also: tuple[int, ...], now: float, place: Location | None = None
    ) -> Workspace | None:
        self._next = None
        started = time.monotonic()
        self.place = place = place or find_location(self.git, self._workspace)
        self._shadow.ensure(place.object_format)
        if self._born and self._born != self._shadow.born:  # another job had to begin anew
            self._saved = None
            self._anew()
        self._born = self._shadow.born
        self._go_on(place)
        around = self._around.read(place)
        scanned = self._scanner.scan(place, self._around.index_stamp, self._total, self._budget)
        self.look = time.monotonic() - started - scanned.seconds
        saved = self._saved
        if around.partial:
            scanned.left_out.add(b".git", HISTORY)
        inside = self._save_inside(place, scanned, holds, also, now)
        lines, more = scanned.left_out.lines(), scanned.left_out.more
        pending = scanned.pending
        if pending is not None and around.weight > self._budget and (saved is None or not saved.contents.index):
            around = around.without_history()
            pending = msgspec.structs.replace(pending, repository=True)
        self._lags = inside.lags or (pending is not None and scanned.changed >= self._began)
        if self._lags:
            holds, also = self._held  # what waits may be of a call of this run
        filling = pending is not None or self.pending is not None
        state = _state(around.state, scanned)
        same = saved is not None and self._is_same(saved, scanned, around, state)
        if saved is not None and same:
            old = msgspec.structs.replace(saved.record, packs=(), whole=False, replaces=0)
            record = msgspec.structs.replace(
                old,
                holds=holds,
                also=also,
                left_out=lines,
                left_out_more=more,
                pending=pending,
                inside=inside.saved,
            )
            if record == old or (self._folder and record == replace(old, holds=holds, also=also)):
                return None  # of a repository inside the workspace's record says what it holds
            self._next = replace(saved, record=msgspec.structs.replace(record, time=now))
            return self._next.record
        before = saved.contents if saved is not None else None
        made = self._shadow.commit(scanned.work, around.index, state, now, *place.alternates, before=before)
        self._shadow.hold(made.commit)
        mark_folder(self._workspace, self._with(made.commit), self._shadow.job)
        dirs = self._shadow.at(*place.alternates)
        began = time.monotonic()
        changed = [*diff_trees(self.git, dirs, before.work, made.work, trees=True)] if before is not None else []
        packing = self._packer.pack(dirs, saved, made, around, changed, filling)
        ended = time.monotonic()
        self._adapt(scanned.cost, scanned.seconds + ended - began, ended - started)
        files, size, replaced = self._counted(dirs, saved, scanned.work, changed)
        pack, whole, dropped = packing.pack, packing.whole, packing.dropped
        grows = filling and saved is not None and not whole
        self._total = size
        self._tidy = place if whole or dropped else None
        self._loose = place if grows and scanned.taken > MANY_LOOSE else None
        kept: tuple[int, ...] = ()
        parts, grown = 1, 0
        if saved is not None and not whole:
            kept = saved.packs[: len(saved.packs) - dropped]
            parts, grown = saved.record.parts, saved.record.grown
        packs = (*kept, pack.size)
        if grows:
            parts, grown = len(packs), grown + (pack.size if replaced * 4 <= scanned.cost else 0)
        record = Workspace(
            time=now,
            holds=holds,
            commit=made.commit,
            packs=(pack,),
            whole=whole,
            replaces=dropped,
            repository=around.repository,
            files=files,
            size=size,
            left_out=lines,
            left_out_more=more,
            also=also,
            pending=pending,
            parts=parts,
            grown=grown,
            folder=self._folder,
            inside=inside.saved,
        )
        base = made if whole or grows or saved is None else saved.base
        self._next = SavedCapture(made, base, packs, record)
        return record

    def _save_inside(
        self, place: Location, scanned: Scanned, holds: int, also: tuple[int, ...], now: float
    ) -> SavedInside:
        """The repositories inside: those that the scan found, and linked worktrees that are ignored, or outside."""
        found = {name: self._workspace / name for name in map(os.fsdecode, scanned.inside)}
        outside = dict[str, Path]()
        for own, folder in linked_worktrees(place):
            if folder == self._workspace or any(folder.is_relative_to(each) for each in self._private):
                continue
            if not folder.is_relative_to(self._workspace):
                outside[f"{BROUGHT_IN}/{own}"] = folder
            elif os.path.lexists(folder / ".git"):
                found[folder.relative_to(self._workspace).as_posix()] = folder
        wanted = {name: folder for name, folder in outside.items() if name not in found and self._outside(folder)}
        asked = dict(sorted((found | wanted).items()))
        done = self._inside(asked, holds, now, also) if asked else SavedInside()
        scanned.left_out.settle_inside(map(os.fsencode, sorted(found)), set(map(os.fsencode, done.saved)))
        for name, folder in outside.items():
            if name not in wanted or name not in done.saved:
                scanned.left_out.add(os.fsencode(os.path.relpath(folder, self._workspace)), OUTSIDE)
        return done

    def _is_same(self, saved: SavedCapture, scanned: Scanned, around: RepositoryState, state: bytes) -> bool:
        old = saved.contents
        if (old.work, old.index, saved.record.repository) != (scanned.work, around.index, around.repository):
            return False
        return state == b"" if not old.state_id else state != b"" and read_state(state) == old.state

    def _adapt(self, cost: int, seconds: float, all_seconds: float) -> None:
        """The next capture takes as much as this machine and its bucket take in about PART_SECONDS, or in as long as
        the rest of a capture takes. `seconds` of `all_seconds` went into files that cost `cost`."""
        if 4 * cost >= self._budget:
            fits = int(cost / max(seconds, 0.001) * max(PART_SECONDS, all_seconds - seconds))
            self._budget = max(self._least, min(fits, 4 * self._budget, MAX_PART))

    def _counted(
        self, dirs: GitDirs, saved: SavedCapture | None, work: str, changed: Sequence[Change]
    ) -> tuple[int, int, int]:
        """How many files the tree has, their bytes, and those of the files before that are replaced."""
        if saved is None:
            all_sizes = [*file_sizes(self.git, dirs, work)]
            return len(all_sizes), sum(all_sizes), 0
        minus, plus = [c.old for c in changed if c.old_blob], [c.new for c in changed if c.new_blob]
        sizes = object_sizes(self.git, dirs, [*minus, *plus])
        before = sum(sizes[: len(minus)])
        files = saved.record.files + len(plus) - len(minus)
        return files, saved.record.size + sum(sizes[len(minus) :]) - before, before


def _state(around: bytes, scanned: Scanned) -> bytes:
    """With what the scan of the files found; empty where that is nothing."""
    stays = scanned.left_out.stays
    if not stays and not scanned.private:
        return around
    state = read_state(around) if around else GitState()
    left_out = bound_paths((*stays, *state.left_out))
    return msgspec.json.encode(msgspec.structs.replace(state, left_out=left_out, private=scanned.private))
