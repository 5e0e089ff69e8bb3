"""Every command that looks at a job takes its key, and says in one line (exit code 77) which one is missing."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import msgspec
import pytest

from tests.unit.bucket.test_encrypted_bucket import RIGHT, WRONG, claimed, open_job
from tests.unit.cli.shelf import Run
from tests.unit.wal.world import FIELDS, KEYS, FakeClock, drain, intent
from wal_agent.bucket.encryption import EncryptedBucket, Key
from wal_agent.bucket.file import FileBucket
from wal_agent.wal import lease as leases
from wal_agent.wal.job import close_job
from wal_agent.wal.job import open_job as begin
from wal_agent.wal.reader import replay
from wal_agent.wal.store import JobStore

READERS = [
    *(["log"], ["recover", "--dry-run"], ["ack", "1", "--done"]),
    *(["recall", "x"], ["checkpoint", "list"], ["checkpoint", "show"], ["stats", "--job", "shop"]),
]


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Commands that mean the job of these tests."""
    monkeypatch.setenv("WAL_AGENT_BUCKET", (tmp_path / "bucket").as_uri())
    monkeypatch.setenv("WAL_AGENT_JOB", "shop")
    return run


def bucket(tmp_path: Path) -> FileBucket:
    return FileBucket(tmp_path / "bucket")


def job_with_an_open_call(tmp_path: Path, key: Key | None) -> None:
    job = open_job(bucket(tmp_path), key)
    job.writer.append(intent(1))
    drain(job)
    close_job(job, "released")


def file_of(tmp_path: Path, key: Key) -> str:
    path = tmp_path / f"{key.id}.key"
    path.touch(mode=0o600)
    path.write_text(key.secret.hex() + "\n")
    return str(path)


def tree(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bucket"
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_without_the_key_or_with_another_a_command_is_77_and_changes_nothing(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    job_with_an_open_call(tmp_path, RIGHT)
    before = tree(tmp_path)
    code, out, err = run(*command)
    assert (code, out, err.count("\n")) == (77, "", 1)
    assert f"encrypted with key {RIGHT.id}, and no key was given. Give it with --encryption-key-file or" in err
    code, out, err = run(*command, "--encryption-key-file", file_of(tmp_path, WRONG))
    assert (code, out, err.count("\n")) == (77, "", 1)
    assert f"encrypted with key {RIGHT.id}; the key that was given is {WRONG.id}" in err
    assert WRONG.secret.hex() not in err
    assert tree(tmp_path) == before


def test_each_command_takes_the_key_by_option_and_by_variable(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_with_an_open_call(tmp_path, RIGHT)
    path = file_of(tmp_path, RIGHT)
    code, out, _ = run("log", "--json", "--encryption-key-file", path)
    assert code == 0 and [json.loads(line)["type"] for line in out.splitlines()] == ["opening", "intent"]
    code, out, _ = run("recover", "--dry-run", "--encryption-key-command", f"cat {path}")
    assert code == 0 and "nothing was changed" in out
    monkeypatch.setenv("WAL_AGENT_ENCRYPTION_KEY_FILE", path)
    assert json.loads(run("status", "--json")[1])["unsettled"][0]["call"] == 1
    code, _, err = run("ack", "1", "--done")
    assert code == 0 and "call #1 of job shop is settled" in err
    # The person's own epoch is encrypted as well, and the job has kept its key.
    found = leases.read_lease(bucket(tmp_path), KEYS)
    assert found is not None and (found.doc.epoch, found.doc.key) == (2, RIGHT.id)
    assert replay(EncryptedBucket(bucket(tmp_path), RIGHT), KEYS).state.open == ()


@pytest.mark.parametrize("given", [None, WRONG], ids=["none", "wrong"])
def test_status_without_the_key_tells_what_the_lease_says(run: Run, tmp_path: Path, given: Key | None) -> None:
    job_with_an_open_call(tmp_path, RIGHT)
    key = ["--encryption-key-file", file_of(tmp_path, given)] if given else []
    code, out, err = run("status", *key)
    assert (code, err) == (0, "") and "host-a" in out and "released, everything is saved" in out
    assert f"Job shop is encrypted with key {RIGHT.id}" in out and "last record" not in out
    told = json.loads(run("status", "--json", *key)[1])
    assert (told["state"], told["host"], told["epoch"], told["damage"]) == ("released", "host-a", 1, "")
    assert RIGHT.id in told["locked"]


def test_a_job_in_the_clear_refuses_a_key(run: Run, tmp_path: Path) -> None:
    job_with_an_open_call(tmp_path, None)
    key = ["--encryption-key-file", file_of(tmp_path, RIGHT)]
    for command in READERS[1:]:
        code, _, err = run(*command, *key)
        assert code == 77 and "Job shop is not encrypted, but a key was given" in err
    assert "is not encrypted" in json.loads(run("status", "--json", *key)[1])["locked"]
    assert json.loads(run("status", "--json")[1])["locked"] == ""
    code, _, err = run("log", *key)
    assert code == 73 and "is not encrypted, but a key was given" in err


def test_a_key_that_cannot_be_used_is_said_before_the_bucket_is_asked(run: Run, tmp_path: Path) -> None:
    path = file_of(tmp_path, RIGHT)
    assert run("status", "--encryption-key-file", path, "--encryption-key-command", "true")[0] == 64
    Path(path).chmod(0o644)
    code, out, err = run("status", "--encryption-key-file", path)
    assert (code, out) == (78, "") and f"chmod 600 {path}" in err
    code, out, err = run("status", "--encryption-key-command", "false")
    assert (code, out) == (77, "") and "The key command failed (exit code 1)" in err
    assert not (tmp_path / "bucket").exists()


def test_resume_reads_the_command_of_a_job_with_its_key(run: Run, tmp_path: Path) -> None:
    """With the key that the line of a drain names. This job was started without a command, which is 78."""
    wanted = msgspec.structs.replace(claimed("a", RIGHT), agent="generic")
    sealed, chance = EncryptedBucket(bucket(tmp_path), RIGHT), random.Random("a")
    job = begin(JobStore(sealed, KEYS, FakeClock(), chance), claim=wanted, fields=FIELDS, seen=None, cause="first")
    close_job(job, "released")
    assert run("resume")[0] == 77
    code, _, err = run("resume", "--encryption-key-file", file_of(tmp_path, RIGHT))
    assert code == 78 and "generic has no command to run" in err
