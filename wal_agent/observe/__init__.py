"""Observe a run: metrics for Prometheus, a structured log, traces for OpenTelemetry.

Each is a `Listener` of the run's events (events.py) and reads nothing else. None of them can stop or slow a run, none
is loaded unless it was asked for, and none exports a tool's input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.errors import ConfigError, UsageError
from wal_agent.events import Listener
from wal_agent.safefs import real_path

if TYPE_CHECKING:
    from wal_agent.observe.metrics import Metrics


class Observers(msgspec.Struct, frozen=True):
    """The observers of a run. `metered`: wraps the bucket to count its requests; `trace`: the run's trace id, ""
    without traces."""

    listeners: tuple[Listener, ...]
    metered: Callable[[Bucket], Bucket]
    trace: str


def _as_it_is(bucket: Bucket) -> Bucket:
    return bucket


def start_observers(
    settings: Settings,
    env: Mapping[str, str],
    *,
    agent: str,
    workspace: Path,
    clock: Clock,
    stalled: Callable[[float], bool],
    say: Callable[[str], None],
    on_screen: bool,
) -> Observers:
    """Start the observers that the settings and OTEL_* ask for.

    `stalled(now)`: whether the supervisor's loop hangs, in awake seconds; `on_screen`: stderr is the terminal of an
    agent that draws on it. UsageError, ConfigError: it cannot be done as it was asked for, and nothing was begun."""
    with ExitStack() as undo:
        found: list[Listener] = []
        metered = _as_it_is
        if settings.metrics_addr or settings.metrics_file:
            from wal_agent.observe.metrics import Metrics

            metrics = Metrics(clock)
            metered = metrics.metered
            found.append(metrics)
            found += _served(settings, metrics, workspace, clock, stalled, say, undo)
        unsaid = settings.sources.get("log_format", "default") == "default"
        if settings.log_format != "off" or (settings.log_file and unsaid):
            found.append(_log(settings, workspace, on_screen, say))
            undo.callback(found[-1].close)
        from wal_agent.observe.otel import tracing_request

        trace, why_not = "", ""
        if (asked := tracing_request(env)) is not None:
            traces, why_not = asked.start(agent, clock.now(), say)
            if traces is not None:
                found.append(traces)
                trace = traces.trace
        if why_not:
            say(why_not)
        undo.pop_all()
        return Observers(tuple(found), metered, trace)


def _served(
    settings: Settings,
    metrics: Metrics,
    workspace: Path,
    clock: Clock,
    stalled: Callable[[float], bool],
    say: Callable[[str], None],
    undo: ExitStack,
) -> list[Listener]:
    from wal_agent.observe.serve import exposition

    text = exposition(metrics.registry, settings.job if settings.metrics_job_label == "on" else "")
    found: list[Listener] = []
    if settings.metrics_addr:
        from wal_agent.observe.serve import Health, Server, answers

        health = Health(clock, stalled, settings.autosave)
        server = Server(settings.metrics_addr, answers(text, health))
        undo.callback(server.close)
        if settings.metrics_addr.endswith(":0"):
            say(f"metrics at http://{server.address}/metrics")
        found += [health, server]
    if settings.metrics_file:
        from wal_agent.observe.metrics import PromFile

        path = _outside(settings, settings.metrics_file, "metrics-file", workspace)
        if path.suffix != ".prom":
            raise UsageError(f"--metrics-file {path}: node_exporter reads files that end in .prom.", "Name it so.")
        file = PromFile(path, text, say)
        undo.callback(file.close)
        found.append(file)
    return found


def _log(settings: Settings, workspace: Path, on_screen: bool, say: Callable[[str], None]) -> Listener:
    from wal_agent.observe.logs import BackgroundListener, Log, open_log

    form = "json" if settings.log_format == "off" else settings.log_format
    if settings.log_file:
        fd = open_log(_outside(settings, settings.log_file, "log-file", workspace))
    elif on_screen:
        raise UsageError(
            f"--log-format {form} would write into the screen of the agent, which has this terminal.",
            "Add --log-file FILE, or redirect stderr.",
        )
    elif sys.stderr is None:
        raise UsageError(f"--log-format {form} has nowhere to go: stderr is closed.", "Add --log-file FILE.")
    else:
        fd = 2
    return BackgroundListener(lambda: Log(fd, form, settings.log_level, settings.job, say), "log", say)


def _outside(settings: Settings, name: str, option: str, workspace: Path) -> Path:
    """Return the file's real path. In the workspace each write would be captured and logged, and so cause the next."""
    path = Path(name).absolute()
    real = real_path(path.parent) / path.name
    if settings.workspace == "save" and real.is_relative_to(workspace):
        raise UsageError(f"--{option} {path} lies in the workspace, whose changes are saved.", "Put it elsewhere.")
    if not real.parent.is_dir():
        raise ConfigError(f"--{option} {path}: there is no folder {real.parent}.", "Make it, or name another file.")
    return real
