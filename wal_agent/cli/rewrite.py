"""`wal-agent mark`, `rewind`, `compact` and `trace`: change what the conversation of a job that rests holds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import typer
from msgspec.structs import replace

from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.options import HERE, AsJson, JobOptions, read_input, with_job
from wal_agent.clock import SystemClock
from wal_agent.errors import UsageError
from wal_agent.redact import redact
from wal_agent.text import answer, command, lines, plural, printable, say, shorten, size, timestamp

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext
    from wal_agent.conversation.rewrite import CompactionPolicy
    from wal_agent.operate.task_child import Summaries
    from wal_agent.supervise.rewrite import Home, Rewritten
    from wal_agent.wal.job import OpenedJob
    from wal_agent.wal.state import RewriteAt, State

T = TypeVar("T")
MAX_COMPACT = 256 << 10  # bytes of a compact form that is given
MAX_LISTED = 40  # turns
USUAL = "turns=40,tokens=120000"  # limits of a compaction, where nothing says them

app = typer.Typer(
    help="Show what rewinds and compactions took out of the conversation.\n\n"
    "For finding a reason or a result again that the agent reads no more.",
    rich_markup_mode=None,
)


class Mark(msgspec.Struct, frozen=True):
    """A named place in the conversation."""

    name: str
    record: int
    time: float


class Marks(JsonAnswer, frozen=True):
    """`wal-agent mark`, without a name."""

    marks: tuple[Mark, ...]


class Marked(JsonAnswer, frozen=True):
    """`wal-agent mark NAME`."""

    job: str
    name: str


class ShownTurn(msgspec.Struct, frozen=True):
    """A turn of the conversation. `tokens`: an estimate; `calls`: how many."""

    turn: int
    time: float
    prompt: str
    tokens: int
    calls: int


class Turns(JsonAnswer, frozen=True):
    """`wal-agent rewind`, without options."""

    turns: tuple[ShownTurn, ...]


class Rewrote(JsonAnswer, frozen=True):
    """`wal-agent rewind` and `compact`. `n`: the number of the trace, 0 where nothing was done; `turns`: that the model
    does not get any more; `tokens` and `left`: estimates, before and after; `placed`: the agent's file here that has
    it, None where the next start puts it into place."""

    job: str
    n: int
    turns: int
    tokens: int
    left: int
    placed: str | None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What a rewind or a compaction took out of the conversation, see Rewrite in wal_agent/records.py."""

    n: int
    kind: str
    session: str
    turns: int
    size: int
    sha256: str
    time: float
    tokens: int
    left: int
    undoes: int
    record: int


class TaskTrace(msgspec.Struct, frozen=True):
    """A task of the job, and where its log names it: None in logs of older versions."""

    job: str
    checkpoint: int | None = None
    record: int | None = None


class Caller(msgspec.Struct, frozen=True):
    """Whose task the job is, and behind which checkpoint of it."""

    job: str
    checkpoint: int


class TraceList(JsonAnswer, frozen=True):
    """`wal-agent trace list`: rewinds and compactions, the newest first, tasks, and the job whose task this one is."""

    traces: tuple[Trace, ...]
    tasks: tuple[TaskTrace, ...]
    caller: Caller | None


class TraceLine(msgspec.Struct, frozen=True):
    """A line of the conversation, redacted; `time` 0: it says none."""

    role: str
    time: float
    text: str


class TraceShow(JsonAnswer, frozen=True):
    """`wal-agent trace show`: of a rewind or a compaction (`trace`), or of a task (`task`: its job)."""

    trace: Trace | None
    task: str
    lines: tuple[TraceLine, ...]


