"""Evidence for git: what a git command did, by the state of its repository now beside the state before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from wal_agent.evidence import git_commands
from wal_agent.evidence.git_argv import GitCommand, parse_git
from wal_agent.evidence.git_repo import Repo, UnreadableRepo, find_repo, is_ref, read_head
from wal_agent.evidence.git_state import Comparison, read_snapshot, take_snapshot
from wal_agent.evidence.git_state import snapshot_facts as told
from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step, resolve_path
from wal_agent.records import Fact
from wal_agent.shell.quote import inline

_JUDGES: dict[str, Callable[[Comparison], Outcome | None]] = {
    "commit": git_commands.check_commit,
    "merge": git_commands.check_merge,
    "rebase": git_commands.check_rebase,
    "checkout": git_commands.check_checkout,
    "switch": git_commands.check_checkout,
    "reset": git_commands.check_reset,
    "cherry-pick": git_commands.check_pick,
    "revert": git_commands.check_pick,
    "stash": git_commands.check_stash,
    "pull": git_commands.check_pull,
    "tag": git_commands.check_tag,
    "branch": git_commands.check_branch,
    "push": git_commands.check_push,
    "add": git_commands.check_index_command,
    "rm": git_commands.check_index_command,
    "mv": git_commands.check_index_command,
}
# Hooks that may run before the first write; "reference-transaction" has a state before the locks since git 2.54.
_EARLY = {"rebase": {"pre-rebase"}, "pull": {"pre-rebase"}}
_MOVES_REF = ("commit", "tag", "branch")  # all that is left of them is the value of a ref
_STATES = {
    "MERGE_HEAD": "A merge",
    "CHERRY_PICK_HEAD": "A cherry-pick",
    "REVERT_HEAD": "A revert",
    "BISECT_LOG": "A bisection",
    "MERGE_AUTOSTASH": "A merge with its autostash",
    "rebase-merge": "A rebase",
    "rebase-apply": "A rebase or an am",
    "sequencer": "A cherry-pick or revert of several commits",
}


def judge_comparison(case: Comparison, tell: str) -> Outcome:
    """What became of a command here. `tell`: what is known of a push in any case."""
    command = case.command
    if command.verb != "push" and untouched(case):
        return Outcome("not_started", "Nothing in the repository was written since before the call.")
    done = _done(case)
    if case.new_locks or case.new_states:
        return _left(case, done, tell)
    if done is not None:
        return done
    if tell:
        return Outcome("unknown", tell)
    if command.verb in _MOVES_REF and not command.has("force", "move", "M") and _as_before(case):
        return Outcome(
            "not_started", "HEAD and the refs are where they were before the call, and their logs are the same ones."
        )
    begun = git_commands.checkout_begun(case) if command.verb in ("checkout", "switch") else None
    return begun or Outcome("unknown", _compared(case))


def untouched(c: Comparison) -> bool:
    """Nothing was written, and no hook can have run before the first write."""
    if not c.then.whole.still or c.then.whole.still != c.now.whole.still:
        return False
    hooks = c.hooks()
    return hooks is not None and not hooks & {"reference-transaction", *_EARLY.get(c.command.verb, set())}


def _as_before(c: Comparison) -> bool:
    """Something was written and all is as before, as git leaves it when a signal that it can answer to ends it. A hook
    may have done anything by then."""
    then, now = c.then, c.now
    if c.command.verb == "commit":
        same = git_commands.not_committed(c)
    else:
        same = (then.head, then.oid, then.refs, then.logs) == (now.head, now.oid, now.refs, now.logs)
    same = same and then.whole.states == now.whole.states and then.whole.locks == now.whole.locks
    return same and c.hooks() == frozenset()


def _done(c: Comparison) -> Outcome | None:
    judge = _JUDGES.get(c.command.verb)
    return None if judge is None else judge(c)


def _left(c: Comparison, done: Outcome | None, tell: str) -> Outcome:
    """Locks or operations in progress that were not there before."""
    said = [done.why] if done is not None else []
    if c.new_locks:
        names = ", ".join(inline(str(c.repo.own.name + "/" + lock), 80) for lock in c.new_locks[:3])
        said.append(f"Left behind: {names}; remove it once no git runs there, since git stops at it.")
    if c.new_states:
        said.append(f"{_STATES.get(c.new_states[0], 'Something')} is in progress that was not before the call.")
    if tell:
        return Outcome("unknown", " ".join([tell, *said]))
    return Outcome("partial", " ".join(said))


def _compared(c: Comparison) -> str:
    if c.then.oid != c.now.oid or c.then.head != c.now.head:
        return "HEAD is not where it was before the call, but nothing says that this call moved it."
    if c.moved(c.now.head):
        return "A ref has another value than before the call, but nothing says that this call is the reason."
    if c.then.index != c.now.index:
        return "The index was written and HEAD has not moved; whether files were changed is not known."
    return "HEAD is where it was before the call; whether files or the index were changed is not known."


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
            if command.verb in git_commands.MAKING_VERBS:
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
            if command.verb in git_commands.MAKING_VERBS:
                path = _target(command, step, cwd)
                then = None if path is None else git_commands.made_folder_state(command, path)
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
    named = git_commands.made_folder(command)
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
    return git_commands.tracking_refs(command, at, _remotes(repo)) if verb == "push" else ()


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
    if command.verb in git_commands.MAKING_VERBS:
        return Outcome("unknown", why) if why else _judge_place(command, step, cwd, facts, budget)
    repo = find_repo(cwd)
    then = None if repo is None else read_snapshot(repo, facts)
    tell = git_commands.explain_open_push(None, command, then.head if then else "") if push else ""
    if why or repo is None or then is None:
        return Outcome("unknown", tell or why or "Nothing is known of the repository before the call.")
    now = take_snapshot(repo, tuple(then.refs), command.verb in _LISTS, budget)
    if push and not around.alone and not git_commands.sends_the_same(command, then, now):
        return Outcome("unknown", tell)
    return judge_comparison(Comparison(command, repo, cwd, then, now, budget), tell)


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
    found = git_commands.judge_made_folder(command, path, then.pop(), budget)
    if command.verb != "worktree" or found.finding != "not_started":
        return found
    repo = find_repo(cwd)
    seen = None if repo is None else read_snapshot(repo, facts)
    if repo is not None and seen is not None:
        case = Comparison(command, repo, cwd, seen, take_snapshot(repo, tuple(seen.refs), False, budget), budget)
        if untouched(case):
            return found
    return Outcome("unknown", f"{found.why} Whether a branch was made for it is not known.")


GIT = GitKind()
