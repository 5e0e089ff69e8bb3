"""Traces: a span for each run, turn and tool call, exported by OpenTelemetry where the extra is installed."""

from __future__ import annotations

import logging
import random
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Span, SpanContext, Status, StatusCode, TraceFlags, set_span_in_context

from wal_agent import __version__, events
from wal_agent.observe.logs import BackgroundListener, lines_of
from wal_agent.text import quote

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter


MAX_OPEN = 1000  # calls that run at a time; the oldest is let go beyond
_HALF = (1 << 64) - 1
_BAD = ("failed", "refused")
SERVICE = "wal-agent"
CONVENTIONS = "https://opentelemetry.io/schemas/1.44.0"  # the version of the names below that are not ours


class Ids(IdGenerator):
    """The first span is the root of `trace` (32 hex digits)."""

    def __init__(self, trace: str) -> None:
        self._trace = int(trace, 16)
        self._root: int | None = self._trace & _HALF
        self._random = random.SystemRandom()

    def generate_trace_id(self) -> int:
        return self._trace

    def generate_span_id(self) -> int:
        root, self._root = self._root, None
        return root or self._random.getrandbits(64) or 1

    def is_trace_id_random(self) -> bool:
        return True


def root_of(trace: str) -> SpanContext | None:
    """The root span of an earlier run; None for what is no trace id of ours."""
    try:
        number = int(trace, 16) if len(trace) == 32 else 0
    except ValueError:
        number = 0
    found = SpanContext(number, number & _HALF, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return found if found.is_valid else None


class Spans:
    """Receives events in one thread. `began`: seconds since 1970."""

    def __init__(self, provider: TracerProvider, agent: str, began: float) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("wal-agent", __version__, schema_url=CONVENTIONS)
        self._agent = agent
        self._last = began
        own = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": agent}
        self._root = self._tracer.start_span(f"invoke_agent {agent}", start_time=_nano(began), attributes=own)
        self._context = set_span_in_context(self._root)
        # Sent as soon as the agent works: a trace whose root never ends is seen all the same.
        self._start: Span | None = self._begin("start", began)
        self._drain: Span | None = None
        self._calls: OrderedDict[int, Span] = OrderedDict()

    def on_event(self, at: float, event: events.Event) -> None:
        self._last = max(self._last, at)
        match event:
            case events.LeaseTaken():
                self._restarted(at)
                self._root.set_attributes(
                    {
                        "wal_agent.job": quote(event.job),
                        "wal_agent.run": event.run,
                        "wal_agent.epoch": event.epoch,
                        "wal_agent.cause": event.cause,
                        "host.name": quote(event.host),
                    }
                )
            case events.Recovered():
                self._recovered(at, event)
            case events.CallStarted():
                self._called(at, event)
            case events.CallEnded(call=call, how=how):
                if (span := self._calls.pop(call, None)) is not None:
                    self._ended(span, at, how)
            case events.DrainStarted(source=source, budget=budget):
                self._drain = self._drain or self._begin("drain", at)
                self._drain.set_attributes({"wal_agent.source": quote(source), "wal_agent.budget": budget})
            case events.DrainFinished(in_time=in_time) if self._drain is not None:
                self._drain.set_attribute("wal_agent.in_time", in_time)
                self._drain.end(_nano(at))
                self._drain = None
            case events.LeaseSettled(state=state):
                self._root.set_attribute("wal_agent.settled", state)
            case events.AgentBegan(session=session):
                if session:
                    self._root.set_attribute("gen_ai.conversation.id", quote(session, 100))
                if self._start is not None:
                    self._start.end(_nano(at))
                    self._start = None
                self._event(at, event)
            case events.Halted(what=what):
                self._root.set_status(Status(StatusCode.ERROR, quote(what)))
                self._event(at, event)
            case (
                events.AgentEnded()
                | events.LeaseLost()
                | events.RenewalFailed()
                | events.HungUp()
                | events.NoticeReceived()
            ):
                self._event(at, event)
            case events.CheckpointCreated() | events.CheckpointRestored() | events.CheckpointFailed():
                self._event(at, event)
            case events.Paused() | events.Restarting() | events.TakesLong() | events.SummaryLost():
                self._event(at, event)
            case _:
                return

    def close(self) -> None:
        for span in self._calls.values():
            self._ended(span, self._last, "open")
        for left in (self._drain, self._start, self._root):
            if left is not None:
                left.end(_nano(self._last))
        self._provider.shutdown()

    def _restarted(self, at: float) -> None:
        """A run in the same process: what the one before had open is over."""
        for span in self._calls.values():
            self._ended(span, at, "open")
        self._calls.clear()
        self._start = self._start or self._begin("start", at)

    def _begin(self, name: str, at: float) -> Span:
        return self._tracer.start_span(name, self._context, start_time=_nano(at))

    def _called(self, at: float, it: events.CallStarted) -> None:
        tool = quote(it.tool, 100)
        span = self._begin(f"execute_tool {tool}", at)
        span.set_attributes(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool,
                "gen_ai.tool.type": "function",
                "gen_ai.agent.name": self._agent,
                "wal_agent.call": it.call,
                "wal_agent.class": it.cls,
            }
        )
        if it.agent_call:
            span.set_attribute("gen_ai.tool.call.id", quote(it.agent_call, 100))
        self._calls[it.call] = span
        if len(self._calls) > MAX_OPEN:
            self._ended(self._calls.popitem(last=False)[1], at, "open")

    def _ended(self, span: Span, at: float, how: str) -> None:
        span.set_attribute("wal_agent.ended", how)
        if how in _BAD:
            span.set_attribute("error.type", how)
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nano(at))

    def _recovered(self, at: float, it: events.Recovered) -> None:
        span = self._begin("restore", at - it.seconds)
        span.set_attributes(
            {
                "wal_agent.from_epoch": it.from_epoch,
                "wal_agent.alert": it.alert,
                "wal_agent.calls_in_flight": len(it.findings),
                "wal_agent.put_back": it.put_back,
            }
        )
        before = root_of(it.trace)
        if before is not None and before.trace_id != self._root.get_span_context().trace_id:
            for each in (self._root, span):
                each.add_link(before, {"wal_agent.from_epoch": it.from_epoch})
        span.end(_nano(at))

    def _event(self, at: float, event: events.Event) -> None:
        """What the structured log says of it, on the root."""
        for line in lines_of(event):
            attributes = {f"wal_agent.{key}": quote(v) if isinstance(v, str) else v for key, v in line.more.items()}
            self._root.add_event(line.event, {**attributes, "message": quote(line.msg)}, _nano(at))


def _nano(seconds: float) -> int:
    return int(seconds * 1e9)


class Traces:
    """One run's trace. `trace`: its id, 32 hex digits."""

    def __init__(self, agent: str, began: float, say: Callable[[str], None]) -> None:
        self.trace = f"{secrets.randbits(128) | 1:032x}"
        self._aside = BackgroundListener(lambda: _Sent(self.trace, agent, began, say), "traces", say)

    def on_event(self, at: float, event: events.Event) -> None:
        self._aside.on_event(at, event)

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

    def on_event(self, at: float, event: events.Event) -> None:
        self._inner.on_event(at, event)

    def close(self) -> None:
        self._inner.close()
        if self._trouble.first:
            self._say(f"traces could not be sent: {quote(self._trouble.first)}")


def tracing(exporter: SpanExporter, trace: str, agent: str, began: float) -> events.Listener:
    """Spans in batches to the exporter; sampler, resource and limits as OTEL_* say."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

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
