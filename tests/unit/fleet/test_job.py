"""What the fleet takes a job for, from its lease."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from tests.unit.fleet.leases import DRAINED, ELSEWHERE, HOST, seen
from wal_agent.bucket.base import MemoryBucket
from wal_agent.errors import PersonNeeded, Unavailable
from wal_agent.fleet.jobs import MAX_WORDS, STATES, Job, Jobs, classify_job, count_states, handed_over, sort_jobs
from wal_agent.recovery.lease_policy import Local
from wal_agent.supervise.run import stopped_by

TABLE: list[tuple[str, float, dict[str, Any], Local, str, bool, float]] = [
    ("alive", 5, {}, ELSEWHERE, "running", False, 0),
    ("silent for longer than its ttl", 31, {}, ELSEWHERE, "crashed", True, 31),
    ("its lock is free here", 5, {}, Local(HOST.boot, HOST.pidns, lock="dead"), "crashed", True, 5),
    ("its lock is held here", 99, {}, Local(HOST.boot, HOST.pidns, lock="alive"), "running", False, 0),
    ("the lock of another kernel says nothing", 5, {}, Local("x", "1", lock="dead"), "running", False, 0),
    ("spools, silent", 31, {"spool": "/s"}, ELSEWHERE, "crashed", True, 31),
    ("ended", 9, {"state": "closed"}, ELSEWHERE, "closed", False, 0),
    ("drained", 9, {"state": "released", "reason": DRAINED}, ELSEWHERE, "released", True, 9),
    ("preempted", 9, {"state": "released", "reason": "preempted (gcp)"}, ELSEWHERE, "released", True, 9),
    ("its agent failed", 9, {"state": "released", "reason": "ended with 1"}, ELSEWHERE, "released", False, 9),
    ("halted", 9, {"state": "released", "reason": "stopped: a person is needed"}, ELSEWHERE, "released", False, 9),
    ("paused", 9, {"state": "released", "until": 1060.0}, ELSEWHERE, "paused", False, 0),
    ("its pause is over", 70, {"state": "released", "until": 1060.0}, ELSEWHERE, "due", True, 10),
    ("unlocked", 9, {"state": "unlocked"}, ELSEWHERE, "unlocked", False, 0),
]


@pytest.mark.parametrize(
    ("age", "fields", "local", "state", "needs", "waits"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE]
)
def test_what_a_job_is_taken_for(age: float, fields: Any, local: Local, state: str, needs: bool, waits: float) -> None:
    job = classify_job(seen(age, **fields), local)
    assert (job.state, job.needs_host) == (state, needs)
    assert job.waits == pytest.approx(waits)
    assert (job.job, job.epoch, job.host, job.agent, job.age) == ("shop", 3, "vm-1", "gemini", age)


def test_the_clock_of_who_wrote_the_lease_counts_for_nothing() -> None:
    """A pause of 60 s, written by a host whose clock is a year off."""
    far = {"state": "released", "time": 1000.0 + 3e7, "until": 1060.0 + 3e7}
    assert classify_job(seen(59, **far), ELSEWHERE).state == "paused"
    assert classify_job(seen(61, **far), ELSEWHERE).state == "due"


def test_a_run_that_spooled_can_be_carried_on_by_one_host_only() -> None:
    assert classify_job(seen(31, spool="/s"), ELSEWHERE).only_on == "vm-1"
    assert classify_job(seen(31, spool="/s"), Local("boot-2", "1", spool="free")).only_on == ""
    assert classify_job(seen(5, spool="/s"), ELSEWHERE).only_on == ""


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("drained (SIGTERM)", True),
        ("preempted (aws)", True),
        ("stopped: interrupted by SIGTERM before the agent was started.", True),
        ("stopped: this machine is going away (gcp); the agent was not started.", True),
        ("stopped: interrupted by SIGINT before the agent was started.", False),
        ("the agent said: drained (SIGTERM)", False),
        ("drained (SIGTERM)\x1b[2J", False),
        ("stopped: 5 crashes in 10 min", False),
        ("stopped (69): The bucket cannot be reached.", True),
        ("stopped: stopped (69): ", False),
        ("", False),
    ],
)
def test_which_reasons_say_that_the_machine_went_away(reason: str, expected: bool) -> None:
    assert handed_over(reason) is expected


def test_a_run_without_its_bucket_says_so_in_the_words_that_the_fleet_goes_by() -> None:
    assert handed_over(stopped_by(Unavailable("The bucket cannot be reached.")))
    assert not handed_over(stopped_by(PersonNeeded("Look at call #1.")))


def test_secrets_in_a_lease_are_not_told() -> None:
    key = "ghp_" + "a1B2c3D4e5" * 4
    job = classify_job(seen(tool=f"curl {key}", reason=f"used {key}"), ELSEWHERE)
    assert key not in repr(job)


def shown(job: Job) -> str:
    return json.dumps(to_builtins(Jobs.of(MemoryBucket(), [job])), allow_nan=False)


def test_nothing_of_a_lease_is_told_with_a_secret_in_it() -> None:
    """Nor with the half of one, where a text is cut; who runs the job needs its folder as it stands."""
    key = "ghp_" + "a1B2c3D4e5" * 4
    host = replace(HOST, name=f"vm {key}")
    told: dict[str, Any] = dict.fromkeys(("agent", "workspace", "phase", "tool", "key"), f"x {key}")
    job = classify_job(seen(31, **told, host=host, spool="/s"), ELSEWHERE)
    assert job.folder == f"x {key}" and key not in shown(job) and job.only_on.startswith("vm ")
    for pad in range(MAX_WORDS - 50, MAX_WORDS):
        cut = classify_job(seen(state="released", reason="y " * (pad // 2) + key + " end"), ELSEWHERE)
        assert "ghp_a1" not in cut.reason and len(cut.reason) <= MAX_WORDS


def test_numbers_of_any_lease_can_be_told_as_json() -> None:
    wild = {"since": -1e308, "time": 1e308, "started": 1e308, "until": -1e308}
    told = shown(classify_job(seen(**wild), ELSEWHERE))
    assert json.loads(told)["jobs"][0]["phase_age"] >= 1e9


def test_who_comes_back_and_is_lost_again_is_another_loss() -> None:
    assert classify_job(seen(nonce="a"), ELSEWHERE).loss == classify_job(seen(3600, nonce="a"), ELSEWHERE).loss
    assert classify_job(seen(nonce="a"), ELSEWHERE).loss != classify_job(seen(nonce="b"), ELSEWHERE).loss
    assert len(classify_job(seen(nonce="\x1b" * 50_000), ELSEWHERE).mark) == 16


def test_what_needs_somebody_comes_first() -> None:
    jobs = [
        Job(job="z", state="closed"),
        Job(job="y", state="running"),
        Job(job="x", state="running", phase="awaiting_approval"),
        Job(job="w", state="released"),
        Job(job="v", state="released", needs_host=True, waits=1),
        Job(job="u", state="crashed", needs_host=True, waits=1),
        Job(job="t", state="crashed", needs_host=True, waits=9),
        Job(job="s", state="damaged"),
        Job(job="r", state="due", needs_host=True),
    ]
    assert "".join(job.job for job in sort_jobs(jobs)) == "sturvwxyz"
    assert count_states(jobs) == "1 damaged, 2 crashed, 1 due, 2 released, 2 running, 1 closed"


@given(
    state=st.sampled_from(["held", "closed", "released", "unlocked"]),
    age=st.floats(0, 1e7),
    until=st.floats(-1e12, 1e12),
    reason=st.text(max_size=30),
    spool=st.sampled_from(["", "/s"]),
)
def test_any_lease_is_taken_for_something(state: str, age: float, until: float, reason: str, spool: str) -> None:
    job = classify_job(seen(age, state=state, until=until, reason=reason, spool=spool), ELSEWHERE)
    assert job.state in STATES and job.waits >= 0 and job.left >= 0
    assert not job.needs_host or job.state in ("crashed", "due", "released")
