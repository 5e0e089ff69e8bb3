"""One git command after a crash: what was there before, what is there now, and what git says when it is asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_agent.capture.git import Git, GitDirs, GitFailed, GitMissing, GitStopped
from wal_agent.evidence.git_argv import GitCommand
from wal_agent.evidence.git_repo import Repo, UnreadableRepo
from wal_agent.evidence.git_state import RepoSnapshot, list_hooks
from wal_agent.evidence.model import Budget
from wal_agent.recovery.evidence.git_logs import LogLine, read_log_since

_MOST = 1 << 20  # bytes of an answer of git's
_UNSAFE_PATH = frozenset("*?[\\:")


@dataclass(frozen=True, slots=True)
class Commit:
    parents: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Comparison:
    command: GitCommand
    repo: Repo
    cwd: Path
    then: RepoSnapshot
    now: RepoSnapshot
    budget: Budget

    def lines(self, ref: str = "HEAD") -> tuple[LogLine, ...] | None:
        """What was added to a reflog; None where that cannot be told."""
        mark = self.then.logs.get(ref)
        try:
            return None if mark is None else read_log_since(self.repo, ref, mark)
        except UnreadableRepo:
            return None

    def one_line(self) -> LogLine | None:
        """The only movement of HEAD since, if it led to where HEAD is now."""
        lines = self.lines()
        return lines[0] if lines is not None and len(lines) == 1 and lines[0].new == self.now.oid else None

    def moved(self, ref: str) -> bool | None:
        """Whether a ref has another value than before; None where that is not known."""
        if ref not in self.then.refs or ref not in self.now.refs:
            return None
        return self.then.refs[ref] != self.now.refs[ref]

    @property
    def new_locks(self) -> tuple[str, ...]:
        return tuple(x for x in self.now.whole.locks if x not in self.then.whole.locks)

    @property
    def new_states(self) -> tuple[str, ...]:
        return tuple(x for x in self.now.whole.states if x not in self.then.whole.states)

    # ---- asking git; None for no answer ----

    def commit(self, oid: str) -> Commit | None:
        data = self._ask("cat-file", "commit", oid)
        if data is None:
            return None
        head, _, message = data.partition(b"\n\n")
        parents = tuple(x[7:].decode("ascii", "replace") for x in head.split(b"\n") if x.startswith(b"parent "))
        return Commit(parents, message.decode("utf-8", "replace"))

    def index_is_head(self, paths: Sequence[str] = ()) -> bool | None:
        """Whether the index has what HEAD has (of those paths)."""
        if any(_UNSAFE_PATH & set(p) for p in paths):
            return None
        ask = (
            "diff-index",
            "--cached",
            "--ignore-submodules=all",
            "--no-ext-diff",
            "--no-textconv",
            "--name-only",
            "-z",
        )
        data = self._ask(*ask, "HEAD", "--", *paths)
        return None if data is None else not data

    def untracked(self, paths: Sequence[str]) -> bool | None:
        """Whether there are files at those paths of the worktree (none: in all of it) that git would add."""
        ask = ("ls-files", "--full-name", "--others", "--exclude-standard", "--directory", "--no-empty-directory", "-z")
        data = self._ask(*ask, "--", *(str(self.repo.tree / p) for p in paths), user_settings=True, top=True)
        return None if data is None else bool(data)

    def settings(self, pattern: str) -> dict[str, list[str]] | None:
        """Settings by lower-case key, the user's own ones included, as git itself would see them."""
        data = self._ask("config", "--null", "--show-origin", "--get-regexp", pattern, ok=(0, 1), user_settings=True)
        if data is None:
            return None
        found: dict[str, list[str]] = {}
        parts = os.fsdecode(data).split("\0")
        for origin, entry in zip(parts[::2], parts[1::2], strict=False):
            key, _, value = entry.partition("\n")
            if origin != "command line:":  # which is ours
                found.setdefault(key, []).append(value)
        return found

    def hooks(self) -> frozenset[str] | None:
        """Names of the hooks (of EARLY_HOOKS) that may run here; None where that is not known."""
        if (settings := self.settings(r"^(core\.hookspath$|hook\.)")) is None:
            return None
        found = {*self.then.hooks, *self.now.hooks}
        if any(key.startswith("hook.") for key in settings):
            return None
        try:
            for folder in settings.get("core.hookspath", []):
                found |= list_hooks(self.repo.tree / Path(folder).expanduser())
        except (UnreadableRepo, RuntimeError, ValueError):
            return None
        return frozenset(found)

    def _ask(
        self, *words: str, ok: tuple[int, ...] = (0,), user_settings: bool = False, top: bool = False
    ) -> bytes | None:
        left = self.budget.until - self.budget.clock.boot()
        if left <= 0:
            return None
        git = Git(env=os.environ, timeout=left)
        at = GitDirs(self.repo.own, work_tree=self.repo.tree, cwd=self.repo.tree if top else self.cwd)
        try:
            return git.run(*words, at=at, ok=ok, most=_MOST, user_settings=user_settings)
        except (GitFailed, GitMissing, GitStopped, OSError):
            return None


def short_id(oid: str) -> str:
    return oid[:8]
