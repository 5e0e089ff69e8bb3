"""Format the lines of a recovery for the screen (RECOVERY.md), and sentences on the working tree for the prompt. Pure.

Only the lines that apply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wal_agent.calls.quote import inline, safe, show_input
from wal_agent.capture.candidates import BROUGHT_IN, IGNORED
from wal_agent.records import Pending, Repository, Workspace, state_text
from wal_agent.recovery.restore_target import Keep, KeptFiles, PutBack, RestoreBackup
from wal_agent.text import plural, quote_word, size
from wal_agent.wording import messages
from wal_agent.wording.findings import STILL_RAN

if TYPE_CHECKING:
    from wal_agent.recovery.inflight import InFlight, Unannounced
    from wal_agent.recovery.plan import Alert
    from wal_agent.recovery.prompt import LostCalls
    from wal_agent.recovery.restore_tree import Changes
    from wal_agent.recovery.restore_workspace import RestoredInside, TreeResult
    from wal_agent.wal.state import OpenCall

_MAX_CALLS = 5  # calls that lines are about
_MAX_NAMED = 3  # calls within a sentence
_MAX_LOST = 3
_SHOWN = 6  # names of settings that a start shows
_MAX_NAMES = 3


class Report(msgspec.Struct, frozen=True):
    """The facts of one recovery. Times in seconds since 1970 (UTC), durations in seconds."""

    job: str
    alert: Alert
    old_host: str
    new_host: str
    stopped: float
    now: float
    fenced_in: float
    handed: tuple[str, str] | None = None  # from agent to agent
    over: bool = False  # the job had ended (a person settled its last call, say), and is continued as asked


def headline(r: Report) -> str:
    """The message's first line."""
    old, new = one_line(r.old_host, 60), one_line(r.new_host, 60)
    return messages.headline(r.job, r.alert, r.over, old, new, r.stopped, r.now, r.handed)


def fenced_line(r: Report) -> str:
    old = "" if r.old_host == r.new_host else one_line(r.old_host, 60)
    return row("locked out", messages.locked_out(old), r.fenced_in)


def stopped_line(leftovers: Sequence[str]) -> str:
    shortest = sorted(set(leftovers), key=len)  # a shell around a command says the same at more length
    shown = ", ".join(one_line(text, 60) for text in shortest[:2]) + (", ..." if len(shortest) > 2 else "")
    return row("stopped", messages.stopped(len(leftovers), shown))


def restored_line(session: str, messages: int, bytes: int, tree: str, seconds: float) -> str:
    """`tree`: what was put back beside it, "" for nothing."""
    counted = f"{plural(messages, 'message')}, " if messages else ""
    text = f"session {session[:8]}: {counted}{size(bytes)}"
    return row("restored", f"{text}; {tree}" if tree else text, seconds)


def put_back_line(count: int, agent: str) -> str:
    return row("put back", messages.put_back(count, agent))


