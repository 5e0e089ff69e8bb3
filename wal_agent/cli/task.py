"""`wal-agent task PROMPT`: run a bounded investigation in a job of its own, and print only its result."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from wal_agent.cli.options import AsJson, BucketUrl, JobName, KeyCommand, KeyFile, complete_agent
from wal_agent.text import answer, answer_json, printable, say

if TYPE_CHECKING:
    from wal_agent.cli.options import JobContext
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
            help="Refuse the child's tool calls after so many, those of its own tasks included; 0: no limit.",
            metavar="N",
        ),
    ] = 0,
    budget_seconds: Annotated[
        float, typer.Option("--budget-seconds", min=1, help="End the child after so many seconds.", metavar="SECONDS")
    ] = 3600.0,
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
    from wal_agent.cli.options import open_existing_job, unknown_agent_error
    from wal_agent.errors import UsageError
    from wal_agent.recovery.tasks import child_args, child_job, depth_of
    from wal_agent.supervise.intervene import sound_state
    from wal_agent.supervise.provenance import vouched_args
    from wal_agent.supervise.task_child import Place, read_result, run_child
    from wal_agent.supervise.tasks import spent_by
    from wal_agent.wal.reader import replay

    at = open_existing_job(None, bucket, job, encryption_key_file, encryption_key_command)
    name = agent or at.agent.name
    if name not in AGENTS:
        raise unknown_agent_error(name)
    if AGENTS[name].capabilities.hookless is not None:
        raise UsageError(f"{name} cannot do a task: it reads no prompt.", "Name another one with --agent.")
    state = sound_state(replay(at.bucket, at.keys))
    depth = depth_of(at.keys.job, state.task)
    made = child_job(at.keys.job, name, prompt, depth, max_depth)
    # What the caller was started with, where it is the same agent: only what was typed on this machine, so that who
    # writes the bucket chooses neither model nor permissions.
    same = state.home_opening is not None and state.home_opening.agent == name
    caller = vouched_args(os.environ, at.settings.bucket, at.keys.job, state) if same else ()
    args = child_args(AGENTS[name], caller, prompt)
    child = Place(at.bucket, made, name, _options(at))
    start = _begin(at, state, made, depth, budget_calls)
    code, said = run_child(child, args, start, budget_seconds, once=True)
    if code:
        for line in said.splitlines()[-5:]:
            say(printable(line))
        if budget_calls and spent_by(at.bucket, child.state()) > budget_calls:
            say(f"its budget of {budget_calls} calls is used up: a larger --budget-calls carries on.")
        say(f"the task did not come to its end ({code}). The same command carries on.")
        say(f"its log: wal-agent log --job {made}")
        raise typer.Exit(code)
    form = read_result(child, budget_calls)
    if json:
        answer_json(asdict(form))
    else:
        answer([printable(line) for line in form.render().splitlines()])


def _options(at: JobContext) -> tuple[str, ...]:
    """Of the child's run: the caller's bucket and key."""
    settings = at.settings
    options = ["--bucket", settings.bucket]
    if settings.encryption_key_file:
        options += ["--encryption-key-file", str((at.workspace / settings.encryption_key_file).resolve())]
    if settings.encryption_key_command:
        options += ["--encryption-key-command", settings.encryption_key_command]
    return tuple(options)


def _begin(at: JobContext, state: State, child: str, depth: int, budget: int) -> TaskStart:
    """Have the caller's log name the task, behind a checkpoint; what the child's run is given."""
    from wal_agent.errors import PersonNeeded
    from wal_agent.supervise.hook_server import outer_runs
    from wal_agent.supervise.task_child import begin_at_rest, begin_in_run, start_of

    said = begin_in_run(os.environ, at.keys.job, child)
    if said is None and (above := outer_runs()):
        raise PersonNeeded(
            f"Run {above[0].run}, whose tool typed this, does not answer for job {at.keys.job}: no task was begun.",
            "Leave --job out: the task is then one of the run that it is typed in.",
        )
    if said is None:
        said = begin_at_rest(at.bucket, at.keys, at.settings.ttl, os.environ, at.key_id, state, child)
    return start_of(at.keys.job, said, depth, budget)
