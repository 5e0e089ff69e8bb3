"""Looked on from outside while the real CLI works, dies and is taken up again: scraped, probed, logged, traced."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.scene import TTL, Run, Scene, shell, until
from tests.unit.observe.collector import collecting
from wal_agent.rehearsal.model import Turn

TASK = "please do the work"
SECRET = "ghp_" + "a1B2" * 9


def ask(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as got:
            return got.status, got.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def served(run: Run) -> str:
    """Where it says that its metrics are."""
    found = until(lambda: re.search(r"metrics at (http://[^/]+)/metrics", run.stderr()), "it says where metrics are")
    return str(found[1])


def values(text: str) -> dict[str, float]:
    """Samples by name and values of labels; histograms by their counts."""
    return {
        " ".join([s.name, *(s.labels[key] for key in sorted(s.labels))]): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
        if not s.name.endswith(("_bucket", "_sum"))
    }


def test_a_crash_and_its_recovery_as_operators_see_them(scene: Scene, tmp_path: Path) -> None:
    scene.script(Turn(calls=[shell(f"echo token={SECRET} > /dev/null; touch hangs; sleep 600")]))
    machine = scene.machine("vm-1")
    prom, log = tmp_path / "wal.prom", tmp_path / "wal.log"
    options = ["--metrics-addr", "127.0.0.1:0", "--metrics-file", str(prom), "--log-file", str(log)]
    with collecting() as collector:
        env: dict[str, Any] = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces"}
        env["OTEL_BSP_SCHEDULE_DELAY"] = "50"
        run = machine.ask(TASK, options=options, **env)
        url = served(run)
        until((scene.workspace / "hangs").exists, "the tool runs")
        until(lambda: ask(f"{url}/readyz") == (200, "ok\n"), "lease, hooks and saves are in order")
        assert ask(f"{url}/healthz") == (200, "ok\n")
        until(lambda: values(ask(f"{url}/metrics")[1]).get("wal_agent_journal_records_total intent"), "it is counted")
        found = values(ask(f"{url}/metrics")[1])
        assert found["wal_agent_phase executing_tools"] == found["wal_agent_lease_generation"] == 1
        assert 0 < found["wal_agent_lease_seconds_remaining"] <= float(TTL)
        assert found["wal_agent_hook_seconds_count allow PreToolUse"] == 1
        assert found["wal_agent_store_requests_total put ok"] > 2
        until(lambda: collector.spans, "the trace is seen while the run lives")
        (crashed,) = {span.trace_id.hex() for span in collector.spans}
        run.kill()
        run.died()

        scene.script(Turn(text="I looked. I stop here."))
        again = machine.ask(TASK, options=["--wait", *options], wait=True, **env)
        assert again.process.returncode == 0, again.stderr()
        assert "a bug in" not in again.stderr()
        until(lambda: any(s.name == "invoke_agent codex" for s in collector.spans), "the root is sent at the end")
        (link,) = next(s for s in collector.spans if s.name == "restore").links
        assert link.trace_id.hex() == crashed

    openings = [r for r in scene.records() if r["type"] == "opening"]
    assert openings[0]["trace"] == crashed != openings[1]["trace"]
    at_end = values(prom.read_text())
    assert at_end["wal_agent_recoveries_total dead resumed"] == at_end["wal_agent_dangling_calls_total"] == 1
    assert at_end["wal_agent_lease_seconds_remaining"] == 0, "given up"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    second = [line["event"] for line in lines if line["epoch"] == 2]
    assert second[:2] == ["lease.acquired", "crash.detected"] and second[-1] == "lease.released"
    assert {"restore.done", "recovery.prompted", "agent.started", "run.ready"} <= set(second)
    assert {line["job"] for line in lines} == {"job"}
    outside = [prom.read_text(), log.read_text(), *map(str, collector.spans)]
    assert SECRET not in "".join(outside) and "touch hangs" not in "".join(outside)


def test_a_taken_port_is_78_and_nothing_is_run(scene: Scene) -> None:
    with collecting() as other:
        run = scene.machine("vm-1").ask(TASK, options=["--metrics-addr", other.url[7:]], wait=True)
    assert run.process.returncode == 78
    assert "Address already in use. Nothing was run. Is another run there?" in run.stderr()
    assert not scene.model.requests and not scene.bucket.exists()
