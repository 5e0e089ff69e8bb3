"""cli/steps.py: what a job keeps, read from its bucket; nothing is written from outside, and no value is in the log."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.cli.shelf import SECRET, Run, Shelf, commit, payload
from tests.unit.supervise.crew import short_folder
from wal_agent.cli.steps import _repeat
from wal_agent.errors import UsageError
from wal_agent.records import AnyRecord, Payload, StatePut, StepBegun, StepEnded, StepPaused
from wal_agent.steps import state
from wal_agent.supervise import ancestry
from wal_agent.wal.job import close_job

HOSTILE = b"\xff\x00\x1b[2J\n\xc2\x9b31m"
COMMAND = ("deploy", "--token", SECRET, "two words")


@pytest.fixture
def where(tmp_path: Path) -> tuple[str, ...]:
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    big = job.blobs.put(b"y" * 5000)
    records: list[AnyRecord] = [
        StatePut(time=5.0, step="cursor", version=1, value=payload(f"at {SECRET}".encode())),
        StatePut(time=6.0, step="raw", version=2, value=Payload(size=5000, blob=big)),
        StatePut(time=6.0, step="bytes", version=3, value=payload(HOSTILE)),
        StatePut(time=6.0, step="old", version=4, value=payload(b"old"), expires=7.0),
        StepPaused(time=8.0, name="cursor", until=99.0, reason="quota"),
        StepBegun(time=7.0, name="one", command=("make",)),
        StepEnded(time=8.0, name="one", how="failed", code=2, stdout=payload(SECRET.encode()), stdout_size=40),
        StepBegun(time=9.0, name="cut", command=COMMAND),
    ]
    job.writer.append(*records)
    commit(job)
    assert close_job(job, "closed") == "released"
    return ("--bucket", shelf.url, "--job", "shop")


def test_values_come_from_the_bucket_as_they_are(
    run: Run, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out, flush=lambda: None, isatty=lambda: False))
    assert run("state", "get", "raw", *where)[0] == 0 and out.getvalue() == b"y" * 5000


def test_no_escape_of_a_value_reaches_a_terminal(
    run: Run, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", shown)
    assert run("state", "get", "bytes", *where)[0] == 0
    lines = shown.getvalue().splitlines()
    assert len(lines) == 2 and all(line.isprintable() for line in lines)


def test_no_escape_of_kept_output_reaches_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`wal-agent step` repeats what the log kept; a program gets it as it was."""
    shown = StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    _repeat(shown, b"one\x1b[2J\ntwo\xc2\x9b31m\n")
    assert [line[:3] for line in shown.getvalue().split("\n")] == ["one", "two", ""]
    assert all(line.isprintable() for line in shown.getvalue().splitlines())
    piped = TextIOWrapper(BytesIO())
    _repeat(piped, b"one\x1b[2J\n")
    assert piped.buffer.getvalue() == b"one\x1b[2J\n"


def test_json_has_the_value_the_pause_and_the_result(run: Run, where: tuple[str, ...]) -> None:
    code, out, _ = run("state", "get", "cursor", *where, "--json")
    found = json.loads(out)
    assert (code, found["value"], found["version"], found["attempt"]) == (0, f"at {SECRET}", 1, 1)
    assert found["paused"] == {"time": 8.0, "until": 99.0, "reason": "quota"}
    assert json.loads(run("state", "get", "bytes", *where, "--json")[1])["base64"] == b64encode(HOSTILE).decode()
    one = json.loads(run("state", "get", "one", *where, "--json")[1])
    assert (one["value"], one["run"]["state"], one["run"]["code"], one["run"]["stdout"]) == (None, "failed", 2, 40)


@pytest.mark.parametrize("name", ["none", "old", "one"])
def test_where_there_is_no_value_the_exit_code_is_1(run: Run, where: tuple[str, ...], name: str) -> None:
    code, out, err = run("state", "get", name, *where)
    assert (code, out) == (1, "") and name in err


