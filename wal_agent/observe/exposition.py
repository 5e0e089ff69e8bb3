"""A registry as Prometheus text (version 0.0.4), by prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL = "wal_job"  # not `job`: that is the name of Prometheus' own


def exposition(registry: CollectorRegistry, job: str = "") -> Callable[[], bytes]:
    """What is told each time that somebody asks. `job`: on each sample, unless ""."""
    source = Samples(registry, {LABEL: job} if job else {})
    return lambda: generate_latest(source)


class Samples(Collector):
    """A registry's, without the times at which counters began (this process has one, and it is not news), and with
    labels of ours."""

    def __init__(self, registry: CollectorRegistry, labels: dict[str, str]) -> None:
        self._registry = registry
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        for found in self._registry.collect():
            metric = Metric(found.name, found.documentation, found.type, found.unit)
            metric.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in found.samples
                if not sample.name.endswith("_created")
            ]
            yield metric
