"""What this start does with the working tree: looked up before the plan, done after it, told to all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import Agent
from wal_agent.capture.git import GitFailed, GitMissing
from wal_agent.capture.place import find
from wal_agent.capture.repository import Surroundings
from wal_agent.capture.shadow import Shadow
from wal_agent.config import Settings
from wal_agent.places import state_dir
from wal_agent.records import Host, Pending, Workspace
from wal_agent.recovery.covered import covering
from wal_agent.recovery.report import plain, row
from wal_agent.recovery.target import Keep, PutBack, Target, look, what_to_do
from wal_agent.recovery.tree_words import HOME, Effects, effects, pending_words, told
from wal_agent.recovery.words import clock_time, counted, size
from wal_agent.recovery.workspace import Done, put_back, put_back_note
from wal_agent.supervise.situation import Situation
from wal_agent.supervise.treesaver import never_captured, too_wide
from wal_agent.wal.blobs import Blobs


@dataclass(frozen=True, slots=True)
class WorktreeFacts:
    """What a start would do with the working tree, as plain data. `why`: of a folder that stays. `saved`: seconds since
    1970; `size` in bytes; `holds` and `left_out` as in records.Workspace."""

    action: Literal["keep", "put_back"]
    why: str = ""
    saved: float = 0.0
    commit: str = ""
    files: int = 0
    size: int = 0
    holds: int = 0
    left_out: tuple[str, ...] = ()
    pending: Pending | None = None
    keeps_what_is_here: bool = False
    makes_repository: bool = False

    def rows(self) -> list[str]:
        """For the screen."""
        if self.action == "keep":
            told = {"not_saved": "was not saved yet; it stays as it is", "home": HOME}
            return [row("tree", told[self.why])] if self.why in told else []
        first = "what is here would be kept, and then " if self.keeps_what_is_here else ""
        git = ", with a repository like the lost one" if self.makes_repository else ""
        what = f"{counted(self.files, 'file')} ({size(self.size)}) as of {clock_time(self.saved)}"
        lines = [row("tree", f"{first}the saved one would be put back: {what}{git}")]
        if self.pending is not None:
            lines.append(row("not saved", pending_words(self.pending, plain)))
        return lines


@dataclass(frozen=True, slots=True)
class WorktreePlan:
    """Before anything is done. `captured`: None also where captures are off. `identity`: of the repository here, looked
    up only where a tree would be put back into one. `before`: an earlier start put it back here, and no agent was
    started since. `elsewhere`: the calls of the last run ran on another machine."""

    target: Target
    captured: Workspace | None
    decided: Keep | PutBack
    identity: tuple[str, ...] = ()
    before: bool = False
    elsewhere: bool = False
    empty: bool = False
    epoch: int = 0  # ours

    @property
    def now(self) -> Done:
        """Before anything is done."""
        return Done(Keep("newest") if self.captured else Keep("not_saved"), self.captured)

    @property
    def then(self) -> Done:
        """Afterwards, as far as it can be said without doing it."""
        return Done(self.decided, self.captured)

    @property
    def plan(self) -> WorktreeFacts:
        decided, saved = self.decided, self.captured
        if isinstance(decided, Keep) or saved is None:
            return WorktreeFacts("keep", decided.why if isinstance(decided, Keep) else "")
        return WorktreeFacts(
            "put_back",
            saved=saved.time,
            commit=saved.commit,
            files=saved.files,
            size=saved.size,
            holds=saved.holds,
            left_out=saved.left_out,
            pending=saved.pending,
            keeps_what_is_here=not self.empty,
            makes_repository=decided.make_repository,
        )

    def do(self, blobs: Blobs, now: float) -> Done:
        """Raises Damaged, ConfigError, BucketError."""
        if isinstance(self.decided, Keep) or self.captured is None:
            return self.then
        return put_back(self.target, self.captured, blobs, self.decided, now, str(self.epoch))

    def covers(self, done: Done) -> Callable[[str], bool]:
        """For the evidence: which paths here are what the capture says."""
        if self.captured is None or not (done.put_back or self.before):
            return lambda path: False
        return covering(self.target.shadow(), self.target.folder, self.captured)

    def told(self, done: Done) -> str:
        return told(done, self.before)

    def has(self, call: int) -> bool:
        """Whether the file changes of an earlier run's call will be in this workspace when the agent starts."""
        return not self.effects(self.then).note(call)

    def effects(self, done: Done) -> Effects:
        return effects(done, self.elsewhere, self.before)


def plan_worktree(
    at: Situation, here: Host, workspace: Path, settings: Settings, agent: Agent, env: Mapping[str, str]
) -> WorktreePlan:
    """Changes nothing. ConfigError: there is no git to look with."""
    private = tuple(never_captured(settings, agent, env, workspace))
    target = Target(workspace, state_dir(env), env, private, settings.job)
    captured = at.before.workspace if at.damage is None and settings.workspace != "off" else None
    wide = captured is not None and bool(too_wide(workspace, env))
    captured = None if wide else captured
    local = look(target, captured)
    decided = Keep("home") if wide else what_to_do(captured, local)
    home = at.home
    before = False
    if isinstance(decided, Keep) and captured is not None and home is not None:
        note = put_back_note(target, captured)
        before = note.isdecimal() and int(note) > home.epoch
    seen = WorktreePlan(target, captured, decided, (), before, not at.same_host(here), local.empty, at.opening.epoch)
    if isinstance(decided, PutBack) and local.repository and captured is not None and captured.repository is not None:
        return replace(seen, identity=identity_here(target))
    return seen


def identity_here(target: Target) -> tuple[str, ...]:
    """Of the repository around the folder; empty where it cannot be told. Works in a scratch folder."""
    with tempfile.TemporaryDirectory(prefix="wal-agent-look-") as folder:
        shadow = Shadow(Path(folder) / "shadow", target.shadow().git)
        try:
            place = find(shadow.git, target.folder)
            shadow.ensure(place.object_format)
            around = Surroundings(shadow).look(place)
        except (GitFailed, GitMissing):
            return ()
        return around.repository.identity if around.repository is not None else ()
