"""`wal-agent run AGENT [options] -- ARGS`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from wal_agent.cli.options import BucketUrl, JobName, KeyCommand, KeyFile, settings_for
from wal_agent.cli.screen import lines, say

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}


def run(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="The agent to run (see: wal-agent agents).", metavar="AGENT")],
    bucket: BucketUrl = None,
    job: JobName = None,
    ttl: Annotated[
        float | None, typer.Option("--ttl", help="Lease time in seconds: so long a dead machine keeps the job. [30]")
    ] = None,
    autosave: Annotated[
        float | None, typer.Option("--autosave", help="Save at least so often, in seconds. [10]")
    ] = None,
    drain: Annotated[
        float | None, typer.Option("--drain", help="Seconds that SIGTERM gives to save and stop. [20]")
    ] = None,
    preemption: Annotated[
        str | None,
        typer.Option(
            "--preemption", help="Ask gcp or aws whether this machine is about to go; auto: where it is one. [auto]"
        ),
    ] = None,
    hang_timeout: Annotated[
        float | None,
        typer.Option("--hang-timeout", help="End the agent when the model has not answered for so many seconds. [off]"),
    ] = None,
    restart: Annotated[
        bool | None,
        typer.Option("--restart/--no-restart", help="Start an agent that died again; wait for its quota. [no]"),
    ] = None,
    restart_limit: Annotated[
        int | None,
        typer.Option("--restart-limit", help="So many crashes in --restart-window: exit 80 (0: never). [5]"),
    ] = None,
    restart_window: Annotated[
        float | None, typer.Option("--restart-window", help="Seconds in which crashes are counted. [600]")
    ] = None,
    on_ambiguity: Annotated[
        str | None,
        typer.Option(
            "--on-ambiguity",
            help="After a crash, a call whose fate cannot be told: the agent looks and then asks a person (ask), or "
            "decides by itself (resume); or nothing is started, exit 79 (halt). [ask]",
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability", help="Wait for the bucket: intent (before what changes something) or sync. [intent]"
        ),
    ] = None,
    on_outage: Annotated[
        str | None,
        typer.Option("--on-outage", help="While the bucket is away: deny what changes something, or spool. [deny]"),
    ] = None,
    encryption_key_file: KeyFile = None,
    encryption_key_command: KeyCommand = None,
    metrics_addr: Annotated[
        str | None,
        typer.Option(
            "--metrics-addr",
            help="Serve /metrics (Prometheus), /healthz and /readyz there; a port alone is of 127.0.0.1. [off]",
            metavar="HOST:PORT",
        ),
    ] = None,
    metrics_file: Annotated[
        str | None,
        typer.Option("--metrics-file", help="Write metrics to this .prom file (node_exporter). [off]", metavar="FILE"),
    ] = None,
    metrics_job_label: Annotated[
        bool | None, typer.Option("--metrics-job-label", help="Put the job's name on each metric. [no]")
    ] = None,
    log_format: Annotated[
        str | None,
        typer.Option("--log-format", help="Structured log: json or text, a line an event, to stderr. [off]"),
    ] = None,
    log_file: Annotated[
        str | None, typer.Option("--log-file", help="... into this file (json unless said).", metavar="FILE")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="... from this level on: debug, info, warning or error. [info]")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Take over a job whose owner spooled, without what only it has.")
    ] = False,
    accept_logged_args: Annotated[
        bool,
        typer.Option(
            "--accept-logged-args",
            help="Where no ARGS are typed: take them from the log, also if another machine wrote them. Whoever can "
            "write the bucket then chooses what the agent runs here.",
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while another machine holds the job.")] = False,
    exit_on_pause: Annotated[
        bool, typer.Option("--exit-on-pause", help="While the job is paused: exit 75 instead of waiting.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin a new session although the last one was cut off.")
    ] = False,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Fork: begin a new job where this one was at a record or a time (UTC).",
            metavar="RECORD|TIME",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Run nothing, and end with 0, if the job has come to its end already.")
    ] = False,
    continue_: Annotated[
        bool, typer.Option("--continue", help="Go on with the last session although it came to its end.")
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
    from wal_agent.agents.base import Hookless
    from wal_agent.cli.listeners import looked_at, refusals_told
    from wal_agent.errors import UsageError
    from wal_agent.supervise.options import RunOptions, Screen, Waiting
    from wal_agent.supervise.restart import is_complete, run_with_restarts

    if agent not in AGENTS:
        raise UsageError(f"{agent!r} is not an agent that wal-agent knows.", f"Known: {', '.join(sorted(AGENTS))}.")
    if any("\udc80" <= c <= "\udcff" for text in context.args for c in text):
        raise UsageError("An argument for the agent is not UTF-8 text, so it could not be logged.")
    workspace = Path.cwd().resolve()
    flags = {
        "bucket": bucket,
        "job": job,
        "ttl": ttl,
        "autosave": autosave,
        "drain": drain,
        "preemption": preemption,
        "hang_timeout": hang_timeout,
        "restart": None if restart is None else "on" if restart else "off",
        "restart_limit": restart_limit,
        "restart_window": restart_window,
        "on_ambiguity": on_ambiguity,
        "durability": durability,
        "on_outage": on_outage,
        "encryption_key_file": encryption_key_file,
        "encryption_key_command": encryption_key_command,
        "metrics_addr": metrics_addr,
        "metrics_file": metrics_file,
        "metrics_job_label": "on" if metrics_job_label else None,
        "log_format": log_format,
        "log_file": log_file,
        "log_level": log_level,
        "accept_logged_args": "on" if accept_logged_args else None,
    }
    screen = Screen(say, lines, Waiting(say).on)
    attended = sys.stdin.isatty() and sys.stderr.isatty()
    with refusals_told(os.environ, flags, agent, workspace, attended):
        settings = settings_for(agent, workspace, flags)
        if settings.sources["hang_timeout"] == "flag" and isinstance(AGENTS[agent], Hookless):
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
    with looked_at(wish, screen) as watched:
        code = run_with_restarts(watched, screen)
    raise typer.Exit(code)
