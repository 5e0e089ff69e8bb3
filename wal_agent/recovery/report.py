"""The lines of a recovery on the screen (UX.md). Pure; only the lines that apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.records import Finding
from wal_agent.recovery.decided import Alert
from wal_agent.recovery.format import clock_time, duration, plural, size
from wal_agent.recovery.inflight import InFlight, Unannounced
from wal_agent.recovery.prompt import LostCalls
from wal_agent.shell.quote import safe, show_input

_MAX_CALLS = 5  # calls in flight
_MAX_LOST = 3
_ALERT_TEXT: dict[Alert, str] = {
    "crash": "was cut off",
    "cut_off": "was cut off",
    "preempted": "was given up in good order",
    "paused": "was paused",
    "unsettled": "ended with calls in flight",
}
_VERIFY_TEXT = "the agent is asked to verify"
_FINDING_TEXT: dict[Finding, str] = {
    "completed": "completed",
    "not_started": "not started",
    "partial": "partly done",
    "unknown": "cannot tell",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of one recovery. Times in seconds since 1970 (UTC), durations in seconds."""

    job: str
    alert: Alert
    old_host: str
    new_host: str
    old_epoch: int
    epoch: int
    record: int  # where our epoch begins
    stopped: float
    now: float
    fenced_in: float
    over: bool = False  # the job had ended (a person settled its last call, say), and is continued as asked


def headline(r: Report) -> str:
    """The message's first line."""
    if r.over:
        ended, verb = "had ended", "Going on with its session"
    else:
        ended, verb = _ALERT_TEXT[r.alert], "Carrying on" if r.alert == "paused" else "Recovering"
    where = f"on {one_line(r.old_host, 60)} at {clock_time(r.stopped)}"
    ago = f"{duration(r.now - r.stopped)} ago (epoch {r.old_epoch})"
    return f"job {r.job} {ended} {where}, {ago}. {verb} on {one_line(r.new_host, 60)}."


def fenced_line(r: Report) -> str:
    old = "the old run" if r.old_host == r.new_host else one_line(r.old_host, 60)
    text = f"{old} can no longer run a tool for this job (epoch {r.epoch} begins at record {r.record})"
    return row("fenced", text, r.fenced_in)


def stopped_line(leftovers: Sequence[str]) -> str:
    shortest = sorted(set(leftovers), key=len)  # a shell around a command says the same at more length
    shown = ", ".join(one_line(text, 60) for text in shortest[:2]) + (", ..." if len(shortest) > 2 else "")
    noun = "leftover process" if len(leftovers) == 1 else "leftover processes"
    return row("stopped", f"{len(leftovers)} {noun} of the old run ({shown})")


def restored_line(session: str, messages: int, bytes: int, tree: str, seconds: float) -> str:
    """`tree`: what was put back beside it, "" for nothing."""
    told = f"{plural(messages, 'message')}, " if messages else ""
    text = f"session {session[:8]}: {told}{size(bytes)}"
    return row("restored", f"{text}; {tree}" if tree else text, seconds)


def put_back_line(count: int, agent: str) -> str:
    return row("put back", f"{plural(count, 'finished call')} that {agent} had not written to its session yet")


def in_flight_lines(calls: Sequence[InFlight]) -> list[str]:
    """One line a call: what, class, finding: its word first, then the reason."""
    lines = []
    for n, call in enumerate(calls[:_MAX_CALLS]):
        what = one_line(show_input(call.tool, call.input), 60)
        times = f" ({len(call.calls)} times)" if len(call.calls) > 1 else ""
        found = call.because or _VERIFY_TEXT
        text = f"{what}{times}  {call.cls}  {one_line(f'{_FINDING_TEXT[call.finding]}: {found}', 180)}"
        lines.append(row("in flight" if n == 0 else "", text))
    if len(calls) > _MAX_CALLS:
        lines.append(row("", f"and {len(calls) - _MAX_CALLS} more: see wal-agent log"))
    return lines


def unannounced_lines(calls: Sequence[Unannounced]) -> list[str]:
    """One line a call that ran before it was logged."""
    lines = []
    for n, call in enumerate(calls[:_MAX_CALLS]):
        what = one_line(show_input(call.tool, call.input), 60)
        lines.append(row("unlogged" if n == 0 else "", f"{what}  {call.cls}  {call.how}; it ran before it was logged"))
    more = len(calls) - _MAX_CALLS
    return [*lines, row("", f"and {more} more: see wal-agent log")] if more > 0 else lines


def lost_lines(lost: LostCalls) -> list[str]:
    """Which calls left their file changes behind: the newest ones."""
    if not lost.count:
        return []
    shown = ", ".join(f"#{c.call} {one_line(show_input(c.tool, c.input), 40)}" for c in lost.calls[-_MAX_LOST:])
    more = f", and {lost.count - _MAX_LOST} more" if lost.count > _MAX_LOST else ""
    are = "are not" if lost.sure else "may not be"
    return [row("lost", f"file changes that {are} here, of {plural(lost.count, 'call')}: {shown}{more}")]


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
