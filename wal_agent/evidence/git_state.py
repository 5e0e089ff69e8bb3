"""What is looked at around a git command, as facts before it and as things now. Facts of all steps of a call in one
repository are the same ones, so that they are told once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_agent.evidence.git_repo import GitDirState, Repo, UnreadableRepo, is_ref, read_head, resolve_ref, scan_git_dir
from wal_agent.evidence.model import Budget
from wal_agent.records import Fact
from wal_agent.recovery.evidence import git_index
from wal_agent.recovery.evidence.git_logs import LogMark, mark_log

ABSENT = "absent"
_MOST_REFS = 10
EARLY_HOOKS = frozenset(
    [
        "pre-commit",
        "prepare-commit-msg",
        "commit-msg",
        "pre-merge-commit",
        "pre-rebase",
        "post-index-change",
        "reference-transaction",
    ]
)


@dataclass(frozen=True, slots=True)
class RepoSnapshot:
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
    """Unreadable where anything of it cannot be read. `refs` that are no names of refs are left out."""
    now = read_head(repo)
    wanted = [r for r in dict.fromkeys((*((now,) if now.startswith("refs/") else ()), *refs)) if is_ref(r)]
    if len(wanted) > _MOST_REFS or budget.over:
        raise UnreadableRepo
    values = {ref: resolve_ref(repo, ref) for ref in wanted}
    return RepoSnapshot(
        head=now,
        oid=values.get(now, now) if now.startswith("refs/") else now,
        refs=values,
        logs={name: mark_log(repo, name) for name in ("HEAD", *wanted)},
        index=git_index.index_checksum(repo),
        listed=git_index.hash_index(repo, budget) if index else "",
        whole=scan_git_dir(repo, budget),
        hooks=_hooks(repo),
    )


def _hooks(repo: Repo) -> tuple[str, ...]:
    return tuple(sorted(list_hooks(repo.common / "hooks")))


def list_hooks(folder: Path) -> frozenset[str]:
    """The hooks in a folder that may run before a command has done what it is for."""
    try:
        with os.scandir(folder) as found:
            return frozenset(e.name for e in found if e.name in EARLY_HOOKS)
    except (FileNotFoundError, NotADirectoryError):  # /dev/null
        return frozenset()
    except OSError:
        raise UnreadableRepo from None


# ---- as facts ------------------------------------------------------------------------------------------------------


def snapshot_facts(repo: Repo, seen: RepoSnapshot) -> tuple[Fact, ...]:
    own = str(repo.own)
    state = [*seen.whole.states, *(f"+{lock}" for lock in seen.whole.locks), *(f"*{hook}" for hook in seen.hooks)]
    told = [
        ("git.head", own, f"{seen.head} {seen.oid}"),
        ("git.index", own, seen.index),
        ("git.state", own, "\n".join(state)),
    ]
    if seen.whole.settled:
        told.append(("git.still", own, seen.whole.still))
    if seen.listed:
        told.append(("git.listed", own, seen.listed))
    for name, value in seen.refs.items():
        if name != seen.head:
            told.append(("git.ref", f"{repo.at(name)}/{name}", value or ABSENT))
    for name, log in seen.logs.items():
        value = f"{log.size} {log.end} {log.last} {log.front}" if log.size else ABSENT
        told.append(("git.log", f"{repo.at(name)}/logs/{name}", value))
    return tuple(Fact(what=what, where=where, value=value) for what, where, value in told)


def read_snapshot(repo: Repo, facts: Sequence[Fact]) -> RepoSnapshot | None:
    """What the facts say of this repository; None where they say too little, or two things."""
    told: dict[tuple[str, str], str] = {}
    for fact in facts:
        if told.setdefault((fact.what, fact.where), fact.value) != fact.value:
            return None
    own = str(repo.own)
    try:
        now, value = told["git.head", own].split(" ")
        state = told["git.state", own].split("\n")
        index = told["git.index", own]
        logs = {name: _mark(value) for name, value in _below(repo, told, "git.log", "logs/")}
    except (KeyError, ValueError):
        return None
    refs = {name: "" if value == ABSENT else value for name, value in _below(repo, told, "git.ref", "")}
    if now.startswith("refs/"):
        refs[now] = value
    return RepoSnapshot(
        head=now,
        oid=value,
        refs=refs,
        logs=logs,
        index=index,
        listed=told.get(("git.listed", own), ""),
        whole=GitDirState(
            states=tuple(s for s in state if s and s[0] not in "+*"),
            locks=tuple(s[1:] for s in state if s.startswith("+")),
            still=told.get(("git.still", own), ""),
            settled=True,
        ),
        hooks=tuple(s[1:] for s in state if s.startswith("*")),
    )


def _below(repo: Repo, told: Mapping[tuple[str, str], str], what: str, inside: str) -> list[tuple[str, str]]:
    """By ref name, what is told of the files that are in the git dirs."""
    found = []
    for (kind, where), value in told.items():
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
