"""observe/metrics.py: what node_exporter finds, at any moment and after the end."""

from __future__ import annotations

import itertools
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.observe.story import STORY
from tests.unit.supervise.crew import until
from tests.unit.wal.world import FakeClock
from wal_agent.errors import ConfigError
from wal_agent.events import LeaseRenewed, Ready
from wal_agent.observe.metrics import Metrics, PromFile
from wal_agent.observe.serve import exposition


def test_the_file_stands_from_the_start_and_tells_the_end(tmp_path: Path) -> None:
    metrics, path, said = Metrics(FakeClock()), tmp_path / "wal.prom", list[str]()
    before = os.umask(0o077)
    try:
        file = PromFile(path, exposition(metrics.registry), said.append)
        assert "wal_agent_lease_generation 0.0" in path.read_text()
        for event in STORY:
            metrics.on_event(0.0, event)
            file.on_event(0.0, event)
        file.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "another user's collector reads it"
    found = {f.name: f for f in text_string_to_metric_families(path.read_text())}
    assert found["wal_agent_lease_generation"].samples[0].value == 4
    assert ([p.name for p in tmp_path.iterdir()], said) == (["wal.prom"], [])


def test_many_changes_are_few_writes(tmp_path: Path) -> None:
    """At most one in a rest, and one at the end, whatever came meanwhile."""
    writes = itertools.count(1)
    file = PromFile(tmp_path / "a.prom", lambda: b"%d\n" % next(writes), print, rest=3600)
    for _ in range(50):
        file.on_event(0.0, LeaseRenewed(1))
        time.sleep(0.001)  # a chance to do it wrong
    file.close()
    assert (tmp_path / "a.prom").read_text() == "2\n"


def test_a_change_while_it_is_written_is_written_too(tmp_path: Path) -> None:
    """Else the last word of a run would be missing from what it leaves."""
    state, at_it, go_on = {"value": 0}, threading.Event(), threading.Event()

    def text() -> bytes:
        told = b"%d\n" % state["value"]
        if state["value"] == 1:
            at_it.set()
            go_on.wait(30)
        return told

    file = PromFile(tmp_path / "a.prom", text, print, rest=0.0)
    state["value"] = 1
    file.on_event(0.0, Ready())
    assert at_it.wait(30)
    state["value"] = 2
    closing = threading.Thread(target=file.close)
    closing.start()
    until(file._stop.is_set, "it is told to end")
    go_on.set()
    closing.join(30)
    until(lambda: (tmp_path / "a.prom").read_text() == "2\n", "the last change is there")


def test_a_folder_that_refuses_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--metrics-file .* cannot be written: No such file or directory"):
        PromFile(tmp_path / "no" / "a.prom", lambda: b"", print)


def test_a_folder_that_goes_is_told_at_the_end_and_once(tmp_path: Path) -> None:
    folder, said = tmp_path / "f", list[str]()
    folder.mkdir()
    file = PromFile(folder / "a.prom", lambda: b"x\n", said.append, rest=0.0)
    (folder / "a.prom").unlink()
    folder.rmdir()
    for _ in range(50):
        file.on_event(0.0, Ready())
    file.close()
    assert said == [f"the metrics in {folder}/a.prom are old: No such file or directory."]
