"""`wal-agent checkpoint`: make a checkpoint of a running job, and list, show and compare those that its log has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wal_agent.answers import JsonAnswer, answer_json
from wal_agent.cli.display import STATUS, answer_lines, answer_table
from wal_agent.cli.options import HERE, AsJson, JobOptions, read_input, with_job
from wal_agent.clock import SystemClock
from wal_agent.errors import Damaged, UsageError
from wal_agent.text import answer, command, duration, lines, plural, say, shorten, size, timestamp

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext
    from wal_agent.conversation.checkpoint import Document, ShownCheckpoint
    from wal_agent.wal.state import CheckpointAt, State

MAX_PLAN_FILE = 64 << 10  # bytes


class CheckpointMade(JsonAnswer, frozen=True):
    """`wal-agent checkpoint`."""

    job: str
    number: int


app = typer.Typer(
    help="Save a summary of the job's state now, or show the saved ones.\n\n"
    "For whoever goes on with a long job: what it works on, how far it is, what comes next.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
@with_job
def checkpoint(
    context: typer.Context,
    title: Annotated[str, typer.Option("--title", help="What the job works on.", metavar="TEXT")] = "",
    phase: Annotated[
        str,
        typer.Option("--phase", help="What it does now.", metavar="gathering|planning|executing|reviewing"),
    ] = "",
    progress: Annotated[
        int | None, typer.Option("--progress", min=0, max=100, help="How much of it is done, in percent.")
    ] = None,
    note: Annotated[
        str, typer.Option("--note", help="What the next agent or person should know.", metavar="TEXT")
    ] = "",
    plan: Annotated[
        str | None,
        typer.Option(
            "--plan",
            help='Markdown list of the steps ("-" for stdin); "- [x]" is done. For agents without a plan tool.',
            metavar="FILE",
        ),
    ] = None,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Make a checkpoint of a running job now.

    Typed by the agent as a shell command, or by a person on the machine that runs the job. What is not given stays as
    it was said before. The run makes checkpoints by itself too, see --checkpoint of `wal-agent run`.
    """
    from wal_agent.operate.checkpoint import checkpoint_job, checkpoint_own_run

    if context.invoked_subcommand is not None:
        if title or phase or note or progress is not None or plan is not None or json or which != HERE:
            raise UsageError(
                f"These options do not belong in front of `{context.invoked_subcommand}`, which makes no checkpoint.",
                f"Put them behind it: wal-agent checkpoint {context.invoked_subcommand} --help",
            )
        return
    question: dict[str, Any] = {"title": title, "phase": phase, "note": note}
    if progress is not None:
        question["progress"] = progress
    if plan is not None:
        question["plan"] = _read_plan(plan)
    done, options = checkpoint_own_run(os.environ, question) if not which.is_named else None, ""
    if done is None:
        at = which.open()
        done, options = checkpoint_job(at.bucket, at.keys, question), at.options()
    if json:
        answer_json(CheckpointMade(str(done["job"]), int(done["number"])))
        return
    say(f"checkpoint {done['number']} of job {done['job']} is saved. To see it: {command('checkpoint show', options)}")


def _read_plan(name: str) -> list[dict[str, str]]:
    from wal_agent.conversation.checkpoint import parse_markdown_plan

    data = read_input(name, MAX_PLAN_FILE)
    if len(data) > MAX_PLAN_FILE:
        raise UsageError(f"{name} has more than {MAX_PLAN_FILE} bytes.", "A plan is a list of steps, a line each.")
    return [{"text": step.text, "state": step.state} for step in parse_markdown_plan(data.decode("utf-8", "replace"))]


