"""Commands that move HEAD: what proves that they were done. Each judge gives None where nothing is proven.

git writes the tree, then the index, then the reflog, then the ref, and then removes its locks (refs/files-backend.c,
files_transaction_finish). So a movement of HEAD that its reflog tells in the command's own words, with no lock and no
operation in progress left, is proof of all of it.
"""

from __future__ import annotations

import re
from itertools import pairwise

from wal_agent.evidence.git_repo import UnreadableRepo
from wal_agent.evidence.model import Outcome
from wal_agent.recovery.evidence.git_case import Comparison, short_id
from wal_agent.recovery.evidence.git_logs import LogLine, lost_last_line
from wal_agent.shell.quote import inline

_COMMIT = re.compile(r"commit(?: \(([a-z-]+)\))?: .*|commit(?: \(([a-z-]+)\))?:?")
_CHECKOUT = re.compile(r"checkout: moving from (\S+) to (\S+)")
_MERGED = r"(?:Fast-forward|Merge made by .*|In-index merge)"
_AFTER = "What git runs after it (hooks, gc) may have been cut off."
_IN_COMMIT = {"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"}


def check_commit(c: Comparison) -> Outcome | None:
    lines = c.lines()
    mine = [x for x in lines or () if _COMMIT.fullmatch(x.message)]
    if not lines or len(mine) != 1 or lines[-1] != mine[0] or not _led_here(c, lines[:-1]):
        return None
    if mine[0].new != c.now.oid or c.now.oid == c.then.oid or _IN_COMMIT & set(c.now.whole.states):
        return None
    kind = _COMMIT.fullmatch(mine[0].message)
    made = c.commit(c.now.oid)
    if kind is None or made is None or (kind[1] or kind[2] or "") != _kind(c) or not _parents_fit(c, made.parents):
        return None
    if not _message_fits(c, made.message):
        return None
    done = (
        f"{_place(c)} moved from {short_id(c.then.oid) or 'nothing'} to {short_id(c.now.oid)}, the commit of this call"
    )
    if c.command.has("all", "only") or c.command.operands or c.command.paths:
        # Here the index is written after the ref has moved.
        same = c.index_is_head((*c.command.operands, *(c.command.paths or ())))
        if same is None:
            return None
        if not same:
            return Outcome("partial", f"{done}; but the index was not written: it differs from the commit.")
    return Outcome("completed", f"{done}. {_AFTER}")


def not_committed(c: Comparison) -> bool:
    """Whether HEAD is at the commit where it was, and got there without another one being made."""
    lines = c.lines()
    return lines is not None and c.now.oid == c.then.oid and _led_here(c, lines)


def _led_here(c: Comparison, before: tuple[LogLine, ...]) -> bool:
    """Whether HEAD got to where the commit was made without a commit being changed: not at all, or by new branches."""
    at = c.then.head
    for line in before:
        match = _CHECKOUT.fullmatch(line.message)
        if match is None or line.new != c.then.oid:
            return False
        at = f"refs/heads/{match[2]}"
    return at == c.now.head or (not at.startswith("refs/") and not c.now.head.startswith("refs/"))


def _kind(c: Comparison) -> str:
    states = c.then.whole.states
    if c.command.has("amend"):
        return "amend"
    if not c.then.oid:
        return "initial"
    return "merge" if "MERGE_HEAD" in states else "cherry-pick" if "CHERRY_PICK_HEAD" in states else ""


def _parents_fit(c: Comparison, parents: tuple[str, ...]) -> bool:
    if c.command.has("amend"):
        old = c.commit(c.then.oid)
        return old is not None and old.parents == parents
    if not c.then.oid:
        return parents == ()
    return parents[:1] == (c.then.oid,) and (len(parents) == 1 or "MERGE_HEAD" in c.then.whole.states)


def _message_fits(c: Comparison, message: str) -> bool:
    if c.command.has("file", "reuse-message") or not (given := c.command.every("message")):
        return True
    wanted, found = _clean("\n\n".join(given)), _clean(message)
    return wanted == found or found.startswith(f"{wanted}\n")  # a trailer, of -s or a hook


def _clean(text: str) -> str:
    """As git cleans a message of white space."""
    lines = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n")


def check_merge(c: Comparison) -> Outcome | None:
    line = c.one_line()
    if line is None or c.now.head != c.then.head or c.now.oid == c.then.oid or c.command.has("no-commit", "squash"):
        return None
    named = r" ".join(map(re.escape, c.command.operands))
    if not re.fullmatch(rf"merge {named}: {_MERGED}", line.message):
        return None
    if "Fast-forward" not in line.message:
        made = c.commit(c.now.oid)
        if made is None or made.parents[:1] != (c.then.oid,) or len(made.parents) < 2:
            return None
    return Outcome("completed", f"{_place(c)} moved to {short_id(c.now.oid)} by this merge. {_AFTER}")


def check_pull(c: Comparison) -> Outcome | None:
    line = c.one_line()
    if line is not None and re.fullmatch(rf"pull\b[^:]*: {_MERGED}", line.message):
        fits = c.now.head == c.then.head and c.now.oid != c.then.oid
        return (
            Outcome("completed", f"{_place(c)} moved to {short_id(c.now.oid)} by this pull. {_AFTER}") if fits else None
        )
    return _rebased(c, "pull")


