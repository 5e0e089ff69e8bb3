"""Evidence for git: what a git command did, by the state of its repository now beside the state before it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from wal_agent.calls.argv import GitCommand, parse_git
from wal_agent.calls.quote import inline
from wal_agent.evidence import git_commands
from wal_agent.evidence.git_repo import Repo, UnreadableRepo, find_repo, is_ref, read_head
from wal_agent.evidence.git_state import Comparison, read_snapshot, snapshot_facts, take_snapshot
from wal_agent.evidence.model import Budget, Context, Kind, Outcome, Reach, Step, resolve_path
from wal_agent.records import Fact
from wal_agent.wording import findings

_CHECKS: dict[str, Callable[[Comparison], Outcome | None]] = {
    "commit": git_commands.check_commit,
    "merge": git_commands.check_merge,
    "rebase": git_commands.check_rebase,
    "reset": git_commands.check_reset,
    "stash": git_commands.check_stash,
    "pull": git_commands.check_pull,
    "tag": git_commands.check_tag,
    "branch": git_commands.check_branch,
    "push": git_commands.check_push,
    **dict.fromkeys(("checkout", "switch"), git_commands.check_checkout),
    **dict.fromkeys(("cherry-pick", "revert"), git_commands.check_pick),
    **dict.fromkeys(("add", "rm", "mv"), git_commands.check_index_command),
}
# Hooks that may run before the first write; "reference-transaction" has a state before the locks since git 2.54.
_EARLY = {"rebase": {"pre-rebase"}, "pull": {"pre-rebase"}}
_MOVES_REF = ("commit", "tag", "branch")  # all that is left of them is the value of a ref
_LISTS = ("add", "rm", "mv")  # what they do shows in what the index lists
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ELSEWHERE = (  # in the environment: git then works elsewhere, or says other things in its logs
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE"),
    *("GIT_REFLOG_ACTION", "GIT_CEILING_DIRECTORIES", "GIT_CONFIG", "GIT_CONFIG_COUNT", "GIT_CONFIG_PARAMETERS"),
)


def _assess_comparison(c: Comparison, open_push: str) -> Outcome:
    """What became of a command here. `open_push`: what is known of a push in any case."""
    command = c.command
    if command.verb != "push" and _is_untouched(c):
        return Outcome("not_started", findings.REPO_UNTOUCHED)
    check = _CHECKS.get(command.verb)
    done = None if check is None else check(c)
    if c.new_locks or c.new_states:
        return _assess_left_over(c, done, open_push)
    if done is not None:
        return done
    if open_push:
        return Outcome("unknown", open_push)
    if command.verb in _MOVES_REF and not command.has("force", "move", "M") and _is_as_before(c):
        return Outcome("not_started", findings.REFS_AS_BEFORE)
    begun = git_commands.checkout_begun(c) if command.verb in ("checkout", "switch") else None
    return begun or Outcome("unknown", _explain_difference(c))


def _is_untouched(c: Comparison) -> bool:
    """Nothing was written, and no hook can have run before the first write."""
    if not c.then.whole.still or c.then.whole.still != c.now.whole.still:
        return False
    hooks = c.hooks()
    return hooks is not None and not hooks & {"reference-transaction", *_EARLY.get(c.command.verb, set())}


def _is_as_before(c: Comparison) -> bool:
    """Something was written and all is as before, as git leaves it when a signal that it can answer to ends it. A hook
    may have done anything by then."""
    then, now = c.then, c.now
    if c.command.verb == "commit":
        same = git_commands.not_committed(c)
    else:
        same = (then.head, then.oid, then.refs, then.logs) == (now.head, now.oid, now.refs, now.logs)
    same = same and then.whole.states == now.whole.states and then.whole.locks == now.whole.locks
    return same and c.hooks() == frozenset()


def _assess_left_over(c: Comparison, done: Outcome | None, open_push: str) -> Outcome:
    """Locks or operations in progress that were not there before."""
    whys = [open_push] if open_push else []
    if done is not None:
        whys.append(done.why)
    if c.new_locks:
        names = ", ".join(inline(f"{c.repo.own.name}/{lock}", 80) for lock in c.new_locks[:3])
        whys.append(findings.LOCKS_LEFT.format(names))
    if c.new_states:
        state = findings.GIT_STATES.get(c.new_states[0], "Something")
        whys.append(findings.IN_PROGRESS.format(state))
    return Outcome("unknown" if open_push else "partial", " ".join(whys))


def _explain_difference(c: Comparison) -> str:
    if c.then.oid != c.now.oid or c.then.head != c.now.head:
        return findings.HEAD_MOVED
    if c.moved(c.now.head):
        return findings.REF_MOVED
    return findings.INDEX_WRITTEN if c.then.index != c.now.index else findings.HEAD_UNMOVED


class _Located(msgspec.Struct, frozen=True):
    """A git command, and the folder that it works in. `target`: the folder that it is to make."""

    command: GitCommand
    cwd: Path
    target: str | None

    @property
    def makes(self) -> bool:
        return self.command.verb in git_commands.MAKING_VERBS


class GitKind(Kind[_Located]):
    def parse(self, step: Step) -> _Located | None:
        command = parse_git(step.words)
        if command is None or any(name in os.environ for name in _ELSEWHERE):
            return None
        for folder in command.folders:
            if (named := resolve_path(step, folder)) is None:
                return None
            step = replace(step, cwd=Path(named))
        named = git_commands.made_folder(command) if command.verb in git_commands.MAKING_VERBS else None
        return _Located(command, step.cwd, None if named is None else resolve_path(step, named))

    def reach(self, step: Step, how: _Located) -> Reach | None:
        try:
            repo = find_repo(how.cwd) if not how.makes or how.command.verb == "worktree" else None
            if how.target is not None and how.command.verb != "worktree":
                return Reach((how.target,))
            if repo is None or (how.makes and how.target is None):
                return None
            if how.target is not None:
                return Reach((how.target, str(repo.common / "worktrees"), str(repo.common / "refs/heads")))
            return Reach(_changed_paths(how.command, repo))
        except (UnreadableRepo, OSError, ValueError):
            return None

    def facts_before(self, step: Step, how: _Located, budget: Budget) -> tuple[Fact, ...]:
        command = how.command
        try:
            repo = find_repo(how.cwd) if not how.makes or command.verb == "worktree" else None
            if not how.makes:
                return () if repo is None else self._repo_facts(command, repo, budget)
            then = None if how.target is None else git_commands.made_folder_state(command, how.target)
            if how.target is None or then is None:
                return ()
            place = Fact(what="git.place", where=how.target, value=then)
            return (place, *(() if repo is None else snapshot_facts(repo, take_snapshot(repo, (), False, budget))))
        except (UnreadableRepo, OSError, ValueError):
            return ()

    @staticmethod
    def _repo_facts(command: GitCommand, repo: Repo, budget: Budget) -> tuple[Fact, ...]:
        refs = _compared_refs(command, repo, read_head(repo))
        return snapshot_facts(repo, take_snapshot(repo, refs, command.verb in _LISTS, budget))

    def assess_step(self, step: Step, how: _Located, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        try:
            return (_assess_making if how.makes else _assess_command)(how, facts, around, budget)
        except (UnreadableRepo, OSError, ValueError):
            return Outcome("unknown", findings.REPO_UNREADABLE)


def sent_by_push(how: object, facts: Sequence[Fact]) -> str:
    """The line of `git ls-remote` for what a push sends; "" for any other command, and where the facts do not say."""
    heads = [f.value.split(" ") for f in facts if f.what == "git.head"]
    if not isinstance(how, _Located) or how.command.verb != "push" or len(heads) != 1 or len(heads[0]) != 2:
        return ""
    head, at = heads[0]
    if (spec := git_commands.push_refspec(how.command, head)) is None:
        return ""
    local, there = spec
    named = {f.value for f in facts if f.what == "git.ref" and f.where.endswith(f"/{local}")}
    sent = {at} if local == head else named
    (commit,) = sent if len(sent) == 1 else ("",)
    return f"{commit} refs/heads/{there}" if _COMMIT.fullmatch(commit) else ""


def _changed_paths(command: GitCommand, repo: Repo) -> tuple[str, ...]:
    """What the evidence of a command rests on. Where that is a line that only such a command leaves, it is a file that
    only such a command writes, so that a commit after an add, or a push after a commit, can be distinguished."""
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


def _compared_refs(command: GitCommand, repo: Repo, at: str) -> tuple[str, ...]:
    """The refs that show what became of the command, besides HEAD's."""
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


