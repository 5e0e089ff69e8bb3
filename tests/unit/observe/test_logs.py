"""observe/logs.py, logs.py: names and keys that are promised, and nothing in them that must not leave."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.unit.observe.story import CRASHED, SECRET, STORY, TAKEN
from wal_agent.errors import ConfigError
from wal_agent.events import AgentEnded, CallStarted, Event, LeaseRenewed, LeaseSettled, Ready
from wal_agent.observe.logs import Level, Log, lines_of, open_log

HEAD = ["time", "level", "event", "job", "host", "epoch", "run", "call_id", "msg"]
AT = 1_700_000_000.25

# Level and the event's own keys. A change here is a change of what is promised.
PROMISED: dict[str, tuple[Level, set[str]]] = {
    "lease.acquired": ("info", {"cause", "bucket", "agent", "agent_version", "workspace", "ttl"}),
    "crash.detected": ("warning", {"cause"}),
    "lease.renewed": ("debug", {"left"}),
    "lease.renewal_failed": ("warning", {"left"}),
    "lease.lost": ("error", set()),
    "lease.released": ("info", {"state", "until"}),
    "restore.done": ("info", {"from_epoch", "old_host", "stopped", "put_back", "seconds", "trace"}),
    "recovery.prompted": ("info", {"alert", "calls", "completed", "not_started", "partial", "unknown"}),
    "run.halted": ("error", {"code", "hint"}),
    "run.ready": ("info", set()),
    "run.paused": ("info", {"until"}),
    "agent.started": ("info", {"pid", "session", "resumed"}),
    "agent.exited": ("info", {"code", "class"}),
    "agent.hung": ("error", {"what", "seconds"}),
    "agent.restarting": ("warning", {"attempt", "delay", "class"}),
    "hook.denied": ("warning", {"hook", "reason", "seconds"}),
    "hook.answered": ("debug", {"hook", "reason", "seconds"}),
    "call.started": ("info", {"tool", "class", "agent_call"}),
    "call.ended": ("info", {"tool", "how", "seconds"}),
    "calls.left_open": ("warning", {"count", "calls"}),
    "phase.changed": ("info", {"phase", "was", "tool", "lasted"}),
    "phase.late": ("warning", {"what", "seconds", "tool"}),
    "preemption.notice": ("warning", {"source", "left"}),
    "drain.started": ("info", {"source", "budget"}),
    "drain.finished": ("info", {"seconds", "in_time"}),
    "sync.done": ("debug", {"what", "size", "seconds"}),
    "checkpoint.created": ("debug", {"number", "trigger", "size"}),
    "checkpoint.restored": ("info", {"number", "age", "rebuilt"}),
    "checkpoint.failed": ("warning", set()),
    "compaction.lost": ("warning", {"compaction", "mended"}),
    "records.acknowledged": ("debug", {"kinds", "unsettled"}),
}


def written(path: Path, form: str, level: Level, *events: Event) -> list[str]:
    log = Log(open_log(path), form, level, "shop-job", print)
    for event in events:
        log.on_event(AT, event)
    log.close()
    return path.read_text().splitlines()


def objects(path: Path, level: Level, *events: Event) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written(path, "json", level, *events)]


def test_the_story_has_every_event() -> None:
    assert {type(each) for each in STORY} == set(get_args(Event))


def test_events_levels_and_keys_are_the_promised_ones(tmp_path: Path) -> None:
    found = objects(tmp_path / "log", "debug", *STORY)
    assert all(list(line)[: len(HEAD)] == HEAD for line in found)
    assert {line["event"]: (line["level"], set(line) - set(HEAD)) for line in found} == PROMISED


def test_every_line_says_whose_it_is(tmp_path: Path) -> None:
    first, *rest = objects(tmp_path / "log", "info", Ready(), *STORY)
    assert [first[key] for key in ("job", "host", "epoch", "run")] == ["shop-job", "", 0, ""]
    assert {tuple(line[key] for key in ("job", "host", "epoch", "run")) for line in rest} == {
        ("shop-job", "host-vm-22", 4, "run-7f3a")
    }
    assert {line["time"] for line in rest} == {"2023-11-14T22:13:20.250Z"}
    assert [line["call_id"] for line in rest if line["event"].startswith("call.")] == [412, 412]
    assert all(line["call_id"] is None for line in rest if not line["event"].startswith("call."))


def test_the_level_is_the_least_that_is_written(tmp_path: Path) -> None:
    assert {line["level"] for line in objects(tmp_path / "a", "warning", *STORY)} == {"warning", "error"}
    assert {line["level"] for line in objects(tmp_path / "b", "info", *STORY)} == {"info", "warning", "error"}
    assert objects(tmp_path / "c", "info", LeaseRenewed(1)) == []


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_no_control_character_and_no_second_line(tmp_path: Path, form: str) -> None:
    evil = f"deploy\x1b]0;x\x07\n\u202e{SECRET}\x9b2J" + "z" * 100_000
    lines = written(tmp_path / "log", form, "debug", *STORY, CallStarted(7, evil, "unknown", evil))
    assert len(lines) == sum(len(lines_of(each)) for each in STORY) + 1
    text = "\n".join(lines)
    assert SECRET not in text and "[redacted]" in text
    assert [c for c in text if not " " <= c <= "~" and c != "\n"] == []
    assert max(map(len, lines)) < 10_000


def test_text_is_one_line_of_words(tmp_path: Path) -> None:
    (line,) = written(tmp_path / "log", "text", "info", AgentEnded(3, "failed", 'it said "no"'))
    assert line == (
        '2023-11-14T22:13:20.250Z warning agent.exited job=shop-job epoch=0 msg="it said \\"no\\"" code=3 class=failed'
    )


def test_a_lease_that_is_left_is_a_warning_of_its_own_name() -> None:
    (line,) = lines_of(LeaseSettled("left", "the bucket was away"))
    assert (line.level, line.event) == ("warning", "lease.left")


def test_the_recovered_trace_is_named(tmp_path: Path) -> None:
    assert next(x for x in objects(tmp_path / "a", "info", *STORY) if x["event"] == "restore.done")["trace"] == CRASHED


def test_the_file_is_private_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert len(written(path, "json", "info", Ready())) == 1
    assert len(written(path, "json", "info", TAKEN)) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_runs_may_share_a_file(tmp_path: Path) -> None:
    """Each line is one appending write."""

    def write() -> None:
        log = Log(open_log(tmp_path / "log"), "json", "info", "j", print)
        for _ in range(300):
            log.on_event(AT, Ready())
        log.close()

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert found == ["run.ready"] * 600


def test_what_is_no_file_of_its_own_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    for name in ("fifo", "link", "."):
        with pytest.raises(ConfigError, match="--log-file"):
            open_log(tmp_path / name)
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ConfigError, match="is not a regular file"):
        open_log(tmp_path / "fifo")
    os.close(reader)
    assert not (tmp_path / "log").exists()


def test_a_disk_that_refuses_is_told_once_at_the_end() -> None:
    said: list[str] = []
    fd = os.open("/dev/full", os.O_WRONLY)
    log = Log(fd, "json", "info", "j", said.append)
    for _ in range(3):
        log.on_event(AT, Ready())
    log.close()
    assert said == ["3 lines of the log could not be written: No space left on device."]
