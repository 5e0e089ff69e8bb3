"""cli/checkpoint.py: list, show, diff and rebuild, on a job in a folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.shelf import EVIL, KEYS, SECRET, Run, Shelf, commit, intent, payload
from wal_agent.conversation.checkpoint import Occasion, checkpoint_of
from wal_agent.records import Checkpoint, Progress, Turn
from wal_agent.wal.job import OpenedJob


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "b")


def checkpointed(job: OpenedJob, **more: object) -> int:
    """Make one; its record's number."""
    at = job.writer.acked
    made: Checkpoint = checkpoint_of(at.state, Occasion("shop", "gemini", at.seq, "manual", time.time()))
    job.writer.append(msgspec.structs.replace(made, **more))
    commit(job)
    return job.writer.acked.seq


def begun(shelf: Shelf) -> OpenedJob:
    job = shelf.open()
    job.writer.append(
        Turn(time=2.0, state="started", session="s", prompt=payload(f"use {SECRET} {EVIL}".encode())),
        intent(1, command=f"curl -H 'Authorization: Bearer {SECRET}' x{EVIL}"),
    )
    commit(job)
    return job


def test_list_show_and_diff(shelf: Shelf, run: Run) -> None:
    job, where = begun(shelf), ("--bucket", shelf.url, "--job", "shop")
    first = checkpointed(job)
    job.writer.append(Progress(time=3.0, title="Deploy", progress=40, note=f"said {EVIL}{SECRET}"))
    commit(job)
    checkpointed(job)

    code, out, _ = run("checkpoint", "list", *where)
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["2", str(first + 2)],
        ["1", str(first)],
    ]
    code, out, _ = run("checkpoint", "list", *where, "--json")
    assert json.loads(out)["checkpoints"][0]["title"] == "Deploy"

    code, out, _ = run("checkpoint", "show", *where)
    assert code == 0 and "Deploy" in out and SECRET not in out and "\x1b" not in out
    code, out, _ = run("checkpoint", "show", "1", *where, "--json")
    assert json.loads(out)["sequence_number"] == 1 and SECRET not in out
    code, out, _ = run("checkpoint", "diff", "1", "2", *where)
    assert code == 1 and any(line.startswith("+") and "Deploy" in line for line in out.splitlines())
    assert run("checkpoint", "diff", "1", "1", *where)[0] == 0
    code, out, _ = run("checkpoint", "diff", "1", "2", "--json", *where)
    assert code == 1 and [each["sequence_number"] for each in json.loads(out)["checkpoints"]] == [1, 2]
    assert run("checkpoint", "show", "7", *where)[0] == 64


def test_it_is_built_again_as_of_any_record(shelf: Shelf, run: Run) -> None:
    job, where = begun(shelf), ("--bucket", shelf.url, "--job", "shop")
    at = job.writer.acked.seq
    job.writer.append(Progress(time=3.0, title="Later"))
    commit(job)
    code, out, _ = run("checkpoint", "show", "--at", str(at), *where, "--json")
    found = json.loads(out)
    assert code == 0 and found["record"] == at and found["active_task"]["title"] != "Later"
    assert [c["call"] for c in found["context"]["tool_calls"]] == [1]


def test_a_damaged_one_is_named_and_the_one_before_is_shown(shelf: Shelf, run: Run) -> None:
    job, where = begun(shelf), ("--bucket", shelf.url, "--job", "shop")
    checkpointed(job)
    harmed = checkpointed(job, body=b'{"sha256":"0"}')
    code, out, err = run("checkpoint", "show", *where, "--json")
    assert code == 0 and json.loads(out)["sequence_number"] == 1
    assert f"checkpoint 2 (record {harmed}) is skipped" in err
    code, out, err = run("checkpoint", "list", *where)
    assert len(out.splitlines()) == 2 and "skipped" in err
    assert run("checkpoint", "show", "2", *where)[0] == 73


def test_in_front_of_damage_they_are_listed_and_shown(shelf: Shelf, run: Run) -> None:
    job, where = begun(shelf), ("--bucket", shelf.url, "--job", "shop")
    checkpointed(job)
    for n in (2, 3):
        job.writer.append(intent(n))
        commit(job)
    shelf.bucket.delete(KEYS.segment(job.writer.acked.seq - 1))
    code, out, err = run("checkpoint", "list", *where)
    assert code == 0 and len(out.splitlines()) == 2 and "can be restored" in err
    code, out, err = run("checkpoint", "show", *where, "--json")
    assert code == 0 and json.loads(out)["sequence_number"] == 1


def test_a_job_that_does_not_run_makes_none(shelf: Shelf, run: Run) -> None:
    begun(shelf)
    code, out, err = run("checkpoint", "--title", "x", "--bucket", shelf.url, "--job", "shop")
    assert code == 64 and out == "" and "does not run on this machine" in err
    assert run("checkpoint", "--title", "x", "list", "--bucket", shelf.url, "--job", "shop")[0] == 64
    assert run("checkpoint", "--job", "shop", "list", "--bucket", shelf.url)[0] == 64, "not dropped without a word"
    assert run("checkpoint", "--progress", "101")[0] == 64
