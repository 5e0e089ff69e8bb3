"""`wal-agent doctor` for a bucket: each proof a line, 78 when one does not hold (the agent's part: tests/e2e)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn, cast

import pytest

from tests.faulty_bucket import Fault, FaultBucket
from tests.unit.bucket.test_check import IgnoresCreates, Lacks
from tests.unit.cli.shelf import Run, full
from wal_agent import bucket
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent
from wal_agent.bucket import folder
from wal_agent.bucket.base import Bucket, MemoryBucket
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import Denied
from wal_agent.rehearsal.selftest import prove


def test_without_an_agent_the_bucket_is_examined_and_left_as_it_was(run: Run, tmp_path: Path) -> None:
    code, out, err = run("doctor", "--bucket", (tmp_path / "b").as_uri())
    assert (code, err) == (0, "") and all(line.startswith("ok    ") for line in out.splitlines())
    for words in ("a second create is refused", "a replace of an old version is refused", "a listing shows", "is gone"):
        assert words in out
    assert "a changing tool call waits about" in out and "clock" in out and "gemini" not in out
    assert not list((tmp_path / "b").rglob("*="))


def test_json_has_the_proofs(run: Run, tmp_path: Path) -> None:
    code, out, err = run("doctor", "--json", "--bucket", (tmp_path / "b").as_uri())
    proofs = json.loads(out)["proofs"]
    assert (code, err) == (0, "") and len(proofs) > 12
    assert all(set(proof) == {"what", "ok", "detail"} and proof["ok"] for proof in proofs)


def test_an_address_with_credentials_is_told_without_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "open_bucket", lambda url: MemoryBucket(url="s3://me:hunter2hunter2@store/b"))
    for way in ((), ("--json",)):
        _, out, err = run("doctor", *way, "--bucket", "memory://x")
        assert "hunter2" not in out + err and "bucket s3://me:[redacted]@store/b" in out + err


@pytest.mark.parametrize(
    ("store", "line", "code"),
    [
        (IgnoresCreates(), "FAIL    a second create is refused: it was carried out", 78),
        (Lacks("list"), "FAIL    list: permission missing: this needs LIST.", 77),
    ],
)
def test_a_store_that_does_not_do_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch, store: Bucket, line: str, code: int
) -> None:
    monkeypatch.setattr(bucket, "open_bucket", lambda url: store)
    found, out, _ = run("doctor", "--bucket", "memory://x")
    assert found == code and line in out.splitlines()
    assert "ok      the current version can be replaced" in out


def test_a_bucket_that_is_away_is_a_line_with_the_reason(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = FaultBucket(FileBucket(tmp_path / "b"), lambda op, key: Fault(before=True))
    monkeypatch.setattr(bucket, "open_bucket", lambda url: away)
    monkeypatch.setattr("wal_agent.clock.time.sleep", lambda seconds: None)
    code, out, _ = run("doctor", "--bucket", (tmp_path / "b").as_uri())
    assert code == 78 and "FAIL    it can be used: The bucket did not answer" in out


def test_what_is_no_bucket_is_a_failed_proof(run: Run) -> None:
    code, out, _ = run("doctor", "--bucket", "ftp://x")
    assert code == 78 and "FAIL  the bucket can be used: 'ftp://x' is not a bucket" in out


def test_an_agent_that_is_not_installed_does_not_hide_the_bucket(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("WAL_AGENT_GEMINI", raising=False)
    code, out, _ = run("doctor", "gemini")
    assert code == 78 and "FAIL  gemini is installed" in out and "a second create is refused" in out
    assert run("doctor", "nonsense")[0] == 64


class TestForget:
    """The way out for a person who deleted a bucket, or a job, on purpose."""

    @pytest.fixture
    def url(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        shelf = full(tmp_path / "b")
        folder.remember_run(shelf.url, bucket.marker_of(shelf.url), "shop", 1, os.environ)
        return shelf.url

    def test_a_bucket(self, run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No command waits for it."""
        monkeypatch.setattr("wal_agent.clock.SystemClock.sleep", lambda *_: pytest.fail("waited in vain"))
        shutil.rmtree(tmp_path / "b")
        for command in (("status",), ("log",), ("gc",), ("unlock",), ("ack", "1", "--done")):
            code, out, err = run(*command, "--bucket", url, "--job", "shop")
            assert (code, out) == (69, "") and f"wal-agent doctor --forget --bucket {url}" in err, command
        assert not (tmp_path / "b").exists()
        assert run("doctor", "--bucket", url)[0] == 78
        code, _, err = run("doctor", "--forget", "--bucket", url)
        assert code == 0 and "forgot bucket" in err
        assert run("status", "--bucket", url, "--job", "shop")[0] == 64
        assert "knows nothing" in run("doctor", "--forget", "--bucket", url)[2]

    def test_a_job(self, run: Run, url: str, tmp_path: Path) -> None:
        shutil.rmtree(tmp_path / "b" / "shop")
        code, _, err = run("status", "--bucket", url, "--job", "shop")
        assert code == 69 and f"wal-agent doctor --forget --job shop --bucket {url}" in err
        assert run("doctor", "--forget", "--bucket", url, "--job", "shop")[0] == 0
        assert run("status", "--bucket", url, "--job", "shop")[0] == 64
        assert folder.known_bucket_id(url, os.environ)

    def test_a_job_is_named_for_nothing_else(self, run: Run, url: str) -> None:
        assert run("doctor", "--bucket", url, "--job", "shop")[0] == 64


class NoCredentials(MemoryBucket):
    """A store without credentials."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise Denied("Cannot do it: no AWS credentials.", "Log in.")

    get = put = delete = list = _refuse


def test_missing_credentials_are_one_line_and_77(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "open_bucket", lambda url: NoCredentials())
    code, out, _ = run("doctor", "--bucket", "memory://x")
    assert code == 77 and out.count("no AWS credentials") == 1, out
    assert "hook client: " in out


def test_an_agent_without_a_rehearsal_is_a_failed_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first agent of a person who follows the how-to."""
    toy = SimpleNamespace(name="toy", rehearsal=None, capabilities=AGENTS["gemini"].capabilities)
    (proof,) = prove(cast(Agent, toy), {})
    assert not proof.ok and "toy" in proof.what
