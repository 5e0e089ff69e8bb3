"""`wal-agent run AGENT [options] -- ARGS`, with the listeners that settings and environment ask for: service manager,
metrics, log, traces, notifications.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from wal_agent import notify, observe
from wal_agent.bucket import default_url
from wal_agent.cli.options import complete_agent, settings_for, unknown_agent_error, with_settings
from wal_agent.clock import SystemClock
from wal_agent.config import default_job
from wal_agent.errors import WalAgentError
from wal_agent.events import EventBus, Halted, Listener
from wal_agent.limits import exhausted, report_bug
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.restart import restart_policy
from wal_agent.supervise.systemd import service_manager
from wal_agent.text import lines, say

NEEDS_PERSON = frozenset({73, 76, 77, 78, 79, 80})  # exit codes that time does not change


def is_on_screen(wish: RunOptions) -> bool:
    """Whether stderr is the terminal of an agent that draws on it."""
    return sys.stderr is not None and sys.stderr.isatty() and wish.interactive


def restarts_hung_agent(wish: RunOptions) -> bool:
    """Whether an agent that hangs is started again: before a person, only where that was asked for in this command."""
    policy = restart_policy(wish)
    return policy.restart == "on" and (policy.explicit or not wish.interactive)


@contextmanager
def attach_listeners(wish: RunOptions, screen: Screen) -> Iterator[RunOptions]:
    """`wish` with all who are to be told; they are let go at the end. UsageError, ConfigError: one of them cannot be
    had as it was asked for, and nothing was begun."""
    if wish.agent.passthrough(wish.args):
        yield wish  # no run: the agent is started as it is
        return
    clock, settings = SystemClock(), wish.settings
    people = notify.listener(
        wish.env,
        job=settings.job,
        bucket=settings.bucket,
        agent=wish.agent.name,
        workspace=wish.workspace,
        attended=wish.attended,
        restarts=restarts_hung_agent(wish),
    )
    manager = service_manager(wish.env, wish.liveness.stalled, clock)
    first: list[Listener] = [listener for listener in (people, manager) if listener is not None]

    def failed(error: BaseException) -> None:
        screen.say(str(exhausted(error) or report_bug(error, wish.env)))

    bus = EventBus(first, clock.now, failed)
    try:
        try:
            lookout = observe.start_observers(
                settings,
                wish.env,
                agent=wish.agent.name,
                workspace=wish.workspace,
                clock=clock,
                stalled=wish.liveness.stalled,
                say=screen.say,
                on_screen=is_on_screen(wish),
            )
        except WalAgentError as error:
            _refuse(bus, error)
            raise
        bus.add(*lookout.listeners)
        yield replace(wish, emit=bus.emit, metered=lookout.metered, trace=lookout.trace)
    finally:
        bus.close()


@contextmanager
def report_refusals(
    env: Mapping[str, str], flags: Mapping[str, object], agent: str, workspace: Path, attended: bool
) -> Iterator[None]:
    """What stops a start before anybody looks on (a setting that cannot be read, say) is told to people all the same;
    of which job, as well as can be known then."""
    try:
        yield
    except WalAgentError as error:
        if error.exit_code in NEEDS_PERSON:  # else nobody need be looked for
            with suppress(WalAgentError, OSError):  # the error itself follows
                _refused(error, env, flags, agent, workspace, attended)
        raise


def _refused(
    error: WalAgentError,
    env: Mapping[str, str],
    flags: Mapping[str, object],
    agent: str,
    workspace: Path,
    attended: bool,
) -> None:
    people = notify.listener(
        env,
        job=str(flags.get("job") or env.get("WAL_AGENT_JOB") or default_job(agent, workspace)),
        bucket=str(flags.get("bucket") or env.get("WAL_AGENT_BUCKET") or default_url(env)),
        agent=agent,
        workspace=workspace,
        attended=attended,
    )
    if people is not None:
        bus = EventBus([people], SystemClock().now, lambda _: None)
        _refuse(bus, error)
        bus.close()


def _refuse(bus: EventBus, error: WalAgentError) -> None:
    if error.exit_code in NEEDS_PERSON:
        bus.emit(Halted(error.exit_code, error.what, error.hint))


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
