"""`wal-agent task PROMPT`: run a bounded investigation in a job of its own, and print only its result."""

from __future__ import annotations

import os
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wal_agent.agents import unknown_agent_error
from wal_agent.answers import answer_json
from wal_agent.cli.options import (
    AsJson,
    BucketUrl,
    JobName,
    JobOptions,
    KeyCommand,
    KeyFile,
    complete_agent,
    read_input,
)
from wal_agent.config import variable_of
from wal_agent.errors import PersonNeeded, UsageError
from wal_agent.safefs import real_path
from wal_agent.text import answer, job_command, printable, say, why_it_failed

if TYPE_CHECKING:
    from wal_agent.cli.job import JobContext
    from wal_agent.supervise.tasks import TaskStart
    from wal_agent.wal.state import State


def task(
    prompt: Annotated[str, typer.Argument(help="What the child agent should find out or do.", metavar="PROMPT")],
    agent: Annotated[
        str,
        typer.Option(
            "--agent", help="The child's agent; default: the caller's.", metavar="AGENT", autocompletion=complete_agent
        ),
    ] = "",
    budget_calls: Annotated[
        int,
        typer.Option(
            "--budget-calls",
            min=0,
            help="Refuse the child's tool calls after this many, including those of its own tasks (0 = no limit).",
            metavar="N",
        ),
    ] = 0,
    budget_seconds: Annotated[
        float, typer.Option("--budget-seconds", min=1, help="End the child after this many seconds.", metavar="SECONDS")
    ] = 3600.0,
    fork: Annotated[
        bool,
        typer.Option("--fork/--fresh", help="Begin in a copy of the caller's conversation; default: in a new one."),
    ] = False,
    schema: Annotated[
        Path | None,
        typer.Option("--schema", help="A JSON Schema that the child's outputs must match.", metavar="FILE"),
    ] = None,
    max_depth: Annotated[
        int, typer.Option("--max-depth", min=1, max=3, help="Refuse a task that is nested deeper.", metavar="N")
    ] = 3,
    bucket: BucketUrl = None,
    job: JobName = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    json: AsJson = False,
) -> None:
    """Run a task in a separate job, and print only its result.

    For an agent with a long investigation: none of its steps gets into the caller's conversation. The same task typed
    again, also after a crash, is the same job: it carries on, or prints the kept result at once.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.conversation.tasks import child_job, depth_of, fork_form, task_text
    from wal_agent.operate.task_child import Question, TaskJob, ask_child, local_file, read_result
    from wal_agent.supervise.provenance import vouched_args
    from wal_agent.supervise.tasks import spent_by
    from wal_agent.wal.damage import sound_state
    from wal_agent.wal.reader import replay

    wanted, text = _read_schema(schema)
    at = JobOptions(None, bucket, job, encryption_key_file, encryption_key_command).open_existing()
    name = agent or at.agent.name
    if name not in AGENTS:
        raise unknown_agent_error(name)
    own = AGENTS[name]
    if own.capabilities.hookless is not None:
        raise UsageError(f"{name} cannot do a task: it reads no prompt.", "Name another one with --agent.")
    state = sound_state(replay(at.bucket, at.keys))
    # What the caller was started with, where it is the same agent: only what was typed on this machine, so that who
    # writes the bucket chooses neither model nor permissions.
    same = state.home_opening is not None and state.home_opening.agent == name
    caller = vouched_args(os.environ, at.settings.bucket, at.keys.job, state) if same else ()
    form: tuple[str, ...] = ()
    if fork:
        if not same:
            raise UsageError(f"{name} cannot go on from a conversation of {at.name}.", "Leave --fork or --agent out.")
        fork_form(own, "", "")  # refused before anything is looked for
        form = fork_form(own, state.session, str(local_file(own, state.session, at.workspace, os.environ)))
    depth = depth_of(at.keys.job, state.task)
    made = child_job(at.keys.job, name, prompt, depth, max_depth, fork=fork)
    child = TaskJob(at.bucket, made, name, child_place(at))
    start = _begin(at, state, made, depth, budget_calls)
    asked = Question(task_text(prompt, text), caller, form, wanted)
    code, said, result = ask_child(child, asked, start, budget_seconds)
    if code:
        for line in why_it_failed(said):
            say(printable(line))
        if budget_calls and spent_by(at.bucket, child.state()) > budget_calls:
            say(f"its budget of {budget_calls} calls is used up; to continue, give a larger --budget-calls.")
        say(f"the task is not complete ({code}). The same command tries again.")
        say(f"its log: {job_command('log', made, at.bucket.url)}")
        raise typer.Exit(code)
    found = read_result(child, result, budget_calls)
    if json:
        answer_json(found)
    else:
        answer([printable(line) for line in found.render().splitlines()])


def _read_schema(path: Path | None) -> tuple[Any, str]:
    """The schema in the file, and its text; None where there is no file."""
    from wal_agent.conversation.json_schema import MAX_BYTES, read_schema

    if path is None:
        return None, ""
    schema = read_schema(read_input(str(path), MAX_BYTES))
    return schema, dumps(schema)


def child_place(at: JobContext) -> dict[str, str]:
    """Variables that give the child's run the caller's bucket and key. Every user of a machine can read arguments."""
    settings = at.settings
    place = {"bucket": settings.bucket}
    if settings.encryption_key_file:
        place["encryption_key_file"] = str(real_path(at.workspace / settings.encryption_key_file))
    if settings.encryption_key_command:
        place["encryption_key_command"] = settings.encryption_key_command
    return {variable_of(key): value for key, value in place.items()}


def _begin(at: JobContext, state: State, child: str, depth: int, budget: int) -> TaskStart:
    """Have the caller's log name the task, behind a checkpoint; what the child's run is given."""
    from wal_agent.operate.task_child import begin_at_rest, begin_in_run, start_of
    from wal_agent.supervise.ancestry import outer_runs
    from wal_agent.supervise.rewrite import Home

    said = begin_in_run(os.environ, at.keys.job, child)
    if said is None and (above := outer_runs()):
        raise PersonNeeded(
            f"Run {above[0].run}, whose tool typed this, does not answer for job {at.keys.job}: no task was begun.",
            "Leave --job out: the task is then one of the run that it is typed in.",
        )
    if said is None:
        home = Home(at.keys.job, at.options().lstrip(), at.agent, at.workspace, os.environ)
        said = begin_at_rest(at.access, home, state, child)
    return start_of(at.keys.job, said, depth, budget)
