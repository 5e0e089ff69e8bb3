"""Compare captured working trees with each other and with a folder. Reads only: git works in a scratch repository, and
neither the folder nor wal-agent's own state changes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wal_agent.capture.git import GitFailed
from wal_agent.capture.repository import find_location
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.errors import Damaged
from wal_agent.records import Workspace
from wal_agent.recovery.restore_target import RestoreTarget
from wal_agent.recovery.restore_tree import fetch_packs, list_tree
from wal_agent.recovery.restore_workspace import (
    left_out_here,
    object_format,
    require_format,
    save_folder,
    uncommitted_files,
)
from wal_agent.text import shorten
from wal_agent.wal.blobs import Blobs


@dataclass(frozen=True, slots=True)
class ScratchTrees:
    """A scratch repository for the trees of one folder, `target`."""

    target: RestoreTarget
    shadow: Shadow
    blobs: Blobs

    def fetch(self, captured: Workspace) -> Contents:
        """Fetch a capture. Damaged, BucketError."""
        fetch_packs(self.shadow, captured, self.blobs)
        return self.shadow.contents(captured.commit)

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
        leave = left_out_here(old, tree, contents)
        old = {path: entry for path, entry in old.items() if path not in leave}
        return uncommitted_files(self.shadow, place, here, old, tree)


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
