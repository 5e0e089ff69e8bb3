"""`wal-agent status`, once or followed on a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from wal_agent.answers import answer_json
from wal_agent.cli.display import STATUS, answer_lines, draw_in_place
from wal_agent.cli.options import HERE, AsJson, JobOptions, check_seconds, with_job
from wal_agent.errors import Damaged, Unavailable
from wal_agent.records import state_text
from wal_agent.redact import redact
from wal_agent.text import (
    answer,
    command,
    duration,
    lines,
    moment,
    plural,
    quote_word,
    shorten,
    size,
    start_words,
    timestamp,
    unheard,
    unproven_text,
)

if TYPE_CHECKING:
    from wal_agent.bucket.base import Bucket
    from wal_agent.cli.job import JobContext
    from wal_agent.cli.view import Call, Crash, Files, Step, View
    from wal_agent.wal.reader import Replay


SHORTEST, LONGEST = 0.2, 86_400.0  # seconds between two looks
ReadView = Callable[["Replay"], tuple["View | None", "Replay", str]]

MAX_RECORDS = 5
WIDEST = 500  # characters of one row
MAX_STEPS_SHOWN = 10
MAX_CALLS_SHOWN = 20
_STARTS = ("crashed", "due", "released", "unlocked")  # states from which a start carries on at once

_LATE = {
    "model": "waiting for the model",
    "approval": "the agent waits for you, or runs what you allowed,",
    "tool": "a tool runs",
    "start": "the agent has not begun",
    "exit": "its turn is over and the agent has not ended",
}


def watch_status(
    at: JobContext, every: float, env: Mapping[str, str], options: str = "", json: bool = False
) -> NoReturn:
    """Show the job anew every `every` seconds, until Ctrl-C: in place on a terminal, else a table (or an object) for
    each look. A bucket that is away for a while is told and waited for. Damaged, Denied; UsageError."""

    from wal_agent.cli.view import continue_view
    from wal_agent.wal.damage import CheckedBlobs
    from wal_agent.wal.names import name_to_show

    check_seconds("--every", every, SHORTEST, LONGEST)
    known = CheckedBlobs()

    name, advice = name_to_show(at.bucket, at.keys.job), _bucket_advice(at.bucket)

    def look(before: Replay) -> tuple[View | None, Replay, str]:
        """The job, or why the bucket could not be asked now."""
        try:
            view, found = continue_view(at.bucket, at.keys, env, at.key_id, before, known, options)
        except Unavailable as error:
            return None, before, str(error)
        return msgspec.structs.replace(view, name=name, advice=advice), found, ""

    def rows(view: View) -> list[str]:
        return status_rows(view, options, _following(at, view))

    if json or not (sys.stdout is not None and sys.stdout.isatty()):
        _in_turn(look, every, json, rows)
    else:
        _in_place(look, every, rows, lambda: _last_records(at))


def _last_records(at: JobContext) -> list[str]:
    """The newest records, the newest first; none while the bucket is away. What is damaged is named by the view."""
    from wal_agent.cli.log import as_line, entries_of, read_newest

    try:
        page = read_newest(at.bucket, at.keys, MAX_RECORDS)
    except Unavailable:
        return []
    return [as_line(entry) for entry in reversed(list(entries_of(page.segments))[-MAX_RECORDS:])]


def _following(at: JobContext, view: View) -> str:
    from wal_agent.supervise.machine import this_host

    return next_command(view, at.options(), at.workspace, this_host(os.environ, Path(os.devnull)).name)


def _in_turn(look: ReadView, every: float, json: bool, rows_of: Callable[[View], list[str]]) -> NoReturn:

    from wal_agent.wal.reader import Replay

    before, waits = Replay(), False
    while True:
        view, before, trouble = look(before)
        if view is None:
            lines([f"wal-agent: waiting: {trouble}"])
        elif json:
            answer_json(view)
        elif view.state != "none":
            answer([*rows_of(view), ""])
        elif not waits:
            lines([f"wal-agent: {no_job_text(view)}"])
        waits = view.state == "none" if view is not None else waits
        time.sleep(every)


def _in_place(
    look: ReadView, every: float, rows_of: Callable[[View], list[str]], records: Callable[[], list[str]]
) -> NoReturn:
    from wal_agent.wal.reader import Replay

    before, seen, shown, newest = Replay(), -1, list[str](), list[str]()

    def frame() -> tuple[list[str], list[str]]:
        nonlocal before, seen, shown, newest
        view, before, trouble = look(before)
        if view is not None:
            shown = [no_job_text(view)] if view.state == "none" else rows_of(view)
            if before.seq != seen:
                newest, seen = records(), before.seq
        return screen_rows(shown, newest, trouble, every), shown

    draw_in_place(frame, STATUS, every)


def screen_rows(shown: list[str], records: list[str], trouble: str, every: float) -> list[str]:
    """Return the rows of the screen: what must not be cut off by a low window comes first."""
    rows = [f"every {every:g} s; Ctrl-C ends it{f'; waiting: {trouble}' if trouble else ''}", "", *shown]
    return [*rows, "", "last records", *records] if records else rows


@with_job
def status(
    which: JobOptions = HERE,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option("--every", help="Seconds between two refreshes with --watch.")] = 2.0,
    json: AsJson = False,
) -> None:
    """Show lease holder, phase, unsaved data, unresolved calls and crash count.

    If the log is damaged, the job is shown as of the last intact record; if saved data is missing, the newest state
    that can be restored is named. The exit code is then 73. --watch also waits for a job that does not exist yet.
    """

    from wal_agent import notify
    from wal_agent.cli.view import read_view
    from wal_agent.wal.names import name_to_show

    check_seconds("--every", every, SHORTEST, LONGEST)
    at = which.open()
    if watch:
        watch_status(at, every, os.environ, at.options(), json=json)
    view = read_view(at.bucket, at.keys, os.environ, at.key_id, at.options())
    advice = _bucket_advice(at.bucket) if view.state != "none" else ()
    view = msgspec.structs.replace(view, name=name_to_show(at.bucket, at.keys.job), advice=advice)
    if json:
        answer_json(view)
    elif view.state != "none":
        trouble = notify.trouble(os.environ)
        rows = status_rows(view, at.options(), _following(at, view))
        rows += [f"{'messages':<11} {shorten(trouble, WIDEST)}"] if trouble else []
        answer_lines(rows, STATUS)
    if view.state == "none":
        raise at.missing()
    if view.damage:
        raise Damaged(view.damage)


def _bucket_advice(bucket: Bucket) -> tuple[str, ...]:
    """What a person should change in the bucket's own settings, where it says so in time."""
    from wal_agent.bucket.upkeep import TIME, advise, upkeep_of
    from wal_agent.concurrency import call_with_timeout

    if bucket.url.startswith(("file:", "memory:")):
        return ()
    found = call_with_timeout(TIME, lambda: upkeep_of(bucket), None)
    return tuple(redact(each) for each in advise(found)) if found is not None else ()


