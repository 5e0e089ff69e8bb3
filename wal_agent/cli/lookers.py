"""Who looks on at a run, by the settings and the environment: the service manager, metrics, logs, traces, people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from wal_agent import notify, observe
from wal_agent.cli.screen import report_bug
from wal_agent.clock import SystemClock
from wal_agent.happened import Announcer, Listener
from wal_agent.supervise.systemd import service_manager
from wal_agent.supervise.wish import Screen, Wish


def on_screen(wish: Wish) -> bool:
    """Whether stderr is the terminal of an agent that draws on it."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    return wish.agent.is_interactive(wish.args, sys.stdin.isatty() and sys.stdout.isatty(), wish.env)


@contextmanager
def looked_at(wish: Wish, screen: Screen) -> Iterator[Wish]:
    """`wish` with all who are to be told; they are let go at the end. UsageError, ConfigError: one of them cannot be
    had as it was asked for, and nothing was begun."""
    if wish.agent.passthrough(wish.args):
        yield wish  # no run: the agent is started as it is
        return
    clock, settings = SystemClock(), wish.settings
    listeners: list[Listener] = []
    people = notify.listener(
        wish.env,
        job=settings.job,
        bucket=settings.bucket,
        agent=wish.agent.name,
        workspace=wish.workspace,
        attended=wish.attended,
    )
    listeners += [people] if people is not None else []
    lookout = observe.lookout(
        settings,
        wish.env,
        agent=wish.agent.name,
        workspace=wish.workspace,
        clock=clock,
        stalled=wish.pulse.stalled,
        say=screen.say,
        on_screen=on_screen(wish),
    )
    listeners += lookout.listeners
    manager = service_manager(wish.env, wish.pulse.stalled, clock)
    listeners += [manager] if manager is not None else []
    announcer = Announcer(listeners, clock.now, lambda error: screen.say(report_bug(error, wish.env)))
    try:
        yield replace(wish, tell=announcer.tell, metered=lookout.metered, trace=lookout.trace)
    finally:
        announcer.close()
