"""`wal-agent run AGENT [options] -- ARGS`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from wal_agent.cli.options import complete_agent, settings_for, unknown_agent_error, with_settings
from wal_agent.text import lines, say

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}


@with_settings
def run(
    context: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(
            help="The agent to run (see: wal-agent agents).", metavar="AGENT", autocompletion=complete_agent
        ),
    ],
    flags: Mapping[str, object],
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Take over a job whose owner spooled, without the records that only that machine has."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another machine holds the job.")] = False,
    exit_on_pause: Annotated[
        bool, typer.Option("--exit-on-pause", help="While the job is paused: exit 75 instead of waiting.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start a new session although the last one was cut off.")
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Fork: start a new job where this one was at a record or a time (local, or with its zone).",
            metavar="RECORD|TIME",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Exit 0 without running if the job is already complete.")
    ] = False,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Resume the last session although it is complete.")
    ] = False,
) -> None:
    """Run an agent under the log; after a crash, on any machine, the same command carries on.

    Everything after `--` goes to the agent as it is:  wal-agent run gemini -- -y -p "fix the tests"

    The exit code is the agent's own; ours are 64 usage, 69 bucket unreachable, 70 bug, 73 log damaged, 74 not done
    (the agent ended with 0 inside its turn), 75 not now (the job runs elsewhere), 76 taken over, 77 permission, 78
    configuration or hooks, 79 a person is needed, 80 crash loop, 143 drained.
    """
    from wal_agent import notify
    from wal_agent.agents import AGENTS
    from wal_agent.cli.listeners import attach_listeners, report_refusals
    from wal_agent.errors import UsageError
    from wal_agent.supervise.options import RunOptions, Screen, Waiting
    from wal_agent.supervise.restart import is_complete, run_with_restarts

    if agent not in AGENTS:
        raise unknown_agent_error(agent)
    if any("\udc80" <= c <= "\udcff" for text in context.args for c in text):
        raise UsageError("An argument for the agent is not UTF-8 text, so it could not be logged.")
    if fresh and continue_:
        raise UsageError("--fresh starts a new session and --continue resumes the last one: use only one of them.")
    workspace = Path.cwd().resolve()
    screen = Screen(say, lines, Waiting(say).waiting_for)
    attended = sys.stdin.isatty() and sys.stderr.isatty()
    with report_refusals(os.environ, flags, agent, workspace, attended):
        settings = settings_for(agent, workspace, flags)
        if settings.sources["hang_timeout"] == "flag" and AGENTS[agent].capabilities.hookless:
            raise UsageError(
                f"{agent} tells nothing of itself, so nobody can say that it hangs: leave out --hang-timeout."
            )
        wish = RunOptions(
            agent=AGENTS[agent],
            args=tuple(context.args),
            settings=settings,
            workspace=workspace,
            env=dict(os.environ),
            fresh=fresh,
            go_on=continue_,
            wait=wait,
            accept_loss=accept_loss,
            exit_on_pause=exit_on_pause,
            attended=attended,
        )
        if from_ is not None or once:
            screen.once(settings.origin)
        if from_ is not None:
            from wal_agent.supervise.fork import fork_job

            wish = fork_job(wish, from_, screen)
        if once and is_complete(settings.bucket, settings.job):
            say(f"job {settings.job} has come to its end, so nothing was run (--once).")
            raise typer.Exit
    if trouble := notify.trouble(os.environ, once=True):
        say(trouble)
    with attach_listeners(wish, screen) as watched:
        code = run_with_restarts(watched, screen)
    raise typer.Exit(code)
