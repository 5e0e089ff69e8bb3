"""Decide by OpenTelemetry's own variables whether a run is traced.

Loads nothing of OpenTelemetry: a start without traces pays for none of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from wal_agent.extras import install_command

if TYPE_CHECKING:
    from wal_agent.observe.traces import Traces

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


class TracingRequest(msgspec.Struct, frozen=True):
    """Traces are asked for. `problem`: why none are sent all the same, in a sentence; "" for none."""

    problem: str = ""

    def start(self, agent: str, now: float, say: Callable[[str], None]) -> tuple[Traces | None, str]:
        """The listener, at work; or None and a line that says what to do."""
        problem = self.problem or missing_packages()
        if problem:
            return None, problem
        from wal_agent.observe.traces import Traces

        return Traces(agent, now, say), ""


def tracing_request(env: Mapping[str, str]) -> TracingRequest | None:
    """None: no traces. By OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_[TRACES_]ENDPOINT and
    _PROTOCOL."""
    if _word(env, "OTEL_SDK_DISABLED") == "true":
        return None
    exporters = [word.strip() for word in _word(env, "OTEL_TRACES_EXPORTER").split(",") if word.strip()]
    endpoint = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if "none" in exporters or not (exporters or endpoint):
        return None
    if exporters and "otlp" not in exporters:
        return TracingRequest(
            "no traces are sent: OTEL_TRACES_EXPORTER names no exporter that wal-agent has. Known: otlp, none."
        )
    protocol = _word(env, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or _word(env, "OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in ("", "http/protobuf"):
        return TracingRequest(
            "no traces are sent: wal-agent speaks OTLP as http/protobuf only. Set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, "
            "or OTEL_TRACES_EXPORTER=none."
        )
    return TracingRequest()


def missing_packages() -> str:
    """The line for who asks for traces without having the extra."""
    try:
        if all(importlib.util.find_spec(name) for name in _NEEDED):
            return ""
    except ImportError:  # of a parent
        pass
    command = install_command("otel")
    return f"no traces are sent: OpenTelemetry is not installed. {command}, or set OTEL_TRACES_EXPORTER=none."


def _word(env: Mapping[str, str], name: str) -> str:
    return env.get(name, "").strip().lower()
