"""Sends spans to an OpenTelemetry collector, in threads of its own, with a provider of its own: the agent's telemetry
and its OTEL_* variables are its own affair and stay as they are.

The trace's id is made before anything of OpenTelemetry is loaded, since the opening record names it: a run that
recovers this one links to it (spans.py).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from wal_agent.events import Event, Listener
from wal_agent.observe.aside import Aside
from wal_agent.sanitize import quote

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

SERVICE = "wal-agent"


class Traces:
    """One run's trace. `trace`: its id, 32 hex digits."""

    def __init__(self, agent: str, began: float, say: Callable[[str], None]) -> None:
        self.trace = f"{secrets.randbits(128) | 1:032x}"
        self._aside = Aside(lambda: _Sent(self.trace, agent, began, say), "traces", say)

    def hear(self, at: float, happening: Event) -> None:
        self._aside.hear(at, happening)

    def close(self) -> None:
        self._aside.close()


class _Sent:
    """Made in the thread: loading takes a quarter of a second."""

    def __init__(self, trace: str, agent: str, began: float, say: Callable[[str], None]) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        self._say = say
        self._trouble = Trouble()
        logging.getLogger("opentelemetry").addHandler(self._trouble)  # else it writes on the agent's screen
        self._inner = tracing(OTLPSpanExporter(), trace, agent, began)

    def hear(self, at: float, happening: Event) -> None:
        self._inner.hear(at, happening)

    def close(self) -> None:
        self._inner.close()
        if self._trouble.first:
            self._say(f"traces could not be sent: {quote(self._trouble.first)}")


def tracing(exporter: SpanExporter, trace: str, agent: str, began: float) -> Listener:
    """Spans in batches to the exporter; sampler, resource and limits as OTEL_* say."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from wal_agent.observe.spans import Ids, Spans

    # The variables' own words win over ours.
    resource = Resource.create({"service.name": SERVICE}).merge(_named_by_env())
    provider = TracerProvider(resource=resource, id_generator=Ids(trace), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Spans(provider, agent, began)


def _named_by_env() -> Resource:
    from opentelemetry.sdk.resources import OTELResourceDetector

    return OTELResourceDetector().detect()


class Trouble(logging.Handler):
    """Keeps the first thing that OpenTelemetry complains of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()
