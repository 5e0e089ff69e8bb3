"""Evidence for git: what a git command did, by what it leaves in its repository.

Before the command everything is read by hand, no process is started. At a recovery git itself is asked for objects and
settings, in a way that runs nothing of the project's (capture/git.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wal_agent.evidence.git_argv import GitCommand, parse_git
from wal_agent.evidence.git_repo import Repo, UnreadableRepo, find_repo, is_ref, read_head
from wal_agent.evidence.git_state import read_snapshot, take_snapshot
from wal_agent.evidence.git_state import snapshot_facts as told
from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step
from wal_agent.records import Fact
from wal_agent.recovery.evidence import git_places, git_refs, git_verdict
from wal_agent.recovery.evidence.git_case import Comparison
from wal_agent.recovery.evidence.paths import resolve_path

_LISTS = ("add", "rm", "mv")  # what they do shows in what the index lists
_ELSEWHERE = (  # in the environment: git then works elsewhere, or says other things in its logs
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE"),
    *("GIT_REFLOG_ACTION", "GIT_CEILING_DIRECTORIES", "GIT_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"),
)


class GitKind:
    def reach(self, step: Step) -> Reach | None:
        try:
            command, cwd = _command(step)
            if command is None:
                return None
            if command.verb in git_places.MAKING_VERBS:
                path = _target(command, step, cwd)
                return None if path is None else Reach((path, *_home_of_worktree(command, cwd)))
            repo = find_repo(cwd)
            return None if repo is None else Reach(_changes(command, repo))
        except (UnreadableRepo, OSError, ValueError):
            return None

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        try:
            command, cwd = _command(step)
            if command is None:
                return None
            if command.verb in git_places.MAKING_VERBS:
                path = _target(command, step, cwd)
                then = None if path is None else git_places.made_folder_state(command, path)
                if path is None or then is None:
                    return ()
                return (Fact(what="git.place", where=path, value=then), *_worktrees(command, cwd, budget))
            repo = find_repo(cwd)
            if repo is None:
                return ()
            return told(
                repo, take_snapshot(repo, _refs(command, repo, read_head(repo)), command.verb in _LISTS, budget)
            )
        except (UnreadableRepo, OSError, ValueError):
            return ()

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        try:
            command, cwd = _command(step)
            if command is None:
                return None
            found = _judge(command, step, cwd, facts, around, budget)
        except (UnreadableRepo, OSError, ValueError):
            return Outcome("unknown", "The repository could not be read.")
        return found


def _command(step: Step) -> tuple[GitCommand | None, Path]:
    command = parse_git(step.words)
    if command is None or any(name in os.environ for name in _ELSEWHERE):
        return None, step.cwd
    at = step.cwd
    for folder in command.folders:
        named = resolve_path(Step(step.tool, (), (), at, step.moved), folder)
        if named is None:
            return None, at
        at = Path(named)
    return command, at


def _target(command: GitCommand, step: Step, cwd: Path) -> str | None:
    named = git_places.made_folder(command)
    return None if named is None else resolve_path(Step(step.tool, (), (), cwd, step.moved), named)


def _worktrees(command: GitCommand, cwd: Path, budget: Budget) -> tuple[Fact, ...]:
    """Of the repository that gets a worktree, and maybe a branch."""
    repo = find_repo(cwd) if command.verb == "worktree" else None
    return () if repo is None else told(repo, take_snapshot(repo, (), False, budget))


def _home_of_worktree(command: GitCommand, cwd: Path) -> tuple[str, ...]:
    if command.verb != "worktree":
        return ()
    repo = find_repo(cwd)
    if repo is None:
        raise UnreadableRepo
    return (str(repo.common / "worktrees"), str(repo.common / "refs/heads"))


def _changes(command: GitCommand, repo: Repo) -> tuple[str, ...]:
    """What the evidence of a command rests on. Where that is a line that only such a command leaves, it is a file that
    only such a command writes, so that a commit after an add, or a push after a commit, can be told apart."""
    own, common, verb = repo.own, repo.common, command.verb
    paths = [own / "index"] if verb == "add" or (verb == "rm" and command.has("cached")) else None
    if verb == "commit":
        paths = [own / "COMMIT_EDITMSG"]
        if command.has("all", "only") or command.operands or command.paths:
            paths.append(own / "index")
    elif verb == "tag":
        paths = [common / "refs/tags"]
    elif verb == "branch":
        paths = [common / "refs/heads", *([own / "HEAD"] if command.has("move", "M") else [])]
    elif verb == "push":
        paths = [common / "refs/remotes"]
    elif verb == "fetch":
        paths = [own / "FETCH_HEAD", common / "refs/remotes", common / "refs/tags"]
    elif verb in ("checkout", "switch") and command.has("b") and not command.operands and command.paths is None:
        paths = [common / "refs/heads", own / "HEAD"]
    return tuple(map(str, paths if paths is not None else dict.fromkeys((repo.tree, own, common))))


def _refs(command: GitCommand, repo: Repo, at: str) -> tuple[str, ...]:
    """The refs that tell what became of the command, besides HEAD's."""
    verb, names = command.verb, command.operands
    if verb == "tag":
        return tuple(f"refs/tags/{n}" for n in names[:1])
    if verb == "branch":
        return tuple(f"refs/heads/{n}" for n in names[:2])
    if verb in ("checkout", "switch"):
        return tuple(f"refs/heads/{n}" for n in (*names[:1], *command.every("b"), *command.every("B")))
    if verb == "stash":
        return ("refs/stash",)
    return git_refs.tracking_refs(command, at, _remotes(repo)) if verb == "push" else ()


