"""Prove that single git commands have run: those that move HEAD, that make, move or send refs, whose last write is the
index, and that make a repository or a worktree. Each check returns None where nothing is proven.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from wal_agent.calls.argv import GitCommand
from wal_agent.calls.quote import inline
from wal_agent.evidence import git_repo
from wal_agent.evidence.git_repo import IndexEntry, LogLine, Repo, UnreadableRepo, entries_below, is_ref
from wal_agent.evidence.git_state import Comparison, RepoSnapshot, short_id
from wal_agent.evidence.model import Budget, Outcome
from wal_agent.wording import findings

_COMMIT = re.compile(r"commit(?: \(([a-z-]+)\))?: .*|commit(?: \(([a-z-]+)\))?:?")
_CHECKOUT = re.compile(r"checkout: moving from (\S+) to (\S+)")
_MERGED = r"(?:Fast-forward|Merge made by .*|In-index merge)"
_IN_COMMIT = {"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"}
_HEADS = "refs/heads/"
_MAX_REMOTES = 4
_MAX_PATHS = 64
MAKING_VERBS = ("clone", "init", "worktree")

_MAGIC = frozenset("*?[\\:")


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
    done = findings.COMMITTED.format(_moved_ref(c), short_id(c.then.oid) or "nothing", short_id(c.now.oid))
    if c.command.has("all", "only") or c.command.operands or c.command.paths:
        # Here the index is written after the ref has moved.
        same = c.index_is_head((*c.command.operands, *(c.command.paths or ())))
        if same is None:
            return None
        if not same:
            return Outcome("partial", findings.INDEX_NOT_WRITTEN.format(done))
    return _completed_with_hooks(done)


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
    return _moved_by(c, "merge")


def check_pull(c: Comparison) -> Outcome | None:
    line = c.one_line()
    if line is not None and re.fullmatch(rf"pull\b[^:]*: {_MERGED}", line.message):
        fits = c.now.head == c.then.head and c.now.oid != c.then.oid
        return _moved_by(c, "pull") if fits else None
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
    return _completed_with_hooks(findings.REBASED.format(_moved_ref(c), short_id(c.now.oid)))


def check_checkout(c: Comparison) -> Outcome | None:
    """A branch or commit, not paths: only that leaves a line."""
    lines, name = c.lines(), c.command.last("b") or c.command.last("B")
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
    return _completed_with_hooks(findings.CHECKED_OUT.format(inline(target)))


def checkout_begun(c: Comparison) -> Outcome | None:
    """The branch is made before HEAD moves to it."""
    name = c.command.last("b")
    ref = f"refs/heads/{name}"
    if not name or c.then.refs.get(ref) != "" or not c.now.refs.get(ref) or c.now.head == ref:
        return None
    return Outcome("partial", findings.CHECKOUT_BEGUN.format(inline(name)))


def check_reset(c: Comparison) -> Outcome | None:
    line = c.one_line()
    target = c.command.operands[0] if c.command.operands else "HEAD"
    if line is None or len(c.command.operands) > 1 or c.command.paths or line.message != f"reset: moving to {target}":
        return None
    if c.now.head != c.then.head or _IN_COMMIT & set(c.now.whole.states):
        return None
    return Outcome("completed", findings.RESET.format(_moved_ref(c), inline(target), short_id(c.now.oid)))


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
    return _moved_by(c, verb)


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
    kept = short_id(lines[0].new)
    # The files are put back by a reset of its own, after the stash was stored.
    if head is not None and [x.message for x in head] == ["reset: moving to HEAD"]:
        return Outcome("completed", findings.STASHED.format(kept))
    return Outcome("partial", findings.STASH_BEGUN.format(kept)) if head == () else None


def _unstashed(c: Comparison, what: str) -> Outcome | None:
    """A pop drops the entry once it has been put back in the tree, so both end with a reflog that has a line less."""
    mark, was = c.then.logs.get("refs/stash"), c.then.refs.get("refs/stash")
    now = c.now.refs.get("refs/stash")
    try:
        gone = (
            mark is not None and bool(was) and now is not None and git_repo.lost_last_line(c.repo, "refs/stash", mark)
        )
    except UnreadableRepo:
        return None
    if not gone or mark is None or now == was or bool(now) != bool(mark.last) or c.lines():
        return None
    return Outcome("completed", findings.UNSTASHED)


def _moved_ref(c: Comparison) -> str:
    return f"The branch {inline(c.now.head[11:])}" if c.now.head.startswith("refs/heads/") else "HEAD"


def _moved_by(c: Comparison, verb: str) -> Outcome:
    return _completed_with_hooks(findings.MOVED_BY.format(_moved_ref(c), short_id(c.now.oid), verb))


def _completed_with_hooks(done: str) -> Outcome:
    return Outcome("completed", findings.AFTERWARDS.format(done))


def check_tag(c: Comparison) -> Outcome | None:
    name = c.command.operands[0] if c.command.operands else ""
    ref = f"refs/tags/{name}"
    if c.moved(ref) is not True:
        return None
    if c.command.has("delete"):
        gone = len(c.command.operands) == 1 and not c.now.refs[ref]
        return Outcome("completed", findings.TAG_GONE.format(inline(name))) if gone else None
    if not c.now.refs[ref] or (c.then.refs[ref] and not c.command.has("force")):
        return None
    return Outcome("completed", findings.TAG_MADE.format(inline(name), short_id(c.now.refs[ref])))


def check_branch(c: Comparison) -> Outcome | None:
    names = c.command.operands
    if not names or (settings := c.settings(r"^branch\.")) is None:
        return None
    if c.command.has("delete", "D"):
        return _branch_deleted(c, settings) if len(names) == 1 else None
    if c.command.has("move", "M"):
        return _branch_renamed(c, settings)
    ref = f"{_HEADS}{names[0]}"
    if c.moved(ref) is not True or not c.now.refs[ref] or (c.then.refs[ref] and not c.command.has("force")):
        return None
    # What it follows is written after the branch was made, and only if it starts at a branch.
    follows = {key: value for key, value in settings.items() if key.startswith("branch.autosetup")}
    followed = f"branch.{names[0]}.remote" in settings and f"branch.{names[0]}.merge" in settings
    if follows or ((len(names) > 1 or c.command.has("track")) and not followed and not c.command.has("no-track")):
        return None
    return Outcome("completed", findings.BRANCH_MADE.format(inline(names[0]), short_id(c.now.refs[ref])))


def _branch_deleted(c: Comparison, settings: dict[str, list[str]]) -> Outcome | None:
    name = c.command.operands[0]
    if c.moved(f"{_HEADS}{name}") is not True or c.now.refs[f"{_HEADS}{name}"]:
        return None
    if _configured(name, settings):
        return Outcome("partial", findings.BRANCH_SETTINGS_LEFT.format(inline(name)))
    return Outcome("completed", findings.BRANCH_GONE.format(inline(name)))


def _branch_renamed(c: Comparison, settings: dict[str, list[str]]) -> Outcome | None:
    *first, new = c.command.operands
    old = f"{_HEADS}{first[0]}" if first else c.then.head
    if len(first) > 1 or not old.startswith(_HEADS) or c.command.has("M", "force"):
        return None
    was, now = c.then.refs.get(old), c.now.refs.get(f"{_HEADS}{new}")
    if not was or now != was or c.then.refs.get(f"{_HEADS}{new}") != "" or c.now.refs.get(old) != "":
        return None
    if c.now.head != (f"{_HEADS}{new}" if c.then.head == old else c.then.head):
        return Outcome("partial", findings.BRANCH_HEAD_LEFT.format(inline(new)))
    if _configured(old.removeprefix(_HEADS), settings):
        return Outcome("partial", findings.BRANCH_OLD_SETTINGS.format(inline(new)))
    return Outcome("completed", findings.BRANCH_RENAMED.format(inline(new)))


def _configured(name: str, settings: dict[str, list[str]]) -> bool:
    return any(key.startswith(f"branch.{name}.") for key in settings)


def push_refspec(command: GitCommand, head: str) -> tuple[str, str] | None:
    """The ref here and the branch there that a push of one branch means; None for any other push."""
    if command.has("delete", "follow-tags") or len(command.operands) > 2 or command.paths:
        return None
    named = command.operands[1].removeprefix("+") if len(command.operands) == 2 else "HEAD"
    source, colon, target = named.partition(":")
    if not source or (colon and not target):
        return None
    local = head if source == "HEAD" else source if source.startswith("refs/") else f"{_HEADS}{source}"
    there = target or local
    there = there.removeprefix(_HEADS)
    if not is_ref(local) or not local.startswith(_HEADS) or there.startswith("refs/") or not is_ref(f"{_HEADS}{there}"):
        return None
    return local, there


def tracking_refs(command: GitCommand, head: str, remotes: tuple[str, ...]) -> tuple[str, ...]:
    """The remote-tracking refs that a push may move; its local ref first."""
    if (spec := push_refspec(command, head)) is None:
        return ()
    named = command.operands[:1] or remotes[:_MAX_REMOTES]
    return (spec[0], *(ref for r in named if is_ref(ref := f"refs/remotes/{r}/{spec[1]}")))


def sends_the_same(command: GitCommand, then: RepoSnapshot, now: RepoSnapshot) -> bool:
    """Whether the branch that a push sends is what it was before the call. Then that the remote took it is true whoever
    sent it, and to send it again does nothing: calls beside it of which it is not known what they change (a script
    whose end is not in the session yet) cast no doubt on it."""
    if (spec := push_refspec(command, then.head)) is None or then.head != now.head:
        return False
    sent = then.refs.get(spec[0])
    return bool(sent) and now.refs.get(spec[0]) == sent


def check_push(c: Comparison) -> Outcome | None:
    """git moves the remote-tracking ref once the remote has confirmed the branch (transport_push)."""
    spec = push_refspec(c.command, c.now.head)
    if spec is None:
        return None
    sent = c.now.refs.get(spec[0])
    hits = []
    for ref in c.then.logs:
        if not ref.startswith("refs/remotes/") or not ref.endswith(f"/{spec[1]}"):
            continue
        lines = c.lines(ref)
        if lines is None:
            return None
        if lines:
            hits.append((ref, lines))
    if len(hits) != 1 or not sent:
        return None
    ref, lines = hits[0]
    remote = ref[len("refs/remotes/") : -len(spec[1]) - 1]
    if len(lines) != 1 or lines[0].message != "update by push" or lines[0].new != sent or c.now.refs.get(ref) != sent:
        return None
    if not _goes_to_one(c, remote):
        return None
    return Outcome("completed", findings.PUSHED.format(inline(remote), short_id(sent), inline(spec[1]), inline(ref)))


def _goes_to_one(c: Comparison, remote: str) -> bool:
    """Whether the push was of one ref, to one place: with several, the tracking ref is moved after the first."""
    settings = c.settings(r"^(remote|push)\.")
    if settings is None:
        return False

    def of(name: str) -> list[str]:
        return settings.get(f"remote.{remote}.{name}", [])

    if len(of("pushurl") or of("url")) != 1 or of("mirror") or "true" in settings.get("push.followtags", []):
        return False
    if len(c.command.operands) < 2:
        return not of("push") and "matching" not in settings.get("push.default", [])
    return True


def explain_open_push(command: GitCommand, head: str) -> str:
    """How to find out what became of a push of which nothing is known."""
    spec = push_refspec(command, head)
    if spec is None or (command.operands and not is_ref(f"refs/remotes/{command.operands[0]}")):
        return findings.PUSH_OPEN.format("`git ls-remote`")
    look = f"git ls-remote {command.operands[0] if command.operands else 'origin'} {_HEADS}{spec[1]}"
    return findings.PUSH_OPEN.format(inline(look))


def check_index_command(c: Comparison) -> Outcome | None:
    then, now = c.then.listed, c.now.listed
    paths = _paths(c)
    if not then or not now or then == now or now == "absent" or paths is None:
        return None
    try:
        all = git_repo.read_index(c.repo, c.budget)
    except UnreadableRepo:
        return None
    if c.command.verb == "add":
        return _added(c, all, paths)
    if c.command.verb == "mv":
        return _renamed(c, all, paths)
    return _removed(c, all, paths)


def _paths(c: Comparison) -> tuple[str, ...] | None:
    """The operands as paths of the worktree; None for patterns and what leads out of it."""
    named = (*c.command.operands, *(c.command.paths or ()))
    found = []
    for name in named[:_MAX_PATHS]:
        path = os.path.relpath(os.path.normpath(c.cwd / name), c.repo.tree)
        if _MAGIC & set(name) or not name or path == ".." or path.startswith("../"):
            return None
        found.append("" if path == "." else path)
    return tuple(found) if len(named) <= _MAX_PATHS else None


def _added(c: Comparison, all: Sequence[IndexEntry], paths: tuple[str, ...]) -> Outcome | None:
    everything = c.command.has("all", "update")
    if c.command.has("intent-to-add", "ignore-errors") or not (paths or everything):
        return None
    for path in paths or ("",):
        under = entries_below(all, path)
        if (not under and path) or not all_staged(c, under):
            return None
    if not c.command.has("update") and c.untracked(paths) is not False:
        return None
    return Outcome("completed", findings.INDEX_ADDED)


def all_staged(c: Comparison, under: Sequence[IndexEntry]) -> bool:
    return not c.budget.over and all(git_repo.is_staged(c.repo, entry) for entry in under)


def _removed(c: Comparison, all: Sequence[IndexEntry], paths: tuple[str, ...]) -> Outcome | None:
    if not paths or "" in paths or any(entries_below(all, path) for path in paths):
        return None
    if not c.command.has("cached") and any(os.path.lexists(c.repo.tree / path) for path in paths):
        return None
    return Outcome("completed", findings.INDEX_REMOVED.format(inline(paths[0]), " and the others" if paths[1:] else ""))


def _renamed(c: Comparison, all: Sequence[IndexEntry], paths: tuple[str, ...]) -> Outcome | None:
    if len(paths) != 2 or "" in paths:
        return None
    old, new = paths
    if entries_below(all, inside := f"{new}/{old.rpartition('/')[2]}"):
        new = inside
    if entries_below(all, old) or not entries_below(all, new) or os.path.lexists(c.repo.tree / old):
        return None
    return Outcome("completed", findings.INDEX_RENAMED.format(inline(new), inline(old)))


def made_folder(command: GitCommand) -> str | None:
    """The folder that the command is to make, as named; None where that is not known."""
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
    for all else, of which nothing is concluded."""
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