@with_job
def mark(
    name: Annotated[
        str | None, typer.Argument(help="The name of this place (default: list the marks).", metavar="NAME")
    ] = None,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Name this place in the conversation, so that `wal-agent rewind` can return to it.

    The agent (as a shell command) or a person may type it. Using a name again moves the mark.
    """
    from wal_agent.operate.rewrite import mark_at_rest, mark_own_run
    from wal_agent.supervise.rewrite import check_mark

    if name is not None:
        check_mark(name)
        if not which.is_named and (done := mark_own_run(os.environ, name)) is not None:
            _marked(str(done["job"]), name, json)
            return
    at = which.open()
    home = _home(at)
    if name is None:
        marks = at.state().marks
        if json:
            answer_json(Marks(tuple(Mark(n, m.seq, m.record.time) for n, m in marks.items())))
            return
        answer([f"{n} · record {m.seq} · {timestamp(m.record.time)}" for n, m in marks.items()])
        if not marks:
            say(f"no place of this job is marked. To mark this one: {command('mark NAME', at.options())}")
        return
    _act(at, home, lambda opened: mark_at_rest(opened, home, name))
    _marked(at.keys.job, name, json)


def _marked(job: str, name: str, json: bool) -> None:
    if json:
        answer_json(Marked(job, name))
    else:
        say(f"this place of job {job} is marked {name}")


@with_job
def rewind(
    to: Annotated[
        str | None,
        typer.Option("--to", help="A mark, or a record's number (`wal-agent log`).", metavar="NAME|RECORD"),
    ] = None,
    last: Annotated[int, typer.Option("--last", min=0, help="Leave out the newest N turns.")] = 0,
    compact: Annotated[
        str | None,
        typer.Option(
            "--compact",
            help='What replaces them: a file ("-" for stdin), or "auto" for a summary (default: a note).',
            metavar="FILE|auto",
        ),
    ] = None,
    files: Annotated[
        bool,
        typer.Option(
            "--files",
            help="With --to: also restore the working tree of that record; with --undo: the one that was replaced.",
        ),
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="If the job runs: stop it cleanly first, and leave it stopped.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Undo the newest rewind or compaction, if nothing was said since.")
    ] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Take a job's conversation back to an earlier place. Without options: list its turns.

    What was said after that place stays in the log (`wal-agent trace`). --files restores the working tree; no other
    effect is undone, and the agent reads that in a note. A run on this machine pauses for it, then continues; while
    a call runs, the rewind is refused.
    """
    from wal_agent.cli.intervene import stop_run
    from wal_agent.operate.rewind import JobLog, RewindRequest, find_place, rewind_live
    from wal_agent.supervise.ancestry import require_person
    from wal_agent.supervise.live_rewind import FoundRewind, carry_out

    if sum((to is not None, last > 0, undo)) > 1 or (compact is not None and (undo or not (to or last))):
        raise UsageError("Say one of --to, --last and --undo; --compact goes with the first two.")
    if files and not (to or undo):
        raise UsageError("--files goes with --to or --undo.", "A record's number is in: wal-agent log")
    at = which.open(asks=True)
    home = _home(at)
    if not (to or last or undo):
        _list_turns(at, home, json)
        return
    require_person("wal-agent rewind")
    words = compact if compact in (None, "auto") else _words(compact)
    if stop:
        say(stop_run(at).said)
    log = JobLog(at.bucket, at.keys, at.key_id, at.blobs)
    place = find_place(log, home, RewindRequest(to=to, last=last, undo=undo, files=files))
    asked = FoundRewind(place=place, undo=undo, compact=words)
    done = rewind_live(at.bucket, at.keys, asked)
    live = done is not None
    if done is None:
        done = _act(at, home, lambda opened: carry_out(opened, home, asked))
    what = "taken back" if undo else f"rewound: {plural(done.turns, 'turn')} left out"
    _report(at, done, f"{what}, and its run goes on" if live else what, json)


@with_job
def compact(
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Which turns are old: all but the newest N turns, or tokens; by age, each older one. "
            f"[the setting `compact`, else {USUAL}]",
            metavar="turns=N,tokens=N,age=2d",
        ),
    ] = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="How many of the newest turns stay unchanged.")] = 10,
    by_agent: Annotated[
        bool,
        typer.Option("--by-agent", help="Have the agent write the summaries, in a copy of the conversation."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Replace the old turns of a stopped job's conversation by a summary.

    The summary says of each turn what was asked, what was done and what came of it; no model is called for it. With
    --by-agent the agent writes the summaries; those that cannot be used are replaced. The whole turns stay in the log
    (`wal-agent trace`), and `wal-agent rewind --undo` brings them back. The exit code is 0 if nothing is to compact.
    """
    from wal_agent.conversation.rewrite import parse_policy
    from wal_agent.operate.rewrite import foresee_compaction
    from wal_agent.supervise import rewrite
    from wal_agent.supervise.ancestry import require_person

    if policy is not None:
        parse_policy(policy, keep)
    if not dry_run:
        require_person("wal-agent compact")
    at, now = which.open(asks=True), SystemClock().now()
    own = at.settings.compact
    limits = parse_policy(policy or (own if own != "off" else USUAL), keep)
    home = _home(at)
    if dry_run:
        done = foresee_compaction(at.state(), at.blobs, home, limits, now)
    else:
        said = _summaries(at, home, limits) if by_agent else None
        words = said.words if said else None
        done = _act(at, home, lambda opened: rewrite.compact(opened, home, limits, now, words))
    if not done.turns:
        what = f"nothing to compact: about {done.tokens:,} tokens"
    else:
        would = "would be compacted" if dry_run else "compacted"
        what = f"{plural(done.turns, 'turn')} {would}: about {done.tokens:,} tokens before, {done.left:,} after"
    _report(at, done, what, json)


def _summaries(at: JobContext, home: Home, limits: CompactionPolicy) -> Summaries | None:
    """The agent's summaries, and a line on why there are none."""
    from wal_agent.cli.task import child_place
    from wal_agent.operate.task_child import TaskJob, summarize
    from wal_agent.supervise.provenance import vouched_args

    state = at.state()
    same = state.home_opening is not None and state.home_opening.agent == at.agent.name
    caller = vouched_args(os.environ, at.settings.bucket, at.keys.job, state) if same else ()
    place = TaskJob(at.bucket, at.keys.job, at.agent.name, child_place(at))
    found = summarize(place, at.access, home, limits, caller)
    if found is not None and found.fault:
        say(f"no summary of the agent's is used: {printable(found.fault)}")
        say(f"its log: {command(f'log --job {found.job}', at.bucket_option())}")
    return found


@app.command("list")
@with_job
def list_traces(
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """List what rewinds, compactions and tasks took out of the conversation, newest first."""
    at = which.open()
    if not at.name:
        raise at.missing()
    state = at.state()
    traces, tasks = state.rewrites[::-1], _tasks(at, state)
    if json:
        caller = Caller(state.task.job, state.task.checkpoint) if state.task else None
        own = tuple(_task_row(state, child) for child in tasks)
        answer_json(TraceList(tuple(map(_row, traces)), own, caller))
        return
    for trace in traces:
        r = trace.record
        what = f"undoes {r.undoes}" if r.undoes else plural(r.turns, "turn")
        answer([f"{r.n} · {r.kind} · {what} · record {trace.seq} · {timestamp(r.time)} · {size(r.size)}"])
    for child in tasks:
        known = state.tasks.get(child)
        where = f" · checkpoint {known.checkpoint} · record {known.seq}" if known else ""
        answer([f"task · {child}{where}"])
    if tasks:
        say(f"what one did: {command(f'trace show {tasks[0]}', at.bucket_option())}")
    if state.task:
        say(f"this job is a task of {state.task.job}, behind its checkpoint {state.task.checkpoint}")
    if not traces and not tasks:
        say("nothing was taken out of this conversation.")


@app.command("show")
@with_job
def show_trace(
    trace: Annotated[str, typer.Argument(help="A trace's number, or a task's job (`trace list`).", metavar="N|JOB")],
    raw: Annotated[
        bool, typer.Option("--raw", help="The session's file as it was, byte for byte, to stdout; not redacted.")
    ] = False,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Print what a rewind, a compaction or a task kept out of the conversation, redacted."""
    from wal_agent.conversation.tasks import MARK
    from wal_agent.conversation.transcript import parse_lines
    from wal_agent.operate.rewrite import left_out
    from wal_agent.supervise.rewrite import read_main, read_trace

    if raw and sys.stdout.isatty():
        raise UsageError("The file is not for a terminal.", f"For example: wal-agent trace show {trace} --raw > FILE")
    row: Trace | None = None
    if MARK in trace:  # the whole conversation of the task's job
        at = replace(which, job=trace).open()
        whole = read_main(at.state(), at.blobs, at.agent, at.options().lstrip())
        data = whole
    else:
        at = which.open()
        home = _home(at)
        found = next((r for r in at.state().rewrites if str(r.record.n) == trace), None)
        if found is None:
            raise UsageError(f"There is no trace {shorten(trace, 60)}.", f"See: {command('trace list', at.options())}")
        whole, row = read_trace(found, at.blobs) if raw else b"", _row(found)
        data = b"" if raw else b"".join(unit.data for unit in left_out(found, at.blobs, home))
    if raw:
        sys.stdout.buffer.write(whole)
        return
    shown = parse_lines(data)
    if json:
        said = tuple(TraceLine(e.role, e.time, redact(e.text)) for e in shown)
        answer_json(TraceShow(row, "" if row else trace, said))
        return
    for line in shown:
        answer([" · ".join(filter(None, (line.role or "other", timestamp(line.time) if line.time else "")))])
        answer([f"    {printable(row)}" for row in redact(line.text).splitlines() if row.strip()])


# ---- shared


def _home(at: JobContext) -> Home:
    from wal_agent.supervise.rewrite import Home, rewriting_of
    from wal_agent.supervise.worktree import never_captured

    rewriting_of(at.agent)
    env = dict(os.environ)
    private = tuple(never_captured(at.settings, at.agent, env, at.workspace))
    return Home(at.keys.job, at.options().lstrip(), at.agent, at.workspace, env, private)


def _act(at: JobContext, home: Home, act: Callable[[OpenedJob], T]) -> T:
    from wal_agent.operate.at_rest import act_at_rest
    from wal_agent.supervise.rewrite import check_at_rest

    return act_at_rest(at.access, act, lambda state: check_at_rest(state, home))


def _words(name: str) -> str:

    data = read_input(name, MAX_COMPACT)
    if len(data) > MAX_COMPACT or not data.strip():
        raise UsageError(f"{name} is empty or has more than {MAX_COMPACT >> 10} KiB.", "It stays in the conversation.")
    return data.decode("utf-8", "replace")


def _list_turns(at: JobContext, home: Home, json: bool) -> None:
    from wal_agent.conversation.rewrite import tokens_of, turns_of
    from wal_agent.operate.rewrite import read_units

    state = at.state()
    units = read_units(state, at.blobs, home)
    turns = turns_of(units)
    if json:
        of = ((t, units[t.first : t.last]) for t in turns)
        rows = (ShownTurn(t.number, t.time, redact(t.prompt), tokens_of(m), sum(len(u.asks) for u in m)) for t, m in of)
        answer_json(Turns(tuple(rows)))
        return
    if len(turns) > MAX_LISTED:
        say(f"{len(turns) - MAX_LISTED} earlier turns are not shown; --json has all.")
    for turn in turns[-MAX_LISTED:]:
        mine = units[turn.first : turn.last]
        prompt = shorten(redact(turn.prompt).replace("\n", " "), 100) if turn.prompt else "(earlier turns, compacted)"
        parts = (f"{turn.number:>3}", timestamp(turn.time) if turn.time else "", f"{tokens_of(mine):,} tokens", prompt)
        answer([" · ".join(filter(None, parts))])
    say(f"to leave out the newest: {command('rewind', at.options())} --last 1")


def _tasks(at: JobContext, state: State) -> list[str]:
    """The jobs of this job's tasks: those that its log names, and those of older logs, by their names."""
    from wal_agent.conversation.tasks import MARK
    from wal_agent.fleet.jobs import is_job

    named = {n for n in at.bucket.folders("") if n.startswith(f"{at.keys.job}{MARK}") and is_job(n)}
    return [*filter(is_job, state.tasks), *sorted(named - state.tasks.keys())]


def _task_row(state: State, job: str) -> TaskTrace:
    known = state.tasks.get(job)
    return TaskTrace(job, known.checkpoint, known.seq) if known else TaskTrace(job)


def _row(trace: RewriteAt) -> Trace:
    names = (name for name in Trace.__struct_fields__ if name != "record")
    return Trace(**{name: getattr(trace.record, name) for name in names}, record=trace.seq)


def _report(at: JobContext, done: Rewritten, what: str, json: bool) -> None:
    if json:
        placed = str(done.placed) if done.placed else None
        answer_json(Rewrote(at.keys.job, done.n, done.turns, done.tokens, done.left, placed))
        return
    say(f"the conversation of job {at.keys.job}: {what}")
    if done.n:
        where = f"in {done.placed}" if done.placed else "with the next start of the job"
        lines([f"  {row}" for row in done.files])
        lines([f"  in effect {where}", f"  what was there: {command(f'trace show {done.n}', at.options())}"])
