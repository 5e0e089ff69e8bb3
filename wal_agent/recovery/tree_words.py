"""What people and the agent are told of the working tree after a recovery. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wal_agent.capture.candidates import IGNORED
from wal_agent.records import Pending, Repository, Workspace
from wal_agent.recovery.format import clock_time, plural, size
from wal_agent.recovery.prompt import TREE_NOT_SAVED
from wal_agent.recovery.report import one_line, row
from wal_agent.recovery.restore_tree import Changes
from wal_agent.recovery.restore_workspace import TreeResult
from wal_agent.recovery.target import Keep, PutBack
from wal_agent.shell.quote import inline

_MAX_NAMES = 3
HOME_FOLDER_NOTE = "this folder is your home folder or above it; nothing is put back here"


@dataclass(frozen=True, slots=True)
class MissingEffects:
    """Which finished calls have left their file changes somewhere else: those numbered above `holds` (None: none).
    and are not in `also`. `sure`: so it is; else so it may be."""

    holds: int | None = None
    sure: bool = True
    elsewhere: bool = False
    also: tuple[int, ...] = ()

    def lacks(self, call: int) -> bool:
        """Whether the files here may be without the changes of a call that ran."""
        return self.holds is not None and call > self.holds and call not in self.also

    def note(self, call: int) -> str:
        """For a call that completed; "" where its changes are here."""
        if not self.lacks(call):
            return ""
        where = "completed on the lost host" if self.elsewhere else "completed"
        return f"{where}; its file changes {'are not' if self.sure else 'may not be'} in this workspace"


def missing_effects(done: TreeResult, elsewhere: bool, put_back_before: bool) -> MissingEffects:
    """`elsewhere`: the calls ran on another host. `put_back_before`: an earlier start put this tree back, and no agent
    was started since."""
    if (done.put_back or put_back_before) and done.captured is not None:
        return MissingEffects(done.captured.holds, True, elsewhere, done.captured.also)
    if done.captured is not None:
        return MissingEffects()  # the folder that they changed
    return MissingEffects(0, False, elsewhere) if elsewhere else MissingEffects()


# ---- for the screen ------------------------------------------------------------------------------------------------


def describe_changes(found: Changes) -> str:
    """ "7 changed, 2 new files"."""
    parts = [f"{n} {word}" for n, word in ((found.changed, "changed"), (found.new, "new"), (found.gone, "gone")) if n]
    if not parts:
        return "as it was saved"
    return f"{', '.join(parts)} {'file' if found.changed + found.new + found.gone == 1 else 'files'}"


def tree_summary(done: TreeResult) -> str:
    """Behind what is said of the session; "" where there is nothing to say."""
    return f"working tree: {describe_changes(done.changes)}" if done.put_back else ""


def tree_lines(done: TreeResult) -> list[str]:
    """Further lines."""
    lines = []
    if done.decided == Keep("home"):
        lines.append(row("tree", HOME_FOLDER_NOTE))
    if done.files_kept and done.kept is not None:
        lines.append(row("kept", f"what was here: {one_line(done.kept.get_files, 400)}"))
    if done.aside:
        more = f" and {len(done.aside) - _MAX_NAMES} more" if len(done.aside) > _MAX_NAMES else ""
        lines.append(
            row("moved", f"was in the way: {', '.join(one_line(p, 80) for p in done.aside[:_MAX_NAMES])}{more}")
        )
    if (lost := _lost_repository(done)) and done.repository is not None:
        get = f": {one_line(done.kept.get_commits, 400)}" if done.offers and done.kept else ""
        lines.append(
            row("git", f"HEAD here is {_head_text(done.repository)}, the saved tree was on {_head_text(lost)}{get}")
        )
    if done.unread:
        lines.append(row("git", "no repository was made: git cannot read the .git that is here"))
    if busy := _in_progress(done):
        lines.append(
            row(
                "git",
                f"a {one_line(busy, 20)} is in progress in the repository that was made{_describe_rebase_commands(done, one_line)}",
            )
        )
    if done.put_back and done.captured is not None and (pending := done.captured.pending) is not None:
        lines.append(row("not saved", describe_pending(pending, one_line)))
    if left := _left_out(done.captured) if done.put_back else ():
        more = f"; and {len(left) - _MAX_NAMES} more" if len(left) > _MAX_NAMES else ""
        lines.append(row("not saved", f"{'; '.join(one_line(line, 120) for line in left[:_MAX_NAMES])}{more}"))
    return lines


def describe_pending(pending: Pending, quoted: Callable[[str, int], str]) -> str:
    """ "37 files (380 MB), for example a, b, c"."""
    names = ", ".join(quoted(name, 80) for name in pending.names[:_MAX_NAMES])
    git = "; the repository's commits and index" if pending.repository else ""
    return f"{plural(pending.files, 'file')} ({size(pending.size)}), for example {names}{git}"


def _in_progress(done: TreeResult) -> str:
    saved = done.captured.repository if done.captured else None
    made = isinstance(done.decided, PutBack) and done.decided.make_repository
    return saved.busy if saved is not None and made else ""


def _describe_rebase_commands(done: TreeResult, quoted: Callable[[str, int], str]) -> str:
    if not done.runs:
        return ""
    more = f" and {len(done.runs) - _MAX_NAMES} more" if len(done.runs) > _MAX_NAMES else ""
    return f"; going on with it runs {', '.join(quoted(each, 120) for each in done.runs[:_MAX_NAMES])}{more}"


def _lost_repository(done: TreeResult) -> Repository | None:
    """The repository that the tree was saved in, where the one here stands elsewhere."""
    lost = done.captured.repository if done.captured else None
    if not done.put_back or lost is None or (done.repository and done.repository.head == lost.head):
        return None
    return lost


def _head_text(repository: Repository) -> str:
    branch = one_line(repository.branch.removeprefix("refs/heads/"), 60)
    head = repository.head[:12] or "no commit"
    return f"{head} ({branch})" if branch else head


def _left_out(captured: Workspace | None) -> tuple[str, ...]:
    """What nobody chose to leave out."""
    return tuple(line for line in captured.left_out if not line.endswith(f": {IGNORED}")) if captured else ()


# ---- for the agent -------------------------------------------------------------------------------------------------


def describe_tree(done: TreeResult, put_back_before: bool) -> str:
    """Sentences for the prompt; bounded, foreign text quoted."""
    captured = done.captured
    if captured is None:
        return TREE_NOT_SAVED
    if isinstance(done.decided, Keep) and not put_back_before:
        return "The working tree is the one that you worked in, as it stands now."
    parts = [f"The working tree is as it was saved at {clock_time(captured.time)} UTC, with what was not committed."]
    parts += _git_sentences(done)
    if done.files_kept and done.kept is not None:
        parts.append(f"What was in this folder before is kept; to get it: {inline(done.kept.get_files, 400)}.")
    if done.aside:
        more = f" and {len(done.aside) - _MAX_NAMES} more" if len(done.aside) > _MAX_NAMES else ""
        parts.append(f"In the way, and renamed: {', '.join(inline(p, 80) for p in done.aside[:_MAX_NAMES])}{more}.")
    if captured.pending is not None:
        words = describe_pending(captured.pending, inline)
        parts.append(f"Not all files had been saved. Missing here, or older: {words}.")
    left = _left_out(captured)
    if left:
        more = f" and {len(left) - _MAX_NAMES} more" if len(left) > _MAX_NAMES else ""
        parts.append(f"Not saved: {', '.join(inline(line, 120) for line in left[:_MAX_NAMES])}{more}.")
    parts.append("Ignored files were not saved either.")
    return " ".join(parts)


def _git_sentences(done: TreeResult) -> list[str]:
    get = inline(done.kept.get_commits, 400) if done.offers and done.kept is not None else ""
    here, saved = done.repository, done.captured.repository if done.captured else None
    if done.unread:
        return ["git cannot read the .git of this folder, so no repository was made."]
    if busy := _in_progress(done):
        return [f"A {inline(busy, 20)} is in progress in the repository{_describe_rebase_commands(done, inline)}."]
    if here is None or saved is None:
        return [f"Get the commit that it stood on by {get}."] if get else []
    parts = []
    if _lost_repository(done):
        parts.append(
            f"HEAD here is {inline(_head_text(here))}, and the saved files stood on {inline(_head_text(saved))}; "
            + (f"get that commit by {get}." if get else "that commit is here too.")
        )
    if saved.busy and saved.busy != here.busy:
        parts.append(f"A {inline(saved.busy, 20)} was in progress there; here only its files are.")
    return parts