def assess_made_folder(command: GitCommand, path: str, then: str, budget: Budget) -> Outcome:
    now = made_folder_state(command, path)
    if now == then:
        return Outcome("not_started", findings.FOLDER_AS_BEFORE[then].format(inline(path)))
    unborn = False
    try:
        repo = git_repo.find_repo(Path(path))
        if repo is None or str(repo.tree) != path:
            raise UnreadableRepo
        made = git_repo.scan_git_dir(repo, budget)
        if command.verb == "init":
            done = _is_new(repo)
        elif command.verb == "clone":
            unborn = not git_repo.resolve_ref(repo, git_repo.read_head(repo))
            done = not unborn and bool(git_repo.mark_log(repo, "HEAD").size) and _has_index(repo)
        else:
            done = git_repo.read_small(repo.own, "locked", 4096) is None and _has_index(repo)
        if done and not made.locks and not made.states:
            kind = "worktree" if command.verb == "worktree" else "repository"
            return Outcome("completed", findings.FOLDER_MADE.format(inline(path), kind))
    except (UnreadableRepo, OSError):
        pass
    if unborn:
        return Outcome("unknown", findings.FOLDER_UNBORN.format(inline(path)))
    why = findings.INIT_BEGUN if command.verb == "init" else findings.FOLDER_BEGUN
    return Outcome("partial", why.format(inline(path)))


def _has_index(repo: Repo) -> bool:
    """The index is written last, when all files are there."""
    return git_repo.index_checksum(repo) != "absent"


def _is_new(repo: Repo) -> bool:
    """git makes the object folders last (init_db)."""
    git_repo.read_head(repo)
    config = git_repo.read_small(repo.common, "config", 1 << 16) or b""
    folders = all((repo.common / "objects" / name).is_dir() for name in ("info", "pack"))
    return folders and b"repositoryformatversion" in config and b"bare" in config
