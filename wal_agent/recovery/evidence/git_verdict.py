"""What became of a git command, by how its repository stands now beside how it stood before.

Not begun: nothing in the git dir was written at all (times, sizes and inodes of all in it). Every command here takes a
lock in there, or writes there, before it does anything else, hooks and filters included (cmd_commit, cmd_checkout, ...
of git's sources), so this is proof of the whole command; the exceptions are named in `_EARLY`.
"""

from __future__ import annotations

from collections.abc import Callable

from wal_agent.evidence import git_commands
from wal_agent.evidence.model import Outcome
from wal_agent.recovery.evidence import git_refs, git_tree
from wal_agent.recovery.evidence.git_case import Comparison
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
    "tag": git_refs.check_tag,
    "branch": git_refs.check_branch,
    "push": git_refs.check_push,
    "add": git_tree.check_index_command,
    "rm": git_tree.check_index_command,
    "mv": git_tree.check_index_command,
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
