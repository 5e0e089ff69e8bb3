"""observe/__init__.py: what is asked for is there, what is not is not even loaded, and what cannot be is told first."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.observe.story import STORY
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import MemoryBucket
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.config import Settings
from wal_agent.errors import ConfigError, UsageError
from wal_agent.events import EventBus
from wal_agent.observe import Observers, start_observers
from wal_agent.observe.serve import Server


class Post:
    def __init__(self, tmp_path: Path) -> None:
        self.work = tmp_path.resolve() / "work"
        self.work.mkdir()
        self.out = tmp_path.resolve() / "out"
        self.out.mkdir()
        self.said: list[str] = []

    def look(self, env: Mapping[str, str] | None = None, on_screen: bool = False, **wanted: Any) -> Observers:
        settings = msgspec.structs.replace(Settings("memory://x", "shop-job"), **wanted)
        return start_observers(
            settings,
            env or {},
            agent="gemini",
            workspace=self.work,
            clock=FakeClock(),
            stalled=lambda now: False,
            say=self.said.append,
            on_screen=on_screen,
        )

    def live(self, found: Observers) -> None:
        failed: list[BaseException] = []
        bus = EventBus(found.listeners, lambda: 0.0, failed.append, last=60.0)
        for event in STORY:
            bus.emit(event)
        bus.close()
        assert failed == []


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def test_where_nothing_is_asked_for_nothing_is_there_nor_loaded(post: Post) -> None:
    found = post.look()
    bucket = MemoryBucket()
    assert (found.listeners, found.trace, found.metered(bucket)) == ((), "", bucket)
    script = """
import sys
from pathlib import Path
from wal_agent.config import Settings
from wal_agent.observe import start_observers
from wal_agent.clock import SystemClock
start_observers(Settings("memory://x", "j"), {}, agent="gemini", workspace=Path("/"), clock=SystemClock(),
        stalled=bool, say=print, on_screen=True)
heavy = ("prometheus_client", "opentelemetry", "wal_agent.observe.metrics", "wal_agent.observe.logs",
         "wal_agent.observe.serve", "wal_agent.redact", "http.server")
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_metrics_and_log_are_at_work(post: Post) -> None:
    found = post.look(
        metrics_addr="127.0.0.1:0",
        metrics_file=str(post.out / "w.prom"),
        metrics_job_label="on",
        log_file=str(post.out / "log"),
    )
    assert isinstance(found.metered(MemoryBucket()), MeterBucket)
    server = next(each for each in found.listeners if isinstance(each, Server))
    assert post.said == [f"metrics at http://{server.address}/metrics"]
    post.live(found)
    assert 'wal_agent_lease_generation{wal_job="shop-job"} 4.0' in (post.out / "w.prom").read_text()
    assert json.loads((post.out / "log").read_text().splitlines()[0])["event"] == "lease.acquired"
    assert len(post.said) == 1


def test_the_log_goes_to_stderr_but_never_into_an_agents_screen(post: Post, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="would write into the screen of the agent") as caught:
        post.look(on_screen=True, log_format="json")
    assert caught.value.hint.startswith("Add --log-file FILE")
    post.live(post.look(log_format="text", log_level="error"))
    out, err = capfd.readouterr()
    assert out == "" and [line.split()[2] for line in err.splitlines()] == ["agent.hung", "lease.lost", "run.halted"]
    post.live(post.look(on_screen=True, log_format="json", log_file=str(post.out / "log")))
    assert capfd.readouterr() == ("", "")


def test_off_is_off_where_a_person_says_so(post: Post) -> None:
    settings: dict[str, Any] = {"log_format": "off", "log_file": str(post.out / "log")}
    assert len(post.look(**settings).listeners) == 1
    said = post.look(**settings, sources={"log_format": "flag"})
    assert said.listeners == ()


@pytest.mark.parametrize("option", ["metrics_file", "log_file"])
def test_a_file_whose_every_change_would_be_saved_is_refused(post: Post, option: str) -> None:
    """Each save is told, what is told is written, and what is written would be saved."""
    (post.out / "way").symlink_to(post.work)
    for path in (post.work / "a.prom", post.out / "way" / "a.prom"):
        with pytest.raises(UsageError, match="lies in the workspace"):
            post.look(**dict[str, Any]({option: str(path)}))
    post.live(post.look(workspace="off", **dict[str, Any]({option: str(post.work / "a.prom")})))


def test_what_cannot_be_is_told_and_leaves_nothing_behind(post: Post) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        post.look(log_file=str(post.out / "no" / "log"))
    with pytest.raises(UsageError, match=r"end in \.prom"):
        post.look(metrics_file=str(post.out / "w.txt"))
    with pytest.raises(ConfigError, match="there is no folder"):
        post.look(metrics_addr="127.0.0.1:0", log_file=str(post.out / "no" / "log"))
    address = post.said[-1].removeprefix("metrics at http://").removesuffix("/metrics")
    Server(address, lambda path: (200, "", b"")).close()  # the port is free again


def test_who_asks_for_traces_has_their_id_at_once(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    found = post.look({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    assert len(found.trace) == 32 and int(found.trace, 16)
    post.live(found)


def test_who_cannot_have_traces_is_told_once_and_runs(post: Post) -> None:
    found = post.look({"OTEL_EXPORTER_OTLP_ENDPOINT": "x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert (found.listeners, found.trace, len(post.said)) == ((), "", 1)
