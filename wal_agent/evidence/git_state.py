"""Record a repository's state around a git command: as facts before it, as it is now, and what git reports of commits.

Facts of all steps of a call in one repository are the same facts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from wal_agent.calls.argv import GitCommand
from wal_agent.capture.git import Git, GitBounds, GitDirs, GitFailed, GitMissing, GitStopped
from wal_agent.evidence import git_repo
from wal_agent.evidence.git_repo import GitDirState, LogLine, LogMark, Repo, UnreadableRepo
from wal_agent.evidence.model import Budget
from wal_agent.records import Fact

ABSENT = "absent"
_MAX_REFS = 10
EARLY_HOOKS = frozenset(
    {"pre-commit", "prepare-commit-msg", "commit-msg", "pre-merge-commit", "pre-rebase"}
    | {"post-index-change", "reference-transaction"}
)
_MOST = 1 << 20  # bytes of an answer of git's

_UNSAFE_PATH = frozenset("*?[\\:")


class RepoSnapshot(msgspec.Struct, frozen=True):
    """`head`: the ref that HEAD names, or an object. `oid`: the object that it is, "" if unborn. `refs`, `logs`: by
    full name (and "HEAD"). `listed`: what the index lists; `whole.still`; both "" where not known.
    `hooks`: of EARLY_HOOKS."""

    head: str
    oid: str
    refs: Mapping[str, str]
    logs: Mapping[str, LogMark]
    index: str
    listed: str
    whole: GitDirState
    hooks: tuple[str, ...]


def take_snapshot(repo: Repo, refs: Sequence[str], index: bool, budget: Budget) -> RepoSnapshot:
    """Raises UnreadableRepo where anything of it cannot be read. `refs` that are no names of refs are left out."""
    now = git_repo.read_head(repo)
    wanted = [r for r in dict.fromkeys((*((now,) if now.startswith("refs/") else ()), *refs)) if git_repo.is_ref(r)]
    if len(wanted) > _MAX_REFS or budget.over:
        raise UnreadableRepo
    values = {ref: git_repo.resolve_ref(repo, ref) for ref in wanted}
    return RepoSnapshot(
        head=now,
        oid=values.get(now, now) if now.startswith("refs/") else now,
        refs=values,
        logs={name: git_repo.mark_log(repo, name) for name in ("HEAD", *wanted)},
        index=git_repo.index_checksum(repo),
        listed=git_repo.hash_index(repo, budget) if index else "",
        whole=git_repo.scan_git_dir(repo, budget),
        hooks=tuple(sorted(list_hooks(repo.common / "hooks"))),
    )


def list_hooks(folder: Path) -> frozenset[str]:
    """The hooks in a folder that may run before a command has done what it is for."""
    try:
        with os.scandir(folder) as found:
            return frozenset(e.name for e in found if e.name in EARLY_HOOKS)
    except (FileNotFoundError, NotADirectoryError):  # /dev/null
        return frozenset()
    except OSError:
        raise UnreadableRepo from None


def snapshot_facts(repo: Repo, seen: RepoSnapshot) -> tuple[Fact, ...]:
    own = str(repo.own)
    state = [*seen.whole.states, *(f"+{lock}" for lock in seen.whole.locks), *(f"*{hook}" for hook in seen.hooks)]
    found = [
        ("git.head", own, f"{seen.head} {seen.oid}"),
        ("git.index", own, seen.index),
        ("git.state", own, "\n".join(state)),
    ]
    if seen.whole.settled:
        found.append(("git.still", own, seen.whole.still))
    if seen.listed:
        found.append(("git.listed", own, seen.listed))
    for name, value in seen.refs.items():
        if name != seen.head:
            found.append(("git.ref", f"{repo.at(name)}/{name}", value or ABSENT))
    for name, log in seen.logs.items():
        value = f"{log.size} {log.end} {log.last} {log.front}" if log.size else ABSENT
        found.append(("git.log", f"{repo.at(name)}/logs/{name}", value))
    return tuple(Fact(what=what, where=where, value=value) for what, where, value in found)


def read_snapshot(repo: Repo, facts: Sequence[Fact]) -> RepoSnapshot | None:
    """What the facts say of this repository; None where they say too little, or two things."""
    known: dict[tuple[str, str], str] = {}
    for fact in facts:
        if known.setdefault((fact.what, fact.where), fact.value) != fact.value:
            return None
    own = str(repo.own)
    try:
        now, value = known["git.head", own].split(" ")
        state = known["git.state", own].split("\n")
        index = known["git.index", own]
        logs = {name: _mark(value) for name, value in _below(repo, known, "git.log", "logs/")}
    except (KeyError, ValueError):
        return None
    refs = {name: "" if value == ABSENT else value for name, value in _below(repo, known, "git.ref", "")}
    if now.startswith("refs/"):
        refs[now] = value
    return RepoSnapshot(
        head=now,
        oid=value,
        refs=refs,
        logs=logs,
        index=index,
        listed=known.get(("git.listed", own), ""),
        whole=GitDirState(
            states=tuple(s for s in state if s and s[0] not in "+*"),
            locks=tuple(s[1:] for s in state if s.startswith("+")),
            still=known.get(("git.still", own), ""),
            settled=True,
        ),
        hooks=tuple(s[1:] for s in state if s.startswith("*")),
    )


def _below(repo: Repo, known: Mapping[tuple[str, str], str], what: str, inside: str) -> list[tuple[str, str]]:
    """By ref name, the facts about files in the git dirs."""
    found = []
    for (kind, where), value in known.items():
        for root in dict.fromkeys((repo.own, repo.common)):
            name = where.removeprefix(f"{root}/{inside}")
            if kind == what and name != where and repo.at(name) == root:
                found.append((name, value))
    return found


def _mark(value: str) -> LogMark:
    if value == ABSENT:
        return LogMark(0, "", 0, "")
    size, end, last, front = value.split(" ")
    return LogMark(int(size), end, int(last), front)


class Commit(msgspec.Struct, frozen=True):
    parents: tuple[str, ...]
    message: str


class Comparison(msgspec.Struct, frozen=True):
    command: GitCommand
    repo: Repo
    cwd: Path
    then: RepoSnapshot
    now: RepoSnapshot
    budget: Budget

    def lines(self, ref: str = "HEAD") -> tuple[LogLine, ...] | None:
        """What was added to a reflog; None where that is not known."""
        mark = self.then.logs.get(ref)
        try:
            return None if mark is None else git_repo.read_log_since(self.repo, ref, mark)
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
        ask = ("diff-index", "--cached", "--ignore-submodules=all", "--no-ext-diff", "--no-textconv", "--name-only")
        data = self._ask(*ask, "-z", "HEAD", "--", *paths)
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
            return git.run(*words, at=at, ok=ok, within=GitBounds(_MOST), user_settings=user_settings)
        except (GitFailed, GitMissing, GitStopped, OSError):
            return None


def short_id(oid: str) -> str:
    return oid[:8]