def _remotes(repo: Repo) -> tuple[str, ...]:
    try:
        with os.scandir(repo.common / "refs/remotes") as found:
            names = {e.name for e in found if is_ref(f"refs/remotes/{e.name}")}
    except FileNotFoundError:
        names = set()
    return ("origin", *sorted(names - {"origin"})[:3])


# ---- after a crash -------------------------------------------------------------------------------------------------


def _judge(
    command: GitCommand, step: Step, cwd: Path, facts: Sequence[Fact], around: Context, budget: Budget
) -> Outcome:
    push = command.verb == "push"
    why = _not_here(around, alone=around.alone or (push and not around.contested))
    if command.verb in git_places.MAKING_VERBS:
        return Outcome("unknown", why) if why else _judge_place(command, step, cwd, facts, budget)
    repo = find_repo(cwd)
    then = None if repo is None else read_snapshot(repo, facts)
    tell = git_refs.explain_open_push(None, command, then.head if then else "") if push else ""
    if why or repo is None or then is None:
        return Outcome("unknown", tell or why or "Nothing is known of the repository before the call.")
    now = take_snapshot(repo, tuple(then.refs), command.verb in _LISTS, budget)
    if push and not around.alone and not git_refs.sends_the_same(command, then, now):
        return Outcome("unknown", tell)
    return git_verdict.judge_comparison(Comparison(command, repo, cwd, then, now, budget), tell)


def _not_here(around: Context, alone: bool) -> str:
    if around.restored or not around.same_place:
        return "This is not the machine or folder that the call worked on."
    if not around.gone:
        return "The process that ran the call may still be there."
    return "" if alone else "Other calls may have changed the repository since."


def _judge_place(command: GitCommand, step: Step, cwd: Path, facts: Sequence[Fact], budget: Budget) -> Outcome:
    path = _target(command, step, cwd)
    then = {f.value for f in facts if (f.what, f.where) == ("git.place", path)}
    if path is None or len(then) != 1:
        return Outcome("unknown", "Nothing is known of the folder before the call.")
    found = git_places.judge_made_folder(command, path, then.pop(), budget)
    if command.verb != "worktree" or found.finding != "not_started":
        return found
    repo = find_repo(cwd)
    seen = None if repo is None else read_snapshot(repo, facts)
    if repo is not None and seen is not None:
        case = Comparison(command, repo, cwd, seen, take_snapshot(repo, tuple(seen.refs), False, budget), budget)
        if git_verdict.untouched(case):
            return found
    return Outcome("unknown", f"{found.why} Whether a branch was made for it is not known.")


GIT = GitKind()