def status_rows(view: View, options: str = "", following: str = "") -> list[str]:
    """The answer's rows. `options`: what a command for this job has to say; `following`: see next_command."""
    from wal_agent.recovery.lease_policy import REMOVED

    now = view.owner_now or time.time()  # what is compared with it is of the owner's clock
    where = f"{view.host} pid {view.pid}, epoch {view.epoch}"
    if view.state == "running":
        where += f", up {duration(max(0.0, now - view.started))}, heartbeat {duration(view.heartbeat_age)} ago"
    rows = [("name", view.name)] if view.name else []
    rows.append(("job", f"{view.job:<19} {view.bucket}"))
    if view.state == "running":
        rows.append(("state", f"{'running':<19} {where}"))
    else:
        rows += [("state", describe_state(view, options)), ("last on", where)]
        rows += [("next", following)] if following else []
    if view.state == "due":
        for_what = f" ({view.reason})" if view.reason else ""
        rows.append(("", f"its pause was over at {timestamp(view.until)}{for_what}"))
    elif view.reason not in ("", "completed", REMOVED) and view.state != "paused" and view.way != "failed":
        rows.append(("reason", view.reason))
    overdue = view.state == "running" and view.waiting is None and view.heartbeat_age > view.ttl / 2
    if overdue and view.mute:
        pid = view.pid
        rows.append(("", f"its process does not answer. If it is stopped: kill -CONT {pid}. To end it: kill -9 {pid}"))
    elif overdue:
        rows.append(("", f"if {view.host} is off for good: {command(f'unlock --epoch {view.epoch} --now', options)}"))
    if view.spool:
        rows.append(("spool", f"{view.spool} on {view.host} may hold what the bucket does not"))
    if view.key:
        rows.append(("encrypted", f"with key {view.key}"))
    if view.state == "running":
        phase = f"{view.phase}, {duration(view.phase_age)}" if view.phase_age else view.phase
        rows.append(("phase", f"{phase:<19} {view.tool or unheard(view.phase)}".rstrip()))
        for late in view.late:
            rows.append(("", f"{_LATE[late.what]} since {duration(late.seconds)}{late.tool and ': ' + late.tool}"))
    waiting = "nothing waiting"
    if view.waiting is None:
        waiting = "what waits is known on its own machine only" if view.state == "running" else ""
    elif view.waiting.lost:
        waiting = view.waiting.lost
    elif view.waiting.bytes:
        waiting = f"{size(view.waiting.bytes)} not saved yet, the oldest for {duration(view.waiting.age)}"
        if view.waiting.spooled:
            waiting += f"; spooling: {view.waiting.spooled} segments are on this machine's disk only"
    newest = f"last record {duration(max(0.0, now - view.last_record))} ago" if view.last_record else "no record yet"
    last = view.locked or f"{newest}, {waiting}".rstrip(", ")
    rows.append(("log", f"{'record ' + str(view.record):<19} {last}"))
    if view.session:
        program = f"{view.agent} {view.agent_version}".strip()
        calls = plural(view.calls, "tool call") if view.agent != "generic" else "calls are not logged"
        what = f"{program}, {calls}, {size(view.session_bytes)} saved"
        rows.append(("session", f"{view.session[:8]:<19} {what}"))
    if (r := view.rewritten) is not None:
        what = {"rewind": "rewound", "compact": "compacted", "undo": "put back"}[r.kind]
        tokens = f"about {r.tokens:,} tokens before, {r.left:,} after"
        rows.append(("", f"{what} {timestamp(r.time)}: {tokens} ({command(f'trace show {r.n}', options)})"))
    if view.messages:
        when = "next step" if view.state == "running" else "next start"
        rows.append(
            ("messages", f"{plural(view.messages, 'message')} for the agent's {when} ({command('inbox', options)})")
        )
    if view.files is not None:
        rows += file_rows(view.files, now, view.state == "running")
    if view.crashes:
        rows.append(("crashes", str(len(view.crashes))))
        rows += [("", describe_crash(c)) for c in view.crashes[-5:]]
    rows += call_rows(view, options)
    rows += [describe_step(step, now, options) for step in view.steps[:MAX_STEPS_SHOWN]]
    if len(view.steps) > MAX_STEPS_SHOWN:
        rows.append(("", f"and {len(view.steps) - MAX_STEPS_SHOWN} more steps: {command('state list', options)}"))
    rows += [
        ("unlogged", f"#{c.call} {c.tool} `{c.input}`   {state_text(c.state)}; it ran before it was logged")
        for c in view.unlogged[:MAX_CALLS_SHOWN]
    ]
    if len(view.unlogged) > MAX_CALLS_SHOWN:
        rows.append(("", f"and {len(view.unlogged) - MAX_CALLS_SHOWN} more calls: {command('log', options)}"))
    rows += [("bucket", advice) for advice in view.advice]
    return [f"{name:<11} {shorten(redact(text), WIDEST)}" for name, text in rows]


