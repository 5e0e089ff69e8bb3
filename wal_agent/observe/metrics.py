"""Metrics of a run, counted from its events; served over HTTP or written for node_exporter's textfile collector."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections import Counter as Counts
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import assert_never, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from wal_agent import __version__, events
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.decorators import MeterBucket, OpUsage
from wal_agent.clock import Clock
from wal_agent.concurrency import start_daemon
from wal_agent.errors import ConfigError
from wal_agent.observe import logs
from wal_agent.records import PhaseName

HOOK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30)  # the longest is 20 s
SYNC_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
MAX_LABEL_VALUES = 40  # values of one label
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_RESULT = re.compile(r"(?<=[a-z])(?=[A-Z])")
REST = 15.0  # seconds between two writes: as often as such a file is usually read


class LabelValues:
    """The values that a label has had; a stranger beyond the bound is `other`."""

    def __init__(self, most: int = MAX_LABEL_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, word: str) -> str:
        if not word:
            return "none"
        if word not in self._known:
            if len(self._known) >= self._most or not _WORD.fullmatch(word):
                return "other"
            self._known.add(word)
        return word


class Metrics:
    """Of the runs of one process (`--restart` makes several, one after the other), in a registry of its own: nothing of
    the process itself is in it."""

    def __init__(self, clock: Clock) -> None:
        self.registry = made = CollectorRegistry()
        self._clock = clock
        self._expires = self._began = 0.0  # boot time; since when the phase is
        self._cause = "first"
        self._recovering = False
        self._began = clock.boot()
        name = "wal_agent_"
        self._info = Info("wal_agent", "The run.", registry=made)
        self._generation = Gauge(f"{name}lease_generation", "Epoch of the lease that is held.", registry=made)
        self._left = Gauge(f"{name}lease_seconds_remaining", "Until the lease runs out.", registry=made)
        self._left.set_function(lambda: max(0.0, self._expires - self._clock.boot()))
        self._renew_failures = Counter(
            f"{name}lease_renew_failures_total", "Heartbeats that the bucket did not take.", registry=made
        )
        self._lost = Counter(f"{name}lease_lost_total", "Leases lost to another owner.", registry=made)
        self._hooks = Histogram(
            f"{name}hook_seconds",
            "From a hook's question to its answer.",
            ["event", "decision"],
            buckets=HOOK_BUCKETS,
            registry=made,
        )
        self._denied = Counter(f"{name}hook_denied_total", "Tool calls that were denied.", ["reason"], registry=made)
        self._records = Counter(
            f"{name}journal_records_total", "Records that the bucket acknowledged.", ["kind"], registry=made
        )
        self._unsettled = Gauge(
            f"{name}unsettled_calls", "Calls of earlier runs whose fate is not settled.", registry=made
        )
        self._synced = Gauge(
            f"{name}last_sync_timestamp_seconds", "When all was in the bucket last.", ["what"], registry=made
        )
        self._sync_bytes = Counter(f"{name}sync_bytes_total", "Captured bytes, acknowledged.", ["what"], registry=made)
        self._sync = Histogram(
            f"{name}sync_seconds",
            "From the look at what changed to its acknowledgement.",
            ["what"],
            buckets=SYNC_BUCKETS,
            registry=made,
        )
        self._snapshot = Gauge(f"{name}snapshot_bytes", "Size of the newest snapshot of the log.", registry=made)
        self._recoveries = Counter(
            f"{name}recoveries_total", "Recoveries of an earlier run.", ["cause", "result"], registry=made
        )
        self._recovery = Histogram(
            f"{name}recovery_seconds", "From the opening to the agent's start.", buckets=RECOVERY_BUCKETS, registry=made
        )
        self._dangling = Counter(
            f"{name}dangling_calls_total", "Calls that were in flight when a run was cut off.", registry=made
        )
        self._notices = Counter(
            f"{name}preemption_notices_total", "Words that this machine goes away.", ["source"], registry=made
        )
        self._checkpoints = Counter(
            f"{name}checkpoints_total", "Checkpoints of the job's state.", ["trigger", "result"], registry=made
        )
        self._exits = Counter(f"{name}agent_exits_total", "Ends of the agent's process.", ["class"], registry=made)
        self._phase = Gauge(f"{name}phase", "1 for the phase that the run is in.", ["phase"], registry=made)
        Gauge(f"{name}phase_seconds", "How long it has been in it.", registry=made).set_function(
            lambda: max(0.0, self._clock.boot() - self._began)
        )
        self._requests = Requests()
        made.register(self._requests)
        self._events, self._reasons, self._kinds, self._sources = (
            LabelValues(),
            LabelValues(),
            LabelValues(),
            LabelValues(),
        )
        self._enter("starting")

    def metered(self, bucket: Bucket) -> Bucket:
        """The bucket, its requests counted with those of the buckets before."""
        meter = MeterBucket(bucket)
        self._requests.meters.append(meter)
        return meter

    def close(self) -> None:
        return

    def on_event(self, at: float, event: events.Event) -> None:
        match event:
            case events.LeaseTaken():
                self._enter("starting")
                self._cause, self._recovering = event.cause, event.cause not in ("first", "closed")
                self._expires = self._clock.boot() + event.ttl
                self._generation.set(event.epoch)
                versions = {"agent_version": event.agent_version, "version": __version__}
                self._info.info({"agent": event.agent, **versions})
            case events.LeaseRenewed():
                self._expires = self._clock.boot() + event.left
            case events.RenewalFailed():
                self._expires = self._clock.boot() + event.left
                self._renew_failures.inc()
            case events.LeaseLost():
                self._expires = 0.0
                self._lost.inc()
            case events.LeaseSettled():
                self._expires = 0.0
            case events.Recovered():
                self._recovering = False
                self._recoveries.labels(self._cause, "resumed").inc()
                self._recovery.observe(event.seconds)
                self._dangling.inc(len(event.findings))
            case events.Halted():
                if self._recovering:
                    self._recovering = False
                    self._recoveries.labels(self._cause, "halted").inc()
            case events.LeftOpen():
                self._unsettled.set(len(event.calls))
            case events.AgentBegan():
                self._recovering = False
            case events.AgentEnded():
                self._exits.labels(event.cls).inc()
            case events.HookAnswered():
                hook, decision = self._events(event.event), event.decision or "none"
                self._hooks.labels(hook, decision).observe(event.seconds)
                if event.decision == "deny":
                    self._denied.labels(self._reasons(event.reason)).inc()
            case events.PhaseChanged():
                self._enter(event.phase)
            case events.NoticeReceived():
                self._notices.labels(self._sources(event.source)).inc()
            case events.Saved(what="snapshot"):
                self._snapshot.set(event.size)
            case events.Saved():
                self._synced.labels(event.what).set(at)
                if event.size:
                    self._sync_bytes.labels(event.what).inc(event.size)
                    self._sync.labels(event.what).observe(event.seconds)
            case events.CheckpointCreated():
                self._checkpoints.labels(event.trigger, "created").inc()
            case events.CheckpointRestored():
                self._checkpoints.labels("recovery", "restored").inc()
            case events.CheckpointFailed():
                self._checkpoints.labels("", "failed").inc()
            case events.Logged():
                self._unsettled.set(event.unsettled)
                for kind in event.kinds:
                    self._records.labels(self._kinds(kind)).inc()
            case (
                events.CallStarted()
                | events.CallEnded()
                | events.Ready()
                | events.TakesLong()
                | events.HungUp()
                | events.DrainStarted()
                | events.DrainFinished()
            ):
                return
            case events.Paused() | events.Restarting() | events.SummaryLost():
                return
            case _:
                assert_never(event)

    def _enter(self, phase: PhaseName) -> None:
        self._began = self._clock.boot()
        for each in get_args(PhaseName):
            self._phase.labels(each).set(each == phase)


class Requests(Collector):
    """What MeterBuckets counted, read when somebody asks."""

    def __init__(self) -> None:
        self.meters: list[MeterBucket] = []

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        counts: Counts[tuple[str, str]] = Counts()
        retried = 0
        for used in [meter.snapshot() for meter in self.meters]:
            for op in ("get", "put", "delete", "list", "time"):
                usage: OpUsage = getattr(used, op)
                retried += usage.retries
                counts[op, "ok"] += usage.answered
                for error, count in usage.errors.items():
                    counts[op, _RESULT.sub("_", error).lower()] += count
        requests = CounterMetricFamily(
            "wal_agent_store_requests_total", "Requests to the bucket.", labels=["op", "result"]
        )
        for labels, count in sorted(counts.items()):
            requests.add_metric(labels, count)
        yield requests
        retries = CounterMetricFamily("wal_agent_store_retries_total", "Requests that had no answer before.")
        retries.add_metric([], retried)
        yield retries


class PromFile:
    """`text` gives what to write. The file stays behind, with what was true at the end."""

    def __init__(self, path: Path, text: Callable[[], bytes], say: Callable[[str], None], rest: float = REST) -> None:
        self._path = path
        self._text = text
        self._say = say
        self._rest = rest
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._problem = ""
        try:
            self._write()
        except OSError as error:
            raise ConfigError(f"--metrics-file {path} cannot be written: {error.strerror}. Nothing was run.") from None
        self._thread = start_daemon("promfile", self._loop)

    def on_event(self, at: float, event: events.Event) -> None:
        self._changed.set()

    def close(self) -> None:
        self._stop.set()
        self._changed.set()
        self._thread.join(logs.CLOSE_TIMEOUT)
        if self._problem:
            self._say(f"the metrics in {self._path} are old: {self._problem}.")

    def _loop(self) -> None:
        while True:
            self._stop.wait(self._rest)
            self._changed.wait()
            self._changed.clear()
            last = self._stop.is_set()  # asked for before the write: what comes meanwhile is written by another one
            try:
                self._write()
            except OSError as error:
                self._problem = error.strerror or "it could not be written"
            else:
                self._problem = ""
            if last:
                return

    def _write(self) -> None:
        fd, name = tempfile.mkstemp(prefix=".wal-agent-", suffix=".tmp", dir=self._path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(self._text())
                os.fchmod(file.fileno(), 0o644)  # the collector is another user's, and nothing in it is secret
            Path(name).replace(self._path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
