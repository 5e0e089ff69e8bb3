"""Commands that make, move or send refs: what proves that they were done."""

from __future__ import annotations

from wal_agent.evidence.git_argv import GitCommand
from wal_agent.evidence.git_repo import is_ref
from wal_agent.evidence.git_state import RepoSnapshot
from wal_agent.evidence.model import Outcome
from wal_agent.recovery.evidence.git_case import Comparison, short_id
from wal_agent.shell.quote import inline

_HEADS = "refs/heads/"
_MOST_REMOTES = 4


def check_tag(c: Comparison) -> Outcome | None:
    name = c.command.operands[0] if c.command.operands else ""
    ref = f"refs/tags/{name}"
    if c.moved(ref) is not True:
        return None
    if c.command.has("delete"):
        gone = len(c.command.operands) == 1 and not c.now.refs[ref]
        return Outcome("completed", f"The tag {inline(name)} is gone.") if gone else None
    if not c.now.refs[ref] or (c.then.refs[ref] and not c.command.has("force")):
        return None
    return Outcome("completed", f"The tag {inline(name)} is there, at {short_id(c.now.refs[ref])}, and was not before.")


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
    return Outcome(
        "completed", f"The branch {inline(names[0])} is there, at {short_id(c.now.refs[ref])}, as it was not before."
    )


def _branch_deleted(c: Comparison, settings: dict[str, list[str]]) -> Outcome | None:
    name = c.command.operands[0]
    if c.moved(f"{_HEADS}{name}") is not True or c.now.refs[f"{_HEADS}{name}"]:
        return None
    if _configured(name, settings):
        return Outcome("partial", f"The branch {inline(name)} is gone, but its settings are still there.")
    return Outcome("completed", f"The branch {inline(name)} is gone.")


def _branch_renamed(c: Comparison, settings: dict[str, list[str]]) -> Outcome | None:
    *first, new = c.command.operands
    old = f"{_HEADS}{first[0]}" if first else c.then.head
    if len(first) > 1 or not old.startswith(_HEADS) or c.command.has("M", "force"):
        return None
    was, now = c.then.refs.get(old), c.now.refs.get(f"{_HEADS}{new}")
    if not was or now != was or c.then.refs.get(f"{_HEADS}{new}") != "" or c.now.refs.get(old) != "":
        return None
    if c.now.head != (f"{_HEADS}{new}" if c.then.head == old else c.then.head):
        return Outcome("partial", f"The branch {inline(new)} is there, but HEAD still names the old one.")
    if _configured(old.removeprefix(_HEADS), settings):
        return Outcome(
            "partial", f"The branch {inline(new)} is there, but its settings are still those of the old name."
        )
    return Outcome("completed", f"The branch {inline(new)} is there, and the old name is gone.")


def _configured(name: str, settings: dict[str, list[str]]) -> bool:
    return any(key.startswith(f"branch.{name}.") for key in settings)


# ---- push ----------------------------------------------------------------------------------------------------------


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
    named = command.operands[:1] or remotes[:_MOST_REMOTES]
    return (spec[0], *(ref for r in named if is_ref(ref := f"refs/remotes/{r}/{spec[1]}")))


def sends_the_same(command: GitCommand, then: RepoSnapshot, now: RepoSnapshot) -> bool:
    """Whether the branch that a push sends is what it was before the call. Then that the remote took it is true whoever
    sent it, and to send it again does nothing: calls beside it of which it is not known what they change (a script
    whose end the session had not told yet) cast no doubt on it."""
    if (spec := push_refspec(command, then.head)) is None or then.head != now.head:
        return False
    sent = then.refs.get(spec[0])
    return bool(sent) and now.refs.get(spec[0]) == sent


def check_push(c: Comparison) -> Outcome | None:
    """git moves the remote-tracking ref once the remote has said that it took the branch (transport_push)."""
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
    return Outcome("completed", f"{inline(remote)} took {short_id(sent)} as {inline(spec[1])}: {inline(ref)} says so.")


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


def explain_open_push(c: Comparison | None, command: GitCommand, head: str) -> str:
    """How to find out what became of a push of which nothing is known."""
    spec = push_refspec(command, head)
    if spec is None or (command.operands and not is_ref(f"refs/remotes/{command.operands[0]}")):
        return "The remote may have taken it or not: `git ls-remote` tells."
    look = f"git ls-remote {command.operands[0] if command.operands else 'origin'} {_HEADS}{spec[1]}"
    return f"The remote may have taken it or not: {inline(look)} tells."