def call_rows(view: View, options: str) -> list[tuple[str, str]]:
    """The rows of calls without an end: those that a person is asked about come first."""
    calls = sorted(view.unsettled, key=lambda call: not call.asks)
    rows = [describe_call(call, view, options) for call in calls[:MAX_CALLS_SHOWN]]
    if len(calls) > MAX_CALLS_SHOWN:
        rows.append(("", f"and {len(calls) - MAX_CALLS_SHOWN} more calls: {command('effects --unsettled', options)}"))
    return rows


def file_rows(f: Files, now: float, running: bool) -> list[tuple[str, str]]:
    """What of the working tree is saved, and what is not."""
    from wal_agent.capture.candidates import NESTED, OUTSIDE, describe_apart, describe_unexpected

    if f.off:
        return [("files", "not saved: captures are off in this run")]
    if not f.saved:
        never = "not saved yet" if running else "never saved"
        return [("files", f"{never}{f': {f.problem}' if f.problem else ''}")]
    rows = [
        ("files", f"{f'saved {duration(max(0.0, now - f.saved))} ago':<19} {plural(f.files, 'file')}, {size(f.bytes)}")
    ]
    if f.to_go:
        rows.append(
            ("", f"not saved yet: {plural(f.to_go, 'file')} ({size(f.to_go_bytes)}): {', '.join(f.to_go_names)}")
        )
    if left := describe_unexpected(f.left_out, f.left_out_more):
        rows.append(("", f"left out: {left}"))
    if nested := describe_apart(f.left_out, NESTED):
        rows.append(("", f"of repositories inside only the commit is saved, and no file: {nested}"))
    if outside := describe_apart(f.left_out, OUTSIDE):
        rows.append(("", f"linked worktrees outside of this folder are not saved (--worktrees all): {outside}"))
    if f.behind:
        count = plural(len(f.behind) + f.behind_more, "call")
        newest = f"the newest is #{f.behind[-1]}"
        rows.append(("", f"has the changes of calls up to #{f.holds}; {count} ended since, {newest}"))
    if f.problem:
        rows.append(("", f.problem))
    return rows


