"""Capture a workspace together with the repositories in it: linked worktrees, submodules, clones; and, where a person
wants that, with the linked worktrees outside of it.

Git keeps only the commit of a repository inside another one. Each gets captures of its own: its files, index, state and
unpushed commits, as of any workspace. Their records stand in the log before the workspace's, whose `holds` so speaks
for all of them, and which names them: one that is gone is not named any more. A worktree outside has the name of the
folder inside into which a restore puts it: a record names nothing else, and a restore writes nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from wal_agent.capture.belongs import is_linked, is_own
from wal_agent.capture.candidates import BROUGHT_IN, Caps
from wal_agent.capture.git import Busy, GitFailed
from wal_agent.capture.repository import Location, find_location
from wal_agent.capture.workspace import Nesting, SavedInside, WorkspaceCapture
from wal_agent.records import Payload, Pending, Workspace
from wal_agent.wal.state import State

MAX_INSIDE = 32  # repositories inside; further ones are left out
SHARE = 4  # each may have this part of the workspace's cap


class TreeCapture:
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
        outside: Callable[[Path], bool] = lambda _: False,
    ) -> None:
        """As of WorkspaceCapture. `outside`: whether a linked worktree in that folder outside is saved too."""
        self._state_dir, self._workspace, self._env, self._put = state_dir, workspace, env, put
        self._private, self._job = (*private,), job
        self._caps = caps or Caps()
        self._main = WorkspaceCapture(
            state_dir, workspace, env, put, private, caps, job, Nesting(lambda *asked: self._save("", *asked), outside)
        )
        self.git = self._main.git
        self._inside: dict[str, WorkspaceCapture] = {}
        self._made: dict[str, Workspace] = {}
        self._logged: Mapping[str, Workspace] = {}
        self._same: dict[str, object] = {}  # of those in which the last capture found nothing new: glances before it
        self._small = False

    @property
    def pending(self) -> Pending | None:
        """What the first of the newest captures that is not whole lacks: the next one goes on with it."""
        return next((each.pending for each in self._all if each.pending is not None), None)

    @property
    def lags(self) -> bool:
        return self._main.lags

    @property
    def look(self) -> float:
        return sum(each.look for each in self._all)

    @property
    def many_waiting(self) -> bool:
        return self._main.many_waiting

    @property
    def _all(self) -> tuple[WorkspaceCapture, ...]:
        return (self._main, *self._inside.values())

    def go_on_from(self, logged: State) -> None:
        """At the beginning of a run: the log's newest captures are these."""
        self._logged = logged.inside
        self._main.go_on_from(logged.workspace)

    def acked(self, logged: State) -> None:
        """The log's newest captures are these, or later ones."""
        if logged.workspace is not None:
            self._main.acked(logged.workspace.commit)
        for name, capture in self._inside.items():
            if name in logged.inside:
                capture.acked(logged.inside[name].commit)

    def in_small_parts(self) -> None:
        self._small = True
        for each in self._all:
            each.in_small_parts()

    def capture(self, holds: int, now: float, also: tuple[int, ...] = ()) -> tuple[Workspace, ...]:
        """What is new, as records to append in this order; then `commit` them. Raises what WorkspaceCapture does."""
        self._made = {}
        main = self._main.capture(holds, now, also)
        return (*self._made.values(), *([main] if main is not None else []))

    def commit(self) -> None:
        """The records of the last `capture` are in the log, or on their way."""
        for name in self._made:
            self._inside[name].commit()
        self._main.commit()

    def _save(
        self, parent: str, found: Mapping[str, Path], holds: int, now: float, also: tuple[int, ...]
    ) -> SavedInside:
        """Capture the repositories that were found in the folder `parent`."""
        saved: list[str] = []
        lags = False
        for name, path in found.items():
            folder = f"{parent}/{name}" if parent else name
            capture = self._of(folder, path)
            if capture is None:
                continue
            before, glance = self._same.pop(folder, None), capture.glance()
            if glance is not None and glance == before:
                self._same[folder] = glance
                saved.append(name)
                continue
            if capture.many_waiting and not self._small:
                saved, lags = [*saved, name], True
                continue
            try:
                place, around = find_location(self.git, path), self._main.place
                if around is not None and not self._may_save(folder, path, place, around):
                    continue
                record = capture.capture(holds, now, also, place)
            except (Busy, GitFailed, OSError):
                # What the log has of it stays.
                if capture.newest is None:
                    continue
                record, lags = None, True
            if record is not None:
                self._made[folder] = record
            elif not capture.lags:
                self._same[folder] = glance
            newest = record or capture.newest
            saved += [name, *(f"{name}/{deeper}" for deeper in (newest.inside if newest is not None else ()))]
            lags = lags or capture.lags
        return SavedInside(tuple(saved), lags)

    def _may_save(self, folder: str, path: Path, place: Location, around: Location) -> bool:
        home = self._workspace
        if not path.is_relative_to(home):
            below = len(Path(folder).relative_to(BROUGHT_IN).parts) - 1  # of a linked worktree outside
            home = path.parents[below - 1] if below else path
            if not below and not is_linked(place, around):
                return False
        return is_own(place, home, around)

    def _of(self, folder: str, path: Path) -> WorkspaceCapture | None:
        """None: it is one too many, or has a name that no record can have."""
        if folder in self._inside:
            return self._inside[folder]
        if len(self._inside) >= MAX_INSIDE or not _is_text(folder):
            return None
        capture = WorkspaceCapture(
            self._state_dir,
            path,
            self._env,
            self._put,
            self._private,
            Caps(self._caps.total // SHARE, self._caps.file),
            self._job,
            Nesting(
                lambda *asked: self._save(folder, *asked),
                folder=folder,
                git=self.git,
                restored=self._workspace / folder,
            ),
        )
        capture.go_on_from(self._logged.get(folder))
        if self._small:
            capture.in_small_parts()
        self._inside[folder] = capture
        return capture


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return os.path.normpath(name) == name