def left_out_line(names: Sequence[str]) -> str:
    """Format what a restored session set beside the conversation. The names are foreign text."""
    shown = ", ".join(one_line(name, 60) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return row("left out", f"what the session set beside the conversation; yours counts here: {shown}{more}")


def in_flight_lines(calls: Sequence[InFlight], foreseen: bool = False) -> list[str]:
    """Format one line a call: what, class, and the finding with its reason. `foreseen`: nothing has been done yet."""
    verifying = messages.WOULD_VERIFY if foreseen else messages.VERIFYING
    lines = []
    for call in calls[:_MAX_CALLS]:
        times = f" ({len(call.calls)} times)" if len(call.calls) > 1 else ""
        because = messages.WOULD_STOP if foreseen and call.because == STILL_RAN else call.because or verifying
        finding = one_line(messages.found(call.finding, because), 180)
        cls = "class unknown" if call.cls == "unknown" else call.cls  # beside a finding that may be unknown too
        text = f"{one_line(show_input(call.tool, call.input), 60)}{times}  {cls}  {finding}"
        lines.append(row(state_text(call.state), text))
    return [*lines, *_more_lines(len(calls))]


def name_calls(calls: Sequence[OpenCall]) -> str:
    """Name open calls within a sentence: number, tool, input, and the state where it is another word."""
    shown = ", ".join(
        f"#{o.intent.call} {one_line(o.intent.tool, 80)} "
        f"`{one_line(show_input(o.intent.tool, o.intent.input.data), 60)}`"
        + (f" ({state_text(o.state)})" if o.state != "open" else "")
        for o in calls[:_MAX_NAMED]
    )
    return f"{shown} and {len(calls) - _MAX_NAMED} more" if len(calls) > _MAX_NAMED else shown


def unannounced_lines(calls: Sequence[Unannounced]) -> list[str]:
    """Format one line a call that ran before it was logged."""
    texts = [
        f"{one_line(show_input(c.tool, c.input), 60)}  {messages.unlogged(c.cls, c.how)}" for c in calls[:_MAX_CALLS]
    ]
    return _call_lines("unlogged", texts, len(calls))


def _call_lines(name: str, texts: Sequence[str], count: int) -> list[str]:
    lines = [row("" if n else name, text) for n, text in enumerate(texts)]
    return [*lines, *_more_lines(count)]


def _more_lines(count: int) -> list[str]:
    return [row("", messages.more_calls(count - _MAX_CALLS))] if count > _MAX_CALLS else []


def lost_lines(lost: LostCalls) -> list[str]:
    """Name the newest calls whose file changes are not here."""
    if not lost.count:
        return []
    shown = ", ".join(f"#{c.call} {one_line(show_input(c.tool, c.input), 40)}" for c in lost.calls[-_MAX_LOST:])
    return [row("lost", messages.lost(lost.count, shown, lost.count - _MAX_LOST))]


def resuming_line(text: str, seconds: float) -> str:
    return row("resuming", text, seconds, "in all")


def row(name: str, text: str, seconds: float | None = None, tail: str = "") -> str:
    """`  name  text   time`, the time in a column of its own."""
    line = f"  {name:<10} {text}"
    return line if seconds is None else f"{line:<96} {seconds:.2f} s {tail}".rstrip()


def one_line(text: str, limit: int) -> str:
    """Foreign text on one line: redacted, escaped, cut."""
    flat = " ".join(safe(text, 1000).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


class MissingEffects(msgspec.Struct, frozen=True):
    """Which finished calls' file changes are missing here: of those above `holds` (None: of none), but not of those in
    `also`. They may be missing: a call that
    ended while a capture was made may be in it. `elsewhere`: the calls ran on another host."""

    holds: int | None = None
    elsewhere: bool = False
    also: tuple[int, ...] = ()

    def lacks(self, call: int) -> bool:
        """Whether the files here may lack the changes of a call that ran."""
        return self.holds is not None and call > self.holds and call not in self.also

    def note(self, call: int) -> str:
        """For a call that completed; "" where its changes are here."""
        return messages.lost_note(self.elsewhere) if self.lacks(call) else ""


def missing_effects(done: TreeResult, elsewhere: bool, put_back_before: bool) -> MissingEffects:
    """Find the calls whose changes a restored tree lacks. `put_back_before`: an earlier start restored this tree, and
    no agent was started since."""
    if (done.put_back or put_back_before) and done.captured is not None:
        return MissingEffects(done.captured.holds, elsewhere, done.captured.also)
    if done.captured is not None:
        return MissingEffects()  # the folder that they changed
    return MissingEffects(0, elsewhere) if elsewhere else MissingEffects()


# ---- for the screen ------------------------------------------------------------------------------------------------


def describe_changes(found: Changes) -> str:
    """ "7 changed, 2 new files"."""
    parts = [
        f"{n} {word}" for n, word in ((found.changed, "changed"), (found.new, "new"), (found.gone, "deleted")) if n
    ]
    if not parts:
        return "as it was saved"
    return f"{', '.join(parts)} {'file' if found.changed + found.new + found.gone == 1 else 'files'}"


def tree_summary(done: TreeResult) -> str:
    """The tree's part of the line on the session; "" for none."""
    return f"working tree: {describe_changes(done.changes)}" if done.put_back else ""


def tree_lines(done: TreeResult) -> list[str]:
    """Format the lines on the working tree."""
    lines = []
    if done.decided == Keep("home"):
        lines.append(row("tree", messages.HOME_FOLDER))
    if done.files_kept and done.kept is not None:
        lines.append(row("kept", f"what was here: {one_line(done.kept.get_files, 400)}"))
    if done.aside:
        lines.append(row("moved", f"was in the way: {_first_of(done.aside, one_line, 80)}"))
    if (lost := _lost_repository(done)) and done.repository is not None:
        get = f": {one_line(done.kept.get_commits, 400)}" if done.offers and done.kept else ""
        lines.append(
            row("git", f"HEAD here is {_head_text(done.repository)}, the saved tree was on {_head_text(lost)}{get}")
        )
    if back := _git_back(done):
        lines.append(row("git", f"put back as saved: {back}"))
    if offered := _git_offered(done, one_line):
        get = f": {one_line(done.kept.get_commits, 400)}" if done.kept is not None else ""
        lines.append(row("git", f"saved, and not put back: {offered}{get}"))
    if done.stays:
        lines.append(row("unchanged", messages.not_covered(done.stays)))
    if done.unread:
        lines.append(row("git", messages.NO_REPOSITORY))
    if busy := _in_progress(done):
        commands = _describe_rebase_commands(done, one_line)
        lines.append(row("git", f"a {one_line(busy, 20)} is in progress in the repository that was made{commands}"))
    if inside := _inside_back(done):
        lines.append(row("inside", f"put back too: {describe_folders(inside)}"))
    for own in (name.rpartition("/")[2] for name in inside if name.rpartition("/")[0] == BROUGHT_IN):
        there = quote_word(f"../{own}")  # `git worktree move` refuses submodules
        move = f"mv {quote_word(f'{BROUGHT_IN}/{own}')} {there} && git worktree repair {there}"
        lines.append(row("worktree", f"{one_line(own, 80)} lay outside of this folder; to move it there: {move}"))
    for each in done.inside:
        if each.why:
            lines.append(row("inside", f"{one_line(each.folder, 80)} was not put back: {one_line(each.why, 200)}"))
        if runs := _inside_runs(each, one_line):
            lines.append(row("git", runs))
        if each.done is not None and each.done.files_kept and each.done.kept is not None:
            what = f"what was in {one_line(each.folder, 80)}: {one_line(each.done.kept.get_files, 400)}"
            lines.append(row("kept", what))
    if done.put_back and done.captured is not None and (pending := done.captured.pending) is not None:
        lines.append(row("not saved", describe_pending(pending, one_line)))
    if left := _left_out(done.captured) if done.put_back else ():
        lines.append(row("not saved", _first_of(left, one_line, 120, "; ")))
    return lines


def _inside_runs(each: RestoredInside, quoted: Callable[[str, int], str]) -> str:
    """What going on with a rebase there would run; "" for nothing."""
    if each.done is None or not each.done.runs:
        return ""
    return f"a rebase is in progress in {quoted(each.folder, 80)}{_describe_rebase_commands(each.done, quoted)}"


def _inside_back(done: TreeResult) -> list[str]:
    """The repositories inside that were put back."""
    return [each.folder for each in done.inside if each.done is not None]


def uncommitted_line(names: Sequence[str], folder: Path, kept: RestoreBackup) -> str:
    """Name the files here that no commit has, before they are replaced, and the command that brings them back."""
    name = KeptFiles(kept, kept.saves[-1], 0.0).name
    back = f"cd {quote_word(str(folder))} && wal-agent restore --kept {name}"
    shown = describe_names(len(names), names)
    return f"{shown} in this folder: no commit has them, and the saved files replace them. To bring them back: {back}"


def describe_names(count: int, names: Sequence[str]) -> str:
    """ "7 files (a, b, c and 4 more)"; `names`: the first of them."""
    more = f" and {count - _MAX_NAMES} more" if count > _MAX_NAMES else ""
    return f"{plural(count, 'file')} ({', '.join(one_line(name, 80) for name in names[:_MAX_NAMES])}{more})"


def describe_folders(names: Sequence[str]) -> str:
    """ "a, b, c and 4 more"."""
    return _first_of(names, one_line, 80)


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
    return f"; going on with it runs {_first_of(done.runs, quoted, 120)}" if done.runs else ""


def _first_of(texts: Sequence[str], quoted: Callable[[str, int], str], limit: int, comma: str = ", ") -> str:
    """ "a, b, c and 4 more", each of `limit` characters at most."""
    more = f"{comma.strip(', ')} and {len(texts) - _MAX_NAMES} more" if len(texts) > _MAX_NAMES else ""
    return comma.join(quoted(text, limit) for text in texts[:_MAX_NAMES]) + more


def _lost_repository(done: TreeResult) -> Repository | None:
    """The repository that the tree was saved in, where the one here has another HEAD."""
    lost = done.captured.repository if done.captured else None
    if not done.put_back or lost is None or (done.repository and done.repository.head == lost.head):
        return None
    return lost


def _head_text(repository: Repository) -> str:
    branch = one_line(repository.branch.removeprefix("refs/heads/"), 60)
    head = repository.head[:12] or "no commit"
    return f"{head} ({branch})" if branch else head


def _git_back(done: TreeResult) -> str:
    """ "staged changes, 2 stashes"."""
    return ", ".join([*["staged changes"] * done.git.staged, *_stashes(done.git.stashes)])


def _git_offered(done: TreeResult, quoted: Callable[[str, int], str]) -> str:
    """ "staged changes, 2 stashes, branches a, b, the commits of the rebase"."""
    names = list(done.git.offered)
    branches = [name.removeprefix("heads/") for name in names if name.startswith("heads/")]
    busy = done.captured.repository.busy if done.captured and done.captured.repository else ""
    found = ["staged changes"] if "staged" in names else []
    found += _stashes(sum(name.startswith("stash-") for name in names))
    if branches:
        found.append(f"{'branch' if len(branches) == 1 else 'branches'} {_first_of(branches, quoted, 60)}")
    if any(name.startswith("in-progress-") for name in names):
        found.append(f"the commits of the {quoted(busy or 'merge', 20)}")
    return ", ".join(found)


def _stashes(n: int) -> list[str]:
    return [f"{n} stashes" if n > 1 else "1 stash"] if n else []


def _left_out(captured: Workspace | None) -> tuple[str, ...]:
    """What nobody chose to leave out."""
    return tuple(line for line in captured.left_out if not line.endswith(f": {IGNORED}")) if captured else ()


# ---- for the agent -------------------------------------------------------------------------------------------------


def describe_tree(done: TreeResult, put_back_before: bool) -> str:
    """Write the sentences for the prompt; bounded, foreign text quoted."""
    captured = done.captured
    if captured is None:
        return messages.TREE_NOT_SAVED
    if isinstance(done.decided, Keep) and not put_back_before:
        return messages.TREE_KEPT
    parts = [messages.tree_as_saved(captured.time)]
    parts += _git_sentences(done)
    if done.files_kept and done.kept is not None:
        parts.append(f"What was in this folder before is kept; to get it: {inline(done.kept.get_files, 400)}.")
    if done.aside:
        parts.append(f"In the way, and renamed: {_first_of(done.aside, inline, 80)}.")
    if done.stays:
        parts.append(f"{messages.not_covered(done.stays).capitalize()}.")
    if back := _inside_back(done):
        parts.append(f"The repositories inside are as they were saved, too: {_first_of(back, inline, 80)}.")
    parts += [f"{runs[0].upper()}{runs[1:]}." for each in done.inside if (runs := _inside_runs(each, inline))]
    if lost := [each.folder for each in done.inside if each.why]:
        parts.append(f"Repositories inside that could not be put back: {_first_of(lost, inline, 80)}.")
    if captured.pending is not None:
        parts.append(
            f"Not all files had been saved. Missing here, or older: {describe_pending(captured.pending, inline)}."
        )
    if left := _left_out(captured):
        parts.append(f"Not saved: {_first_of(left, inline, 120)}.")
    parts.append(messages.IGNORED_NOT_SAVED)
    return " ".join(parts)


def _git_sentences(done: TreeResult) -> list[str]:
    get = inline(done.kept.get_commits, 400) if done.offers and done.kept is not None else ""
    here, saved = done.repository, done.captured.repository if done.captured else None
    if done.unread:
        return [messages.TREE_UNREAD]
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
    if back := _git_back(done):
        parts.append(f"Put back as saved: {back}.")
    if offered := _git_offered(done, inline):
        command = inline(done.kept.get_commits, 400) if done.kept is not None else ""
        parts.append(f"Saved, and not put back: {offered}; {command} fetches them into refs/wal-agent/.")
    if saved.busy and saved.busy != here.busy:
        parts.append(f"A {inline(saved.busy, 20)} was in progress there; here only its files are.")
    return parts
