"""Commands that make a repository or a worktree: clone, init, worktree add."""

from __future__ import annotations

from pathlib import Path

from wal_agent.evidence.git_argv import GitCommand
from wal_agent.evidence.git_repo import (
    Repo,
    UnreadableRepo,
    find_repo,
    read_head,
    read_small,
    resolve_ref,
    scan_git_dir,
)
from wal_agent.evidence.model import Budget, Outcome
from wal_agent.recovery.evidence.git_index import index_checksum
from wal_agent.recovery.evidence.git_logs import mark_log
from wal_agent.shell.quote import inline

MAKING_VERBS = ("clone", "init", "worktree")


def made_folder(command: GitCommand) -> str | None:
    """The folder that the command is to make, as named; None where that cannot be said."""
    operands = (*command.operands, *(command.paths or ()))
    if command.verb == "init":
        return (operands or (".",))[0] if len(operands) < 2 else None
    if command.verb == "worktree":
        return operands[1] if operands[:1] == ("add",) and len(operands) in (2, 3) else None
    if len(operands) == 2:
        return operands[1]
    if len(operands) != 1 or ("://" not in operands[0] and ":" in operands[0].partition("/")[0]):
        return None
    name = operands[0].rstrip("/").removesuffix("/.git").rstrip("/").rpartition("/")[2].removesuffix(".git")
    usable = name and name.isprintable() and not any(c in name for c in " :@?#%") and name not in (".", "..")
    return name if usable else None


def made_folder_state(command: GitCommand, path: str) -> str | None:
    """ "absent" where nothing is there, "empty" for an empty folder, for init "none" for a folder without .git; None
    for all else, of which nothing is said."""
    try:
        names = [p.name for p in Path(path).iterdir()]
    except FileNotFoundError:
        return "absent"
    except (OSError, ValueError):
        return None
    if command.verb == "init":
        inside = {"HEAD", "objects", "refs"} <= set(names)  # a bare one
        return None if ".git" in names or inside else "none"
    return "empty" if not names else None


def judge_made_folder(command: GitCommand, path: str, then: str, budget: Budget) -> Outcome:
    now = made_folder_state(command, path)
    if now == then:
        what = {"none": "holds no repository", "absent": "is not there", "empty": "is empty"}[then]
        return Outcome("not_started", f"{inline(path)} {what}, as before the call.")
    unborn = False
    try:
        repo = find_repo(Path(path))
        if repo is None or str(repo.tree) != path:
            raise UnreadableRepo
        made = scan_git_dir(repo, budget)
        if command.verb == "init":
            done = _is_new(repo)
        elif command.verb == "clone":
            unborn = not resolve_ref(repo, read_head(repo))
            done = not unborn and bool(mark_log(repo, "HEAD").size) and _has_index(repo)
        else:
            done = read_small(repo.own, "locked", 4096) is None and _has_index(repo)
        if done and not made.locks and not made.states:
            kind = "worktree" if command.verb == "worktree" else "repository"
            return Outcome("completed", f"{inline(path)} is a whole {kind}, and was none before the call.")
    except (UnreadableRepo, OSError):
        pass
    if unborn:
        return Outcome("unknown", f"{inline(path)} is a repository without a commit: of an empty remote, or cut off.")
    rest = "the same command again makes it whole" if command.verb == "init" else "remove it before you repeat the call"
    return Outcome("partial", f"{inline(path)} was begun and is not whole: {rest}.")


def _has_index(repo: Repo) -> bool:
    """The index is written last, when all files are there."""
    return index_checksum(repo) != "absent"


def _is_new(repo: Repo) -> bool:
    """git makes the object folders last (init_db)."""
    read_head(repo)
    config = read_small(repo.common, "config", 1 << 16) or b""
    folders = all((repo.common / "objects" / name).is_dir() for name in ("info", "pack"))
    return folders and b"repositoryformatversion" in config and b"bare" in config
