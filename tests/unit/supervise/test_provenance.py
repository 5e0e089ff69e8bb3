from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.cli.shelf import SECRET
from wal_agent.bucket.base import MemoryBucket
from wal_agent.cli.fleet import describe_loss
from wal_agent.cli.job import JobContext
from wal_agent.config import JOB
from wal_agent.errors import ConfigError
from wal_agent.fleet.jobs import Job
from wal_agent.notify.message import Facts
from wal_agent.supervise.provenance import NOBODY, SessionOwner, shown_command
from wal_agent.supervise.settings import load
from wal_agent.wal.keys import Keys


def test_a_note_is_of_one_session_in_one_workspace(tmp_path: Path) -> None:
    one, other = SessionOwner(tmp_path, "s1", Path("/w")), SessionOwner(tmp_path, "s1", Path("/v"))
    assert not one.known() and not one.foreign("job")
    one.give("job")
    one.give("fork")
    assert one.known() and one.foreign("job") and not one.foreign("fork")
    assert not other.known() and not other.foreign("job")
    assert len(list((tmp_path / "sessions").iterdir())) == 1


def test_nobody_is_no_job(tmp_path: Path) -> None:
    assert not JOB.fullmatch(NOBODY)
    whose = SessionOwner(tmp_path, "s1", Path("/w"))
    whose.give(NOBODY)
    assert whose.foreign("job")


def test_a_disk_that_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        SessionOwner(tmp_path, "s1", Path("/w")).give("job")


@pytest.mark.parametrize("url", [f"s3://key:{SECRET}@acme/jobs", f"gs://acme/{SECRET}"])
def test_no_shown_command_holds_a_secret_of_the_bucket(tmp_path: Path, url: str) -> None:
    """A command with "[redacted]" in it cannot be pasted, so that bucket is left out; the arguments stay."""
    plain = load("gemini", tmp_path, {"HOME": str(tmp_path)}, {"bucket": "gs://acme/jobs", "job": "shop"})
    assert shown_command("gemini", plain, ("-p", "go")) == (
        "wal-agent run gemini --job shop --bucket gs://acme/jobs -- -p go"
    )
    settings = replace(plain, bucket=url)
    assert shown_command("gemini", settings, ("-p", "go")) == "wal-agent run gemini --job shop -- -p go"
    job = JobContext(settings, MemoryBucket(), Keys("shop"), tmp_path, "", "gemini")
    title, text = describe_loss(Job(job="shop", state="crashed", agent="gemini"), url)
    for shown in (job.options(), job.bucket_option(), title, text):
        assert "--bucket" not in shown and SECRET not in shown and "[redacted]" not in shown
    assert Facts("shop", url, "gemini", "vm", "/w").command("status") == "wal-agent status --job shop"
