"""observe/otel.py: OpenTelemetry's own variables say whether there are traces."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from wal_agent.observe.otel import TracingRequest, missing_packages, tracing_request

AT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.mark.parametrize(
    ("env", "sends"),
    [
        ({}, False),
        (AT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console,otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({**AT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**AT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**AT, "OTEL_SDK_DISABLED": "false"}, True),
        ({**AT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ({**AT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_whether_traces_are_wanted(env: dict[str, str], sends: bool) -> None:
    assert tracing_request(env) == (TracingRequest() if sends else None)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({**AT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf only"),
        ({**AT, "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER names no exporter"),
    ],
)
def test_what_cannot_be_is_one_line_and_no_failure(env: dict[str, str], says: str) -> None:
    asked = tracing_request(env)
    assert asked is not None
    listener, line = asked.start("gemini", 0.0, print)
    assert listener is None and says in line and "\n" not in line


def test_without_the_extra_the_line_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_packages() == ""
    real: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "sdk" in name else real(name))
    listener, line = TracingRequest().start("gemini", 0.0, print)
    assert listener is None and "pip install 'wal-agent[otel]'" in line

    def no_parent(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", no_parent)
    assert "wal-agent[otel]" in missing_packages()
