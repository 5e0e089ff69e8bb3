"""cli/log.py: the log for people, redacted, one line or one JSON object a record."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tests.unit.cli.shelf import KEYS, LAST, SECRET, Run, Shelf, commit, full, intent, payload
from wal_agent.cli.log import Entry, as_json, as_line, describe, read_entries, record_type
from wal_agent.records import AnyRecord, End, ExitClass, FileDelta, RunEnded, Turn


@pytest.fixture
def found(tmp_path: Path) -> list[Entry]:
    return list(read_entries(full(tmp_path).bucket, KEYS))


def test_every_type_of_record_can_be_shown_in_both_ways(found: list[Entry]) -> None:
    assert {type(e.record) for e in found} == set(get_args(AnyRecord))
    assert [e.seq for e in found] == list(range(1, LAST + 1)) and {e.epoch for e in found} == {1}
    for entry in found:
        assert as_line(entry).startswith(f"{entry.seq:>5}  1970-01-01 " if entry.seq > 1 else "    1  ")
        told = json.loads(as_json(entry))
        assert (told["record"], told["epoch"], told["type"]) == (entry.seq, 1, record_type(entry.record))
        assert "t" not in told and told["time"] == entry.record.time


def test_no_secret_is_shown(found: list[Entry]) -> None:
    """RECOVERY.md. In an opening it may be the word behind an option."""
    text = "\n".join([*map(as_line, found), *map(as_json, found)])
    assert SECRET not in text and "hunter2" not in text
    assert text.count("[redacted]") >= 10
    opening = json.loads(as_json(found[0]))
    assert opening["args"] == ["--api-key", "[redacted]", "-p", "work"]


def test_json_is_plain_ascii(found: list[Entry]) -> None:
    """No control character gets to a terminal, and every line is one object whatever the locale."""
    for entry in found:
        line = as_json(entry)
        assert line.isascii() and line.isprintable()


def test_a_time_that_is_no_number_is_null(found: list[Entry]) -> None:
    """A hostile record; NaN is no JSON."""
    entry = found[1]
    hostile = msgspec.structs.replace(entry, record=msgspec.structs.replace(entry.record, time=float("nan")))
    told = json.loads(as_json(hostile), parse_constant=pytest.fail)
    assert told["time"] is None


def test_a_call_stands_beside_its_end(found: list[Entry]) -> None:
    ends = {e.record.call: e.end for e in found if e.kind == "intent" and hasattr(e.record, "call")}
    assert ends[1] is not None and ends[1].how == "failed" and ends[2] is None
    outcomes = [describe(e)[2] for e in found if e.kind == "intent"]
    assert outcomes == ["unknown    failed", "unknown    cut"], "the newest word on one that is open (I8)"


def test_the_first_end_of_a_call_is_its_end(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    ends = [End(time=2.0, call=1, how="done", by="hook"), End(time=3.0, call=1, how="interrupted", by="session")]
    job.writer.append(intent(1, command="ls"), *ends)
    commit(job)
    assert list(read_entries(shelf.bucket, KEYS))[1].end == ends[0]


def test_what_is_done_is_told_with_its_time(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    job.writer.append(intent(1, command="ls"), End(time=2.0, call=1, how="done", by="hook", duration_ms=38))
    commit(job)
    line = as_line(list(read_entries(shelf.bucket, KEYS))[1])
    assert line.split()[-3:] == ["done", "38", "ms"] and "#1 ls" in line


@pytest.mark.parametrize(
    ("cls", "code", "completed", "why", "told"),
    [
        ("completed", 0, True, "completed", ("code 0", "completed")),
        ("failed", 41, True, "the agent ended with 41", ("code 41 failed", "its turn was complete")),
        ("failed", 41, False, "no model", ("code 41 failed", "not completed no model")),
        ("hung", 0, False, "the model did not answer", ("hung: ended by wal-agent", "the model did not answer")),
        ("paused", 0, True, "paused", ("paused: ended by wal-agent", "")),
        ("out_of_memory", -9, False, "killed", ("code -9 out of memory", "not completed killed")),
        ("", 1, False, "", ("code 1", "not completed ")),
    ],
)
def test_how_an_agent_ended(cls: ExitClass, code: int, completed: bool, why: str, told: tuple[str, str]) -> None:
    record = RunEnded(time=1.0, code=code, completed=completed, why=why, cls=cls)
    assert describe(Entry(1, 1, "run_ended", record)) == ("agent ended", *told)


def test_long_text_is_shortened_behind_the_redaction(tmp_path: Path) -> None:
    record = Turn(
        time=1.0, state="started", session="s", prompt=payload(b"x" * 1980 + b" " + SECRET.encode() + b" y" * 99)
    )
    told = json.loads(as_json(Entry(1, 1, "turn", record)))["prompt"]["data"]
    assert "ghp_" not in told and told.startswith("x" * 1980 + " [redacted]") and told.endswith(" characters)")
    assert len(told) < 2050


def test_json_has_a_hash_of_saved_bytes_and_raw_has_the_bytes(found: list[Entry]) -> None:
    (saved, *_) = [entry for entry in found if isinstance(entry.record, FileDelta) and entry.record.edits]
    assert isinstance(saved.record, FileDelta)
    data = saved.record.edits[0].data.data
    assert data is not None
    shown = json.loads(as_json(saved))["edits"][0]["data"]
    assert shown == {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert base64.b64decode(json.loads(as_json(saved, raw=True))["edits"][0]["data"]["base64"]) == data


def test_a_crash_is_shown_before_it_is_recovered(run: Run, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    shelf.open(host="vm-1", ttl=0.001)  # its owner sends no heartbeat: it is dead at once
    where = ("--job", "shop", "--bucket", shelf.url)
    code, out, _ = run("log", "--crashes", *where)
    assert code == 0 and "not recovered yet: epoch 1 on vm-1" in out and "wal-agent run gemini --job shop" in out
    shelf.open("b", host="vm-2")
    assert "not recovered yet" not in run("log", "--crashes", *where)[1]


@pytest.mark.parametrize("columns", [80, 100, 119])
def test_a_line_fits_a_narrow_terminal_and_keeps_what_it_is_about(found: list[Entry], columns: int) -> None:
    for entry in found:
        line = as_line(entry, columns)
        assert len(line) <= columns, line
        assert line.startswith(f"{entry.seq:>5}  ")
        if entry.kind in ("intent", "end") and hasattr(entry.record, "call"):
            assert f"#{entry.record.call}" in line