def next_command(view: View, options: str, folder: Path, host: str) -> str:
    """The command that carries the job on, to be pasted in `folder` on `host`; "" where none does, or a person is to
    look first. `options`: what a command for this job has to say. Pure."""
    if view.state not in _STARTS or view.way == "halted":
        return ""
    cd = "" if view.workspace in ("", str(folder)) or view.host != host else f"cd {quote_word(view.workspace)} && "
    words = start_words(view.agent)
    again = " --continue" if words != "resume" and _is_over(view) else ""
    return cd + command(words, options) + again


def _is_over(view: View) -> bool:
    """Whether a start begins a new conversation, although an open call keeps the job from being closed (R6; the plan's
    `cause`)."""
    asked = [call.answered for call in view.unsettled]  # none where the log cannot be read
    return view.state == "released" and view.reason == "completed" and bool(asked) and all(asked)


def describe_state(view: View, options: str = "") -> str:
    """What the job does, in the word that `list` has too, and what is next."""
    from wal_agent.recovery.lease_policy import REMOVED, failure_text

    match view.state:
        case "crashed":
            return "crashed, not recovered yet; the next start recovers it"
        case "closed" if view.reason == REMOVED:
            return "closed, deleted; the next start under this name begins anew"
        case "closed" if view.way == "failed":
            return f"closed, {failure_text(view.reason)}"
        case "closed":
            words = "closed, nothing is unfinished" if view.reason == "completed" else "closed"
            return "; ".join(filter(None, (words, unproven_text(view.unproven))))
        case "paused":
            until = moment(view.until, view.until - view.left, exact=view.left < 600)
            return f"paused until {until} (in {duration(view.left)}): {view.reason or 'no reason was given'}"
        case "unlocked":
            return "unlocked by a person"
        case "due":
            return "due, its pause is over; the next start continues it"
        case "released" if view.way == "halted":
            return f"released, a person is needed; see {command('log --crashes', options)}"
        case "released" if view.way == "stopped":
            return "released, stopped by wal-agent; the next start continues it"
        case "released" if view.way == "failed":
            return f"released, {failure_text(view.reason)}; the next start continues it"
        case "released" if _is_over(view):
            return "released, it had come to its end and nothing has looked at an open call; --continue goes on with it"
        case "released":
            return "released, everything is saved; the next start continues it"
        case _:
            return view.state


def describe_crash(c: Crash) -> str:
    from wal_agent.recovery.lease_policy import describe_class

    if c.cls:
        return f"{timestamp(c.taken_over)}  agent died on {c.host} (epoch {c.epoch}): {describe_class(c.cls)}"
    lost = f"wal-agent died on {c.host}" if c.same_host else f"{c.host} lost"
    return f"{timestamp(c.taken_over)}  {lost} (epoch {c.epoch}), taken over then"


def describe_call(call: Call, view: View, options: str = "") -> tuple[str, str]:
    """The row of an open call: its state, and what is next. A person is asked only where a recovery has looked in
    vain."""
    text = f"#{call.call} {call.tool} `{call.input}`"
    if call.asks:
        works = view.state == "running" and view.phase != "awaiting_user"
        hint = f"resolve: {command(f'ack {call.call}', options)} --done (or --not-done)"
        if works and not call.answered:
            hint = "the agent was asked to check"
        looked = f"   the agent looked with {', '.join(f'#{n}' for n in call.looked[-3:])}" if call.looked else ""
        said = f"   the agent says: {call.because}" if call.because else ""
        return state_text(call.state), f"{text}{looked}{said}   {hint}"
    return state_text(call.state), f"{text}   {_next_step(call, view.state == 'running')}".rstrip()


def _next_step(call: Call, live: bool) -> str:
    """`live`: its run works."""
    if call.finding:
        return "harmless to repeat" if call.finding == "unknown" else f"checked: {call.finding.replace('_', ' ')}"
    if call.held == "serves":
        return "it is to keep running" if live else "it ended with its run"
    if not live:
        return "the next start will check whether it happened"
    return {"": "", "cut": "it may have begun", "runs_on": "in the background"}[call.held]


def describe_step(step: Step, now: float, options: str) -> tuple[str, str]:
    """The row of a step that has no end."""
    text = f"step {step.step} `{step.command}`"
    if step.running:
        return "open", f"{text}   for {duration(max(0.0, now - step.since))}"
    ways = f"type it again with --verify, or: {command(f'ack {step.step}', options)} --done (or --not-done)"
    return "open", f"{text}   its run ended before it did; {ways}"


def no_job_text(view: View) -> str:
    return f"no job {view.job} in {view.bucket} yet; it is shown as soon as there is one"
