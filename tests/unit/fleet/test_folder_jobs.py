"""The jobs of a folder are found by notes and leases, also after a rename, and never those of another person."""

from __future__ import annotations

import random
import shutil
from itertools import count
from pathlib import Path

import pytest

from wal_agent.bucket.base import MemoryBucket
from wal_agent.cli.acp import find_jobs
from wal_agent.fleet.jobs import Job, Relation, find_folder_jobs, find_jobs_here, relate, relate_job
from wal_agent.records import Host, Owner
from wal_agent.supervise.identity import KnownJob, make_owner, remember_job
from wal_agent.supervise.machine import this_host
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore


def run_job(bucket: MemoryBucket, job: str, folder: Path, env: dict[str, str], agent: str = "gemini") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    owner = make_owner(folder, env)
    claim = LeaseRequest("0" * 16, this_host(env, Path("/dev/null")), agent, str(folder), 30.0, owner=owner)
    leases.acquire(JobStore(bucket, Keys(job), rng=random.Random(1)), seen=None, claim=claim, log_epoch=0)
    remember_job(env, owner.folder, KnownJob(bucket.url, job, agent))


def test_jobs_of_a_renamed_folder_and_around_it(tmp_path: Path) -> None:
    bucket, env = MemoryBucket(), {"HOME": str(tmp_path / "home")}
    shop = tmp_path / "shop"
    run_job(bucket, "gemini-shop", shop, env)
    run_job(bucket, "claude-src", shop / "src", env, "claude")
    run_job(bucket, "gemini-other", tmp_path / "other", env)
    shop = shop.rename(tmp_path / "shop-2")
    found = {j.job.job: (j.relation, j.job.agent, j.known, j.unfinished) for j in find_folder_jobs(bucket, shop, env)}
    assert found["gemini-shop"] == ("here", "gemini", True, True)
    assert "gemini-other" not in found
    inside = {j.job.job: j.relation for j in find_folder_jobs(bucket, shop / "src", env)}
    assert inside["claude-src"] == "here"


def test_the_job_of_another_person_is_not_of_this_folder(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    run_job(bucket, "gemini-shop", tmp_path / "anna" / "shop", {"HOME": str(tmp_path / "a")})
    ben = tmp_path / "ben" / "shop"
    run_job(bucket, "gemini-shop-2", ben, {"HOME": str(tmp_path / "b")})
    assert [j.job.job for j in find_folder_jobs(bucket, ben, {"HOME": str(tmp_path / "b")})] == ["gemini-shop-2"]


def test_a_job_that_two_agents_had_is_found_once(tmp_path: Path) -> None:
    bucket, env, shop = MemoryBucket(), {"HOME": str(tmp_path / "home")}, tmp_path / "shop"
    run_job(bucket, "nightly", shop, env)
    remember_job(env, make_owner(shop, env).folder, KnownJob(bucket.url, "nightly", "claude"))
    assert [job.job for job in find_jobs_here(bucket, shop, env)] == ["nightly"]


def test_a_session_s_job_is_found_however_long_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not found cannot be loaded; a start that only looks around begins no read after a while."""
    bucket, env, shop = MemoryBucket(), {"HOME": str(tmp_path / "home")}, tmp_path / "shop"
    run_job(bucket, "gemini-shop", shop, env)
    shutil.rmtree(tmp_path / "home")  # another machine, which has no note of it
    minutes = count(0, 60)
    monkeypatch.setattr("wal_agent.fleet.jobs.time.monotonic", lambda: next(minutes))
    assert [j.job.job for j in find_folder_jobs(bucket, shop, env)] == []
    monkeypatch.setenv("HOME", env["HOME"])
    assert [job.job for job in find_jobs(bucket, "gemini", shop, cut_off=False)] == ["gemini-shop"]


@pytest.mark.parametrize(
    ("other", "relation"), [("/w/shop", "here"), ("/w", "above"), ("/w/shop/a", "below"), ("/w/shop-2", None)]
)
def test_relations_of_folders(other: str, relation: Relation | None) -> None:
    assert relate(Path("/w/shop"), Path(other)) == relation


def test_a_lease_without_an_owner_counts_on_its_own_host_only() -> None:
    here = Host("vm-1", "b", "p", 1, "/l")
    old = Job(job="j", state="crashed", folder="/w/shop", raw_host="vm-1")
    me = Owner("anna", "1" * 32, "2" * 32)
    assert relate_job(old, Path("/w/shop"), me, here) == "here"
    other = Job(job="j", state="crashed", folder="/w/shop", raw_host="vm-2")
    assert relate_job(other, Path("/w/shop"), me, here) is None
