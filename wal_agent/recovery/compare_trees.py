"""Compare captured working trees with each other and with a folder. Reads only: git works in a scratch repository, and
neither the folder nor wal-agent's own state changes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from wal_agent.answers import JsonAnswer
from wal_agent.bucket.base import Bucket
from wal_agent.capture.git import GitBounds, GitFailed
from wal_agent.capture.repository import find_location
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.errors import ConfigError, Damaged, Exhausted
from wal_agent.records import AnyRecord, Workspace
from wal_agent.recovery.restore_target import RestoreTarget, check_inside_name
from wal_agent.recovery.restore_tree import fetch_packs, list_tree
from wal_agent.recovery.restore_workspace import (
    left_out_here,
    object_format,
    require_format,
    save_folder,
    target_inside,
    uncommitted_files,
)
from wal_agent.redact import redact, redact_head
from wal_agent.text import shorten
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Replay, iter_readable, list_snapshots, replay
from wal_agent.wal.state import State

MAX_PATCH = 16 << 20  # bytes
MAX_STEP_PATCH = 20_000  # characters of the differences between two captures in a row


class TreeChange(msgspec.Struct, frozen=True):
    """A file that differs between two trees."""

    path: str
    change: Literal["added", "changed", "removed"]


class Diff(JsonAnswer, frozen=True):
    """`wal-agent diff`, from and to a record; `last` is None where it is this folder."""

    job: str
    first: int = msgspec.field(name="from")
    last: int | None = msgspec.field(name="to")
    files: tuple[TreeChange, ...]


def first_capture(bucket: Bucket, keys: Keys) -> Replay | None:
    """Return the log up to the first capture of the working tree that is still kept; None: there is none. Reads the log
    from its beginning up to there. Unavailable, Denied."""
    snapshots = set(list_snapshots(bucket, keys))
    for seq, segment in iter_readable(bucket, keys):
        if isinstance(segment, Damaged):
            continue
        if seq in snapshots or any(isinstance(record, Workspace) for record in segment.records):
            found = replay(bucket, keys, seq)
            if found.damage is None and found.state.workspace is not None:
                return found
    return None


class TreeStep(msgspec.Struct, frozen=True):
    """What changed from one capture to the next, which is in `record`: the calls above `after` up to `to` ended in
    between, or other things did it. `patch`: the differences as git writes them, redacted, cut after MAX_STEP_PATCH.
    `why`: the reason for which they are not known."""

    record: int
    after: int
    to: int
    files: tuple[TreeChange, ...] = ()
    patch: str = ""
    why: str = ""


def tree_steps(
    first: Replay, records: Iterable[tuple[int, AnyRecord]], target: RestoreTarget, blobs: Blobs, most: int
) -> list[TreeStep]:
    """Return what each of the newest `most` captures of `records` changed. `first`: the log up to the first capture
    that is kept; older records are passed over. Each pack is fetched once. BucketError."""
    last = first.state.workspace
    if last is None:
        return []
    later = [(seq, record) for seq, record in records if seq > first.seq and isinstance(record, Workspace)]
    steps = list[TreeStep]()
    with scratch_trees(target, last, blobs) as trees:
        try:
            before = trees.fetch(last).work
        except (Damaged, ConfigError, Exhausted) as error:
            return [TreeStep(seq, 0, record.holds, why=str(error)) for seq, record in later[-most:]]
        for n, (seq, record) in enumerate(later):
            files, patch, why, wanted = list[TreeChange](), "", "", n >= len(later) - most
            since = last
            try:
                after = trees.fetch(record).work
                if wanted:
                    files, patch = trees.changes(before, after), trees.patch(before, after)
                before, last = after, record
            except (Damaged, GitFailed, ConfigError, Exhausted) as error:
                why = shorten(str(error), 400)
            if wanted:
                shown = tuple(TreeChange(redact(each.path), each.change) for each in files)
                patch = redact_head(patch, MAX_STEP_PATCH)
                steps.append(TreeStep(seq, since.holds, record.holds, shown, patch, redact(why)))
    return steps


class ScratchTrees(msgspec.Struct, frozen=True):
    """A scratch repository for the trees of one folder, `target`."""

    target: RestoreTarget
    shadow: Shadow
    blobs: Blobs

    def fetch(self, captured: Workspace) -> Contents:
        """Fetch a capture. Damaged, BucketError."""
        fetch_packs(self.shadow, captured, self.blobs)
        return self.shadow.contents(captured.commit)

    def folder(self, captured: Workspace, now: float) -> tuple[str, tuple[Path, ...]]:
        """Save the folder's files, and return their tree and the object directories that it needs.

        `captured`: what it is to be compared with. ConfigError: the repository here is of another object format."""
        place = find_location(self.shadow.git, self.target.folder)
        require_format(place, object_format(captured))
        here = save_folder(self.target, self.shadow, place, now) if self.target.folder.is_dir() else None
        return here.contents.work if here else self.nothing(), place.alternates

    def nothing(self) -> str:
        """Return the tree without files."""
        return self.shadow.git.text("mktree", at=self.shadow.at())

    def changes(self, old: str, new: str, *alternates: Path) -> list[TreeChange]:
        """Return the files that differ between two trees, by name. Damaged."""
        before, after = (list_tree(self.shadow, tree, *alternates, whole=False) for tree in (old, new))
        found = [TreeChange(path, "removed") for path in before.keys() - after.keys()]
        for path, entry in after.items():
            was = before.get(path)
            if was is None:
                found.append(TreeChange(path, "added"))
            elif (was.mode, was.id) != (entry.mode, entry.id):
                found.append(TreeChange(path, "changed"))
        return sorted(found, key=lambda change: change.path)

    def patch(self, old: str, new: str, *alternates: Path, below: str = "") -> str:
        """Return the differences of two trees as git writes them, of files in the folder `below`. GitFailed: they are
        longer than MAX_PATCH."""
        words = ("diff-tree", "-r", "-p", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
        names = (f"--src-prefix=a/{below}", f"--dst-prefix=b/{below}")
        at, within = self.shadow.at(*alternates), GitBounds(MAX_PATCH)
        return self.shadow.git.run(*words, *names, old, new, at=at, within=within).decode("utf-8", "replace")

    def uncommitted(self, captured: Workspace, now: float) -> list[str]:
        """Return the files of the folder that no commit at HEAD has, and that a restore of `captured` would replace.
        Damaged, ConfigError, BucketError."""
        if not self.target.folder.is_dir():
            return []
        place = find_location(self.shadow.git, self.target.folder)
        require_format(place, object_format(captured))
        here = save_folder(self.target, self.shadow, place, now)
        if here is None:
            return []
        contents = self.fetch(captured)
        tree = list_tree(self.shadow, contents.work)
        old = list_tree(self.shadow, here.contents.work, *place.alternates)
        leave = left_out_here(old, tree, contents.state.left_out)
        old = {path: entry for path, entry in old.items() if path not in leave}
        return uncommitted_files(self.shadow, place, here, old, tree)


class TreeDiff(msgspec.Struct, frozen=True):
    """How two trees differ. `patch`: as git writes it. `why`: the reason for which it is not known."""

    files: tuple[TreeChange, ...] = ()
    patch: str = ""
    why: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """Of the working trees of two states; `now` (seconds since 1970): of the first with the files of the folder
    instead. `patch`: with the differences."""

    target: RestoreTarget
    blobs: Blobs
    old: State
    new: State
    now: float | None = None
    patch: bool = False

    def workspace(self) -> TreeDiff:
        """Damaged, ConfigError, BucketError."""
        return self._compare(self.target, self.old.workspace, self.new.workspace)

    def inside(self) -> Iterator[tuple[str, TreeDiff]]:
        """The repositories in the workspace that differ, by their folders. BucketError."""
        for name in sorted({*self.old.inside, *self.new.inside}):
            old, new = self.old.inside.get(name), self.new.inside.get(name)
            if self.now is None and old and new and old.commit == new.commit:
                continue
            try:
                check_inside_name(name)
                if self.now is not None and self.target.is_outside(name):
                    raise ConfigError("It lies outside of this folder.")
                target = self.target if self.now is None else target_inside(self.target, name)
                yield name, self._compare(target, old, new, f"{name}/")
            except (Damaged, ConfigError, Exhausted, OSError) as error:
                yield name, TreeDiff(why=shorten(str(error), 400))

    def _compare(
        self, target: RestoreTarget, old: Workspace | None, new: Workspace | None, below: str = ""
    ) -> TreeDiff:
        some = old or new
        if some is None:
            return TreeDiff()
        if old and new and len(old.commit) != len(new.commit):
            raise Damaged("The two working trees are of different object formats.")
        with scratch_trees(target, some, self.blobs) as trees:
            before = trees.fetch(old).work if old else trees.nothing()
            if self.now is not None:
                after, alternates = trees.folder(some, self.now)
            else:
                after, alternates = trees.fetch(new).work if new else trees.nothing(), ()
            found = trees.changes(before, after, *alternates)
            patch = trees.patch(before, after, *alternates, below=below) if self.patch else ""
            return TreeDiff(tuple(TreeChange(f"{below}{each.path}", each.change) for each in found), patch)


@contextmanager
def scratch_trees(target: RestoreTarget, captured: Workspace, blobs: Blobs) -> Iterator[ScratchTrees]:
    """Make the scratch repository, of the object format of `captured`, and remove it at the end. Damaged: git cannot
    read what is there."""
    with tempfile.TemporaryDirectory(prefix="wal-agent-compare-") as folder:
        shadow = Shadow(Path(folder) / "shadow", target.shadow().git)
        try:
            shadow.ensure(object_format(captured))
            yield ScratchTrees(target, shadow, blobs)
        except GitFailed as error:
            raise Damaged(f"The working trees cannot be compared: {shorten(str(error), 400)}.") from error