def _assess_command(how: _Located, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
    command, push = how.command, how.command.verb == "push"
    repo = find_repo(how.cwd)
    then = None if repo is None else read_snapshot(repo, facts)
    open_push = git_commands.explain_open_push(command, then.head if then else "") if push else ""
    why = _explain_doubt(around, alone=around.alone or (push and not around.contested))
    if why or repo is None or then is None:
        return Outcome("unknown", open_push or why or findings.REPO_NOT_KNOWN)
    now = take_snapshot(repo, tuple(then.refs), command.verb in _LISTS, budget)
    if push and not around.alone and not git_commands.sends_the_same(command, then, now):
        return Outcome("unknown", open_push)
    return _assess_comparison(Comparison(command, repo, how.cwd, then, now, budget), open_push)


def _explain_doubt(around: Context, alone: bool) -> str:
    if around.restored or not around.same_place:
        return findings.REPO_OTHER_PLACE
    if not around.gone:
        return findings.REPO_NOT_GONE
    return "" if alone else findings.REPO_NOT_ALONE


def _assess_making(how: _Located, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
    if why := _explain_doubt(around, around.alone):
        return Outcome("unknown", why)
    then = {f.value for f in facts if (f.what, f.where) == ("git.place", how.target)}
    if how.target is None or len(then) != 1:
        return Outcome("unknown", findings.FOLDER_NOT_KNOWN)
    found = git_commands.assess_made_folder(how.command, how.target, then.pop(), budget)
    if how.command.verb != "worktree" or found.finding != "not_started":
        return found
    repo = find_repo(how.cwd)
    seen = None if repo is None else read_snapshot(repo, facts)
    if repo is not None and seen is not None:
        now = take_snapshot(repo, tuple(seen.refs), False, budget)
        if _is_untouched(Comparison(how.command, repo, how.cwd, seen, now, budget)):
            return found
    return Outcome("unknown", findings.WORKTREE_BRANCH_NOT_KNOWN.format(found.why))
