"""observe/traces.py, traces.py: one trace a run, in memory and over real OTLP/HTTP."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.schemas import Schemas

from tests.conftest import TESTS
from tests.unit.observe.collector import Collector, collecting
from tests.unit.observe.story import CRASHED, SECRET, STORY, TAKEN
from tests.unit.supervise.crew import until
from wal_agent.events import AgentBegan, CallStarted, DrainStarted, Event, Recovered
from wal_agent.observe.traces import MAX_OPEN, Ids, Spans, Traces, root_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def told(*events: Event) -> dict[str, ReadableSpan]:
    """Spans by name; the n-th happening comes at second 100 + n."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(id_generator=Ids(TRACE), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider, "gemini", 100.0)
    for number, event in enumerate(events):
        spans.on_event(101.0 + number, event)
    spans.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_one_trace_under_one_root() -> None:
    found = told(*STORY)
    assert set(found) == {
        "invoke_agent gemini",
        "start",
        "restore",
        "execute_tool mcp__internal__deploy",
        "drain",
    }
    root = found["invoke_agent gemini"]
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACE}
    assert [name for name, span in found.items() if span.parent is None] == ["invoke_agent gemini"]
    assert all(span.parent.span_id == root.context.span_id for span in found.values() if span.parent)
    assert root.attributes is not None
    assert (root.attributes["wal_agent.job"], root.attributes["wal_agent.epoch"]) == ("shop-job", 4)
    assert root.start_time == 100 * 10**9 and root.end_time == (100 + len(STORY)) * 10**9
    names = {event.name for event in root.events}
    assert {"lease.lost", "run.halted", "agent.exited", "agent.restarting"} <= names


def test_a_tool_call_follows_the_genai_conventions() -> None:
    span = told(*STORY)["execute_tool mcp__internal__deploy"]
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "mcp__internal__deploy",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call-9c1d",
        "gen_ai.agent.name": "gemini",
        "wal_agent.call": 412,
        "wal_agent.class": "unknown",
        "wal_agent.ended": "failed",
        "error.type": "failed",
    }
    assert not span.status.is_ok
    started = next(n for n, each in enumerate(STORY) if isinstance(each, CallStarted))
    assert span.start_time == (101 + started) * 10**9


def test_each_name_that_is_not_ours_is_one_of_the_pinned_conventions() -> None:
    found = told(*STORY, AgentBegan(1, "s1", False))
    root = found["invoke_agent gemini"]
    assert root.attributes is not None and root.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert root.attributes["gen_ai.conversation.id"] == "s1"
    known = {value for value in vars(gen_ai_attributes).values() if isinstance(value, str)}
    used = {name for span in found.values() for name in span.attributes or {} if name.startswith("gen_ai.")}
    assert len(used) > 5 and used <= known
    assert {span.instrumentation_scope.schema_url for span in found.values() if span.instrumentation_scope} == {
        Schemas.V1_44_0.value
    }


def test_a_recovery_links_to_the_root_of_the_run_that_was_cut_off() -> None:
    found = told(*STORY)
    for name in ("restore", "invoke_agent gemini"):
        (link,) = found[name].links
        assert f"{link.context.trace_id:032x}" == CRASHED
    assert told(TAKEN)["invoke_agent gemini"].context.span_id == int(TRACE[16:], 16), "found by the trace id alone"
    assert f"{link.context.span_id:016x}" == CRASHED[16:]


@pytest.mark.parametrize("trace", ["", "0" * 32, "x" * 32, "ab", CRASHED[:16] + "0" * 16, "1" * 99])
def test_what_is_no_trace_is_not_linked_to(trace: str) -> None:
    assert root_of(trace) is None
    assert not told(Recovered(1, "vm", 0.0, "crash", (), 0, 1.0, trace))["restore"].links


def test_a_restarted_agent_goes_on_in_the_same_trace() -> None:
    again = Recovered(4, "vm", 0.0, "crash", ("unknown",), 0, 1.0, TRACE)
    found = told(TAKEN, AgentBegan(1, "s", False), CallStarted(1, "sh", "mutation"), TAKEN, again)
    assert found["execute_tool sh"].end_time == 104 * 10**9, "it did not outlive its agent"
    assert not found["restore"].links, "to itself"
    assert found["start"].start_time == 104 * 10**9, "a start of its own"


def test_what_still_runs_at_the_end_is_ended() -> None:
    found = told(TAKEN, CallStarted(1, "sh", "mutation"), DrainStarted("sigterm", 20.0))
    assert found["execute_tool sh"].attributes is not None and found["execute_tool sh"].end_time == 103 * 10**9
    assert found["execute_tool sh"].attributes["wal_agent.ended"] == "open"
    assert "gen_ai.tool.call.id" not in found["execute_tool sh"].attributes
    assert {"drain", "start", "invoke_agent gemini"} <= set(found)


def test_no_secret_leaves_and_calls_do_not_pile_up() -> None:
    calls = [CallStarted(n, f"t{n}", "unknown", SECRET) for n in range(MAX_OPEN + 5)]
    found = told(*STORY, *calls, CallStarted(9999, f"x {SECRET}\x1b" + "y" * 500, "unknown"))
    assert SECRET not in "".join(span.to_json() for span in found.values())
    assert found["execute_tool t4"].end_time != found["execute_tool t1004"].end_time
    assert max(map(len, found)) < 200


# ---- over the wire


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def test_spans_arrive_at_a_collector_with_the_variables_honoured(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=t1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    said: list[str] = []
    traces = Traces("gemini", 100.0, said.append)
    for number, event in enumerate(STORY):
        traces.on_event(101.0 + number, event)
    until(lambda: collector.requests, "spans are sent while the run goes on")
    traces.close()
    until(lambda: "invoke_agent gemini" in {s.name for s in collector.spans}, "the root comes at the end")
    assert {span.trace_id.hex() for span in collector.spans} == {traces.trace}
    assert {(path, token) for path, token, _ in collector.requests} == {("/v1/traces", "t1")}
    resource = collector.requests[0][2].resource_spans[0].resource
    named = {a.key: a.value.string_value for a in resource.attributes}
    assert (named["service.name"], named["deployment.environment"]) == ("wal-agent", "test")
    (link,) = next(s for s in collector.spans if s.name == "restore").links
    assert (link.trace_id.hex(), said) == (CRASHED, [])


def test_the_service_has_the_name_that_the_variables_give_it(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    traces = Traces("gemini", 100.0, print)
    traces.on_event(101.0, AgentBegan(1, "s", False))
    traces.close()
    until(lambda: collector.requests, "spans are sent at the end")
    named = {a.key: a.value.string_value for a in collector.requests[0][2].resource_spans[0].resource.attributes}
    assert named["service.name"] == "mine"


def test_a_sampler_that_takes_nothing_sends_nothing(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    traces = Traces("gemini", 100.0, print)
    for event in STORY:
        traces.on_event(101.0, event)
    traces.close()
    assert collector.requests == []


def test_a_collector_that_is_away_is_told_once_at_the_end_and_holds_nobody_up() -> None:
    """In a process of its own: pytest takes what is logged, and here the screen is the agent's."""
    script = """
from tests.unit.observe.story import STORY
from wal_agent.observe.traces import Traces
traces = Traces("gemini", 100.0, lambda line: print(line, flush=True))
for event in STORY:
    traces.on_event(101.0, event)
traces.close()
"""
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "PYTHONPATH": str(TESTS.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("traces") and done.stdout.count("\n") == 1


def test_the_globals_of_opentelemetry_are_left_alone() -> None:
    from opentelemetry import trace

    told(*STORY)
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)