def test_python_reads_a_job_from_outside_of_a_run(where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAL_AGENT_SOCKET", raising=False)
    saved = state.of_job("shop", where[1])
    assert saved.get("raw") == b"y" * 5000 and saved.get("old") is None and saved.get("none") is None
    cursor = saved.entry("cursor")
    assert cursor is not None and (cursor.version, cursor.attempt) == (1, 1)
    assert [entry.step for entry in saved.list()] == ["cursor", "raw", "bytes", "one", "cut"]
    monkeypatch.setenv("WAL_AGENT_BUCKET", where[1])
    assert state.of_job("shop").get("bytes") == HOSTILE
    with pytest.raises(UsageError):
        state.of_job("another")
    with pytest.raises(UsageError):
        state.get("raw")


def test_a_command_is_shown_as_a_shell_reads_it(run: Run, where: tuple[str, ...]) -> None:
    for args in (("state", "list"), ("status",), ("log",)):
        assert "'two words'" in "".join(run(*args, *where)[1:]), args


def test_the_way_to_say_a_ttl_is_its_own(run: Run) -> None:
    code, _, err = run("state", "put", "a", "--ttl", "soon")
    assert code == 64 and "--ttl 30s" in err and "--until" not in err


def test_the_list_has_no_secret(run: Run, where: tuple[str, ...]) -> None:
    code, out, _ = run("state", "list", *where)
    assert code == 0 and SECRET not in out
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["cursor", "raw", "bytes", "one", "cut"]
    assert [e["step"] for e in json.loads(run("state", "list", *where, "--json")[1])["entries"]] == [
        "cursor",
        "raw",
        "bytes",
        "one",
        "cut",
    ]


def test_neither_log_nor_status_shows_a_value(run: Run, where: tuple[str, ...]) -> None:
    for args in (("log",), ("log", "--json"), ("status",), ("status", "--json")):
        _, out, err = run(*args, *where)
        assert SECRET not in out + err
    shown = [json.loads(line) for line in run("log", *where, "--json")[1].splitlines()]
    values = [r["value"] for r in shown if r["type"] == "state_put"]
    assert [sorted(value) for value in values] == [["sha256", "size"], ["blob", "size"], *[["sha256", "size"]] * 2]


def test_status_names_the_step_and_the_way_out(run: Run, where: tuple[str, ...]) -> None:
    out = run("status", *where)[1]
    assert "step cut" in out and "wal-agent ack cut --job shop" in out and "step one" not in out
    steps = json.loads(run("status", *where, "--json")[1])["steps"]
    assert [(s["step"], s["running"]) for s in steps] == [("cut", False)]


def test_outside_of_a_run_nothing_is_written(run: Run, where: tuple[str, ...], tmp_path: Path) -> None:
    value = tmp_path / "v"
    value.write_text("x")
    for args in (("state", "put", "a", str(value)), ("state", "delete", "a"), ("step", "a", "--", "true")):
        code, _, err = run(*args)
        assert code == 64 and "wal-agent run generic" in err
    assert run("state", "put", "a", str(value), "--ttl", "soon")[0] == 64
    assert run("state", "put", "1a", str(value))[0] == 64


def test_a_person_settles_a_step_by_its_name(run: Run, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    with short_folder() as folder:
        monkeypatch.setenv("WAL_AGENT_RUNTIME_DIR", str(folder))
        code, _, err = run("ack", "one", "--done", *where)
        assert code == 64 and "Those: cut" in err
        code, _, err = run("ack", "cut", "--not-done", *where)
        assert code == 0 and "step cut of job shop is settled" in err
        assert run("ack", "cut", "--done", *where)[0] == 64
    assert json.loads(run("status", *where, "--json")[1])["steps"] == []
    assert "cut" not in [e["step"] for e in json.loads(run("state", "list", *where, "--json")[1])["entries"]]


def test_an_agent_settles_none(run: Run, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ancestry, "outer_runs", lambda: (ancestry.OuterRun("r", 1),))
    assert run("ack", "cut", "--done", *where)[0] == 79