def check_rebase(c: Comparison) -> Outcome | None:
    return _rebased(c, "rebase")


def _rebased(c: Comparison, action: str) -> Outcome | None:
    lines = c.lines()
    if not lines or c.now.head != c.then.head or not c.now.head.startswith("refs/"):
        return None
    first, last = lines[0].message, lines[-1].message
    end = rf"{action}\b.*\(?finish(?:ed)?\)?: returning to {re.escape(c.now.head)}"
    begun = [x for x in lines if re.match(rf"{action}\b.*(?:\(start\)|: checkout )", x.message)]
    if len(begun) != 1 or not first.startswith(action) or not re.fullmatch(end, last) or lines[-1].new != c.now.oid:
        return None
    return Outcome("completed", f"{_place(c)} was rebased, to {short_id(c.now.oid)}. {_AFTER}")


def check_checkout(c: Comparison) -> Outcome | None:
    """A branch or commit, not paths: only that leaves a line."""
    lines, name = c.lines(), check_new_branch(c)
    target = name or (c.command.operands[0] if c.command.operands else "")
    mine = [x for x in lines or () if (m := _CHECKOUT.fullmatch(x.message)) and m[2] == target]
    others = [x for x in lines or () if x not in mine]
    if not lines or len(mine) != 1 or lines[0] != mine[0] or not target:
        return None
    if others and (not name or not all(_COMMIT.fullmatch(x.message) for x in others)):
        return None
    if lines[-1].new != c.now.oid:
        return None
    here = c.now.head == f"refs/heads/{target}"
    if not here and (name or c.now.head.startswith("refs/") or c.now.oid != mine[0].new):
        return None
    return Outcome("completed", f"HEAD is at {inline(target)}, as this call was to leave it. {_AFTER}")


def check_new_branch(c: Comparison) -> str | None:
    return c.command.last("b") or c.command.last("B")


def checkout_begun(c: Comparison) -> Outcome | None:
    """The branch is made before HEAD moves to it."""
    name = c.command.last("b")
    ref = f"refs/heads/{name}"
    if not name or c.then.refs.get(ref) != "" or not c.now.refs.get(ref) or c.now.head == ref:
        return None
    return Outcome("partial", f"The branch {inline(name)} was made, but HEAD is not on it.")


def check_reset(c: Comparison) -> Outcome | None:
    line = c.one_line()
    target = c.command.operands[0] if c.command.operands else "HEAD"
    if line is None or len(c.command.operands) > 1 or c.command.paths or line.message != f"reset: moving to {target}":
        return None
    if c.now.head != c.then.head or _IN_COMMIT & set(c.now.whole.states):
        return None
    return Outcome("completed", f"{_place(c)} was reset to {inline(target)}, which is {short_id(c.now.oid)}.")


def check_pick(c: Comparison) -> Outcome | None:
    """cherry-pick and revert: one movement for each commit that is named."""
    lines, verb = c.lines(), c.command.verb
    wanted = c.command.operands
    if not lines or not wanted or any(".." in w or "^" in w or w.startswith(("-", ":")) for w in wanted):
        return None
    words = rf"(?:{verb}|commit \({verb}\)): .*"
    if len(lines) != len(wanted) or not all(re.fullmatch(words, x.message) for x in lines):
        return None
    if c.now.head != c.then.head or lines[-1].new != c.now.oid or lines[0].old != c.then.oid:
        return None
    if any(a.new != b.old for a, b in pairwise(lines)):
        return None
    return Outcome("completed", f"{_place(c)} moved to {short_id(c.now.oid)} by this {verb}. {_AFTER}")


def check_stash(c: Comparison) -> Outcome | None:
    what, *rest = c.command.operands or ("push",)
    if c.then.head != c.now.head or c.then.oid != c.now.oid:
        return None
    if what in ("pop", "drop"):
        return None if rest else _unstashed(c, what)
    if what not in ("push", "save") or c.command.paths or (rest and what == "push"):
        return None
    lines, head = c.lines("refs/stash"), c.lines()
    if not lines or len(lines) != 1 or lines[0].new != c.now.refs.get("refs/stash"):
        return None
    kept = f"The changes are in the stash, as {short_id(lines[0].new)}"
    # The files are put back by a reset of its own, after the stash was stored.
    if head is not None and [x.message for x in head] == ["reset: moving to HEAD"]:
        return Outcome("completed", f"{kept}.")
    return Outcome("partial", f"{kept}, but they may still be in the working tree, too.") if head == () else None


def _unstashed(c: Comparison, what: str) -> Outcome | None:
    """A pop drops the entry once it has been put back in the tree, so both end with a reflog that has a line less."""
    mark, was = c.then.logs.get("refs/stash"), c.then.refs.get("refs/stash")
    now = c.now.refs.get("refs/stash")
    try:
        gone = mark is not None and bool(was) and now is not None and lost_last_line(c.repo, "refs/stash", mark)
    except UnreadableRepo:
        return None
    if not gone or mark is None or now == was or bool(now) != bool(mark.last) or c.lines():
        return None
    return Outcome("completed", "The newest stash entry is gone, which is the last thing that this call does.")


def _place(c: Comparison) -> str:
    return f"The branch {inline(c.now.head[11:])}" if c.now.head.startswith("refs/heads/") else "HEAD"
