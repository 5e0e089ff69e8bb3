"""Attach the listeners of a run that settings and environment ask for: service manager, metrics, log, traces,
notifications. `run` imports this late: no other command pays for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec.structs import replace

from wal_agent import notify, observe
from wal_agent.bucket import default_url
from wal_agent.clock import SystemClock
from wal_agent.errors import WalAgentError
from wal_agent.events import EventBus, Halted, Listener
from wal_agent.limits import describe_failure
from wal_agent.supervise.identity import default_job_here
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.restart import restart_policy
from wal_agent.supervise.systemd import service_manager

NEEDS_PERSON = frozenset({73, 76, 77, 78, 79, 80})  # exit codes that time does not change


def is_on_screen(options: RunOptions) -> bool:
    """Whether stderr is the terminal of an agent that draws on it."""
    return sys.stderr is not None and sys.stderr.isatty() and options.interactive


def restarts_hung_agent(options: RunOptions) -> bool:
    """Whether an agent that hangs is started again: before a person, only where that was asked for in this command."""
    policy = restart_policy(options)
    return policy.restart == "on" and (policy.explicit or not options.interactive)


@contextmanager
def attach_listeners(options: RunOptions, screen: Screen) -> Iterator[RunOptions]:
    """Yield `options` with the listeners that they ask for, and close these at the end. UsageError, ConfigError: one of
    them cannot be started, and nothing was begun."""
    if options.agent.passthrough(options.args):
        yield options  # no run: the agent is started as it is
        return
    clock, settings = SystemClock(), options.settings
    people = notify.listener(
        options.env,
        job=settings.job,
        bucket=settings.bucket,
        agent=options.agent.name,
        workspace=options.workspace,
        attended=options.attended,
        restarts=restarts_hung_agent(options),
    )
    manager = service_manager(options.env, options.liveness.stalled, clock)
    first: list[Listener] = [listener for listener in (people, manager) if listener is not None]

    def failed(error: BaseException) -> None:
        screen.say(describe_failure(error, options.env))

    bus = EventBus(first, clock.now, failed)
    try:
        try:
            if settings.messages or settings.synadia == "on" or settings.state == "nats":
                from wal_agent.messages import check_needs, status_listener

                check_needs(settings)
                status = status_listener(
                    settings,
                    options.env,
                    agent=options.agent.name,
                    now=clock.now,
                    awake=clock.awake,
                    stalled=options.liveness.stalled,
                    say=screen.say,
                )
                if status is not None:
                    bus.add(status)
            observers = observe.start_observers(
                settings,
                options.env,
                agent=options.agent.name,
                workspace=options.workspace,
                clock=clock,
                stalled=options.liveness.stalled,
                say=screen.say,
                on_screen=is_on_screen(options),
            )
        except WalAgentError as error:
            _refuse(bus, error)
            raise
        bus.add(*observers.listeners)
        yield replace(options, emit=bus.emit, metered=observers.metered, trace=observers.trace)
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
    bucket = str(flags.get("bucket") or env.get("WAL_AGENT_BUCKET") or default_url(env))
    people = notify.listener(
        env,
        job=str(flags.get("job") or env.get("WAL_AGENT_JOB") or default_job_here(agent, workspace, bucket, env)),
        bucket=bucket,
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
