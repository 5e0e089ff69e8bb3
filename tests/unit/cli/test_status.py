"""cli/status.py: `status --watch` and `log --follow`, as a person at another terminal uses them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from tests.unit.cli.shelf import KEYS, Run, Shelf, commit, intent
from wal_agent.bucket.decorators import MeterBucket
from wal_agent.cli.status import next_command, status_rows
from wal_agent.cli.view import Call, LastRewrite, View, continue_view
from wal_agent.records import End
from wal_agent.recovery.lease_policy import LeaseView, StopKind
from wal_agent.wal.reader import Replay


@contextmanager
def started(shelf: Shelf, home: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    where = ("--bucket", shelf.url, "--job", "shop")
    process = subprocess.Popen(
        [sys.executable, "-m", "wal_agent", *args, *where],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, Sequence[str]]:
    """By Ctrl-C."""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.splitlines()


def test_each_new_record_is_shown_once_as_it_comes(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    with started(shelf, tmp_path, "log", "--follow", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["type"] == "opening"
        for record in (intent(1), End(time=6.0, call=1, how="done", by="hook")):
            job.writer.append(record)
            commit(job)
            assert json.loads(process.stdout.readline())["record"] == job.writer.acked.seq
        code, err = ended(process)
    assert (code, err) == (130, [])


def test_the_job_is_shown_anew(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    job = shelf.open()
    with started(shelf, tmp_path, "status", "--watch", "--every", "0.2", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["calls"] == 0
        job.writer.append(intent(1))
        commit(job)
        while json.loads(process.stdout.readline())["calls"] == 0:
            pass
        assert ended(process)[0] == 130


def test_what_the_bucket_should_change_is_said_in_both_forms(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(tmp_path / "b")
    commit(shelf.open())
    monkeypatch.setattr("wal_agent.cli.status._bucket_advice", lambda _: ("end a rule",))
    where = ("status", "--bucket", shelf.url, "--job", "shop")
    assert json.loads(run(*where, "--json")[1])["advice"] == ["end a rule"]
    assert "bucket      end a rule" in run(*where)[1].splitlines()


def test_a_job_that_nobody_began_is_waited_for(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "b")
    with started(shelf, tmp_path, "status", "--watch", "--job", "none", "--every", "0.2") as process:
        assert process.stderr is not None
        assert "no job shop in file://" in process.stderr.readline()
        shelf.open()
        assert process.stdout is not None and process.stdout.readline().startswith("job         shop")
        assert ended(process)[0] == 130


@pytest.mark.parametrize("args", [[], ["--watch"]])
def test_how_often_it_is_looked_is_never_passed_over(run: Run, args: list[str]) -> None:
    code, out, err = run("status", *args, "--every", "0")
    assert (code, out, err.count("\n")) == (64, "", 1) and "--every 0 is not possible" in err


def test_a_second_look_reads_only_what_is_new(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    job = shelf.open()
    for number in range(1, 6):
        job.writer.append(intent(number))
        commit(job)
    meter = MeterBucket(shelf.bucket)
    first, before = continue_view(meter, KEYS, {}, "", Replay())
    job.writer.append(intent(6))
    commit(job)
    gets = meter.snapshot().get.requests
    second, _ = continue_view(meter, KEYS, {}, "", before)
    assert (first.calls, second.calls) == (5, 6)
    assert meter.snapshot().get.requests - gets == 2, "the lease and the new segment"


ASKED = Call(call=2, tool="Bash", input="./pay", cls="mutation", since=5.0, finding="unknown")
LOOKED = msgspec.structs.replace(ASKED, answered=True)
OVER = {"state": "released", "reason": "completed"}


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        ({}, "wal-agent run gemini --job shop"),
        ({"workspace": "/w/odd folder"}, "cd '/w/odd folder' && wal-agent run gemini --job shop"),
        ({"workspace": "/elsewhere", "host": "vm-2"}, "wal-agent run gemini --job shop"),
        ({"agent": "generic"}, "wal-agent resume --job shop"),
        ({"agent": ""}, "wal-agent resume --job shop"),
        ({"agent": "$(rm x)"}, "wal-agent run '$(rm x)' --job shop"),
        ({"state": "due", "until": 1.0}, "wal-agent run gemini --job shop"),
        ({"state": "released", "way": "halted"}, ""),
        (
            {"state": "released", "reason": "completed", "unsettled": (LOOKED,)},
            "wal-agent run gemini --job shop --continue",
        ),
        ({**OVER, "unsettled": (LOOKED, ASKED)}, "wal-agent run gemini --job shop"),
        ({**OVER, "reason": "left", "unsettled": (LOOKED,)}, "wal-agent run gemini --job shop"),
        ({"state": "running"}, ""),
        ({"state": "closed"}, ""),
    ],
)
def test_the_next_command_can_be_pasted(facts: dict[str, Any], command: str) -> None:
    known = {"job": "shop", "bucket": "memory://", "state": "crashed", "agent": "gemini", "host": "vm-1"}
    view = View(**{**known, "workspace": "/w", **facts})
    assert next_command(view, " --job shop", Path("/w"), "vm-1") == command
    rows = status_rows(view, " --job shop", command)
    assert any(row.startswith("next ") and row.endswith(command) for row in rows) is bool(command)
    if known | facts == known | {"state": "released"} | facts:  # what it says is what the command does
        said = next(row for row in rows if row.startswith("state "))
        assert ("--continue" in said) is ("--continue" in command)


def test_the_tokens_before_and_after_the_newest_rewrite_are_shown() -> None:
    done = LastRewrite(n=2, kind="compact", turns=30, tokens=120_000, left=9_000, time=1.0)
    rows = status_rows(View("shop", "file:///b", "closed", rewritten=done), " --job shop")
    (row,) = [row for row in rows if "tokens" in row]
    assert "about 120,000 tokens before, 9,000 after (wal-agent trace show 2 --job shop)" in row


def test_of_many_calls_those_that_ask_a_person_are_shown_and_the_rest_is_counted() -> None:
    """A status is a page, whatever was in flight."""
    calls = tuple(Call(n, "t", f"./c {n}", "unknown", 1.0, finding="unknown" if n > 90 else "") for n in range(1, 101))
    rows = status_rows(View("shop", "file:///b", "crashed", unsettled=calls, unlogged=calls), " --job shop")
    assert [row.split()[1] for row in rows if row.startswith("open") and "wal-agent ack" in row] == [
        f"#{n}" for n in range(91, 101)
    ]
    assert sum(row.startswith(("open", "unlogged")) and "wal-agent ack" not in row for row in rows) == 10 + 20
    assert [row.strip() for row in rows if "80 more calls" in row] == [
        "and 80 more calls: wal-agent effects --unsettled --job shop",
        "and 80 more calls: wal-agent log --job shop",
    ]


@pytest.mark.parametrize("state", get_args(LeaseView))
def test_a_row_of_status_begins_with_the_word_of_list(state: LeaseView) -> None:
    for way in get_args(StopKind):
        view = View("shop", "file:///b", state, way=way, reason="the agent ended with 41", host="vm-1")
        (row,) = [row for row in status_rows(view, " --job shop") if row.startswith("state ")]
        assert row.split()[1].rstrip(",;") == state