@app.command("list")
@with_job
def list_checkpoints(
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """List the job's checkpoints, the newest first.

    The newest 48 are kept, each for the days of --checkpoint-ttl-days (`wal-agent run`). One whose SHA-256 does not
    match is named and left out.
    """
    from wal_agent.conversation.checkpoint import CheckpointList, list_usable

    at = which.open()
    readable, problems = list_usable(_sound_part(at), SystemClock().now())
    lines(problems)
    if json:
        answer_json(CheckpointList(tuple(_row(kept, document) for kept, document in readable)))
        return
    if not readable:
        say(f"job {at.keys.job} has no checkpoint. To make one while it runs: {command('checkpoint', at.options())}")
        return
    rows = [_cells(kept, document) for kept, document in readable]
    answer_table(("N", "RECORD", "TIME", "TRIGGER", "SIZE", "TASK"), rows, right=("N", "RECORD", "SIZE"))


def _row(kept: CheckpointAt, document: Document) -> ShownCheckpoint:
    from wal_agent.conversation.checkpoint import ShownCheckpoint

    task = document.active_task
    return ShownCheckpoint(
        number=document.sequence_number,
        checkpoint_id=document.checkpoint_id,
        record=kept.seq,
        epoch=document.epoch,
        time=document.time,
        trigger=document.trigger,
        role=document.role,
        size=len(kept.record.body),
        title=task.title if task else "",
        phase=task.phase if task else "",
        progress=task.progress if task else 0,
    )


def _cells(kept: CheckpointAt, document: Document) -> tuple[str, ...]:
    task = document.active_task
    what = f"{task.phase}, {task.progress} %: {task.title}" if task else ""
    trigger = shorten(document.trigger.replace("_", " "), 40)
    made, big = timestamp(kept.record.time), size(len(kept.record.body))
    return str(document.sequence_number), str(kept.seq), made, trigger, big, shorten(what, 120)


@app.command("show")
@with_job
def show(
    number: Annotated[
        int | None, typer.Argument(help="The checkpoint's number (default: the newest).", metavar="[N]")
    ] = None,
    at_record: Annotated[
        str | None,
        typer.Option("--at", help="Show the state as of this record or time.", metavar="RECORD|TIME"),
    ] = None,
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Show a checkpoint: the task, its plan, the newest calls and the working tree.

    With --at it is built from the log as of any record that is kept, whether there was a checkpoint or not.
    """

    if number is not None and at_record is not None:
        raise UsageError("A number and --at do not go together.")
    at = which.open()
    document = _build(at, at_record) if at_record is not None else _find(at, number)
    if json:
        answer_json(document)
    else:
        answer_lines(_rows(document), STATUS)


def _build(at: JobContext, record: str) -> Document:
    from wal_agent.conversation.checkpoint import Occasion, checkpoint_of, read_document
    from wal_agent.wal.damage import sound_state

    found = at.read_log(record)
    state = sound_state(found)
    agent = state.openings[-1].opening.agent if state.openings else at.name
    return read_document(checkpoint_of(state, Occasion(at.keys.job, agent, found.seq, "manual", state.time)))


def _sound_part(at: JobContext) -> State:
    """The state of the log, or of what stands in front of its damage, which is said. Damaged: nothing does."""
    from wal_agent.wal.damage import damaged_log_error

    found = at.read_log()
    if found.damage is not None:
        error = damaged_log_error(found.damage)
        if found.damage.good < 1:
            raise error
        lines([error.what])
    return found.state


def _find(at: JobContext, number: int | None) -> Document:
    """The checkpoint with this number, or the newest one that can be used. UsageError; Damaged."""
    from wal_agent.conversation.checkpoint import newest_usable, read_document

    state = _sound_part(at)
    if number is None:
        found = newest_usable(state)
        lines([*found.problems])
        if found.document is None:
            raise UsageError(
                f"Job {at.keys.job} has no checkpoint.",
                f"Build one from the log: --at RECORD ({command('log', at.options())})",
            )
        return found.document
    for kept in state.checkpoints:
        if kept.record.number == number:
            try:
                return read_document(kept.record)
            except ValueError as error:
                raise Damaged(
                    f"Checkpoint {number} of job {at.keys.job} cannot be used: {error}.",
                    f"Build it from the log: {command(f'checkpoint show --at {kept.seq}', at.options())}",
                ) from error
    raise UsageError(
        f"Job {at.keys.job} keeps no checkpoint {number}.", f"See: {command('checkpoint list', at.options())}"
    )


@app.command("diff")
@with_job
def diff(
    first: Annotated[int, typer.Argument(help="The number of one checkpoint.", metavar="A")],
    second: Annotated[int, typer.Argument(help="The number of another.", metavar="B")],
    which: JobOptions = HERE,
    json: AsJson = False,
) -> None:
    """Show what differs between two checkpoints, as a unified diff of their JSON.

    With --json: both. Exit code 1 when they differ, as diff(1).
    """
    from wal_agent.conversation.checkpoint import CheckpointDiff, compare

    at = which.open()
    a, b = _find(at, first), _find(at, second)
    found = compare(a, b)
    if json:
        answer_json(CheckpointDiff((a, b)))
    else:
        answer(found)
    raise typer.Exit(1 if found else 0)


def _rows(document: Document) -> list[str]:
    from wal_agent.conversation.checkpoint import describe_counts, marked_steps, seconds_of

    task, context, tree = document.active_task, document.context, document.workspace
    made = seconds_of(document.time)
    rows = [
        ("checkpoint", f"{document.sequence_number} of job {document.job} ({document.agent}, {document.trigger})"),
        ("made", f"{duration(max(0.0, SystemClock().now() - made))} ago, of record {document.record}"),
    ]
    if task is not None:
        rows += [
            ("task", task.title),
            ("", f"{task.phase}, {task.progress} %, begun {timestamp(seconds_of(task.started_at))}"),
        ]
    if counted := describe_counts(context):
        rows.append(("plan", counted))
    rows += [("", f"[{'x' if done else ' '}] {step}") for done, step in marked_steps(context)]
    if context.draft:
        rows.append(("note", " ".join(context.draft.split())))
    if tree.commit or tree.branch:
        rows.append(("repository", f"{tree.branch or 'no branch'} at {tree.commit[:12] or 'no commit'}"))
    if tree.uncommitted:
        rows.append(("", f"{plural(tree.uncommitted, 'call')} may have changed files that no capture has yet"))
    rows += [("changed" if n == 0 else "", path) for n, path in enumerate(tree.modified)]
    rows += [("read" if n == 0 else "", path) for n, path in enumerate(context.gathered)]
    for n, call in enumerate(reversed(context.tool_calls[-10:])):
        how = "open" if call.ok is None else "ok" if call.ok else "failed"
        rows.append(("calls" if n == 0 else "", f"#{call.call} {call.tool} {how} {' '.join(call.input.split())}"))
    return [f"{name:<11} {shorten(text, 160)}" for name, text in rows]
