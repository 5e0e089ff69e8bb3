"""Check who may take a job over, and what a released lease is said to have ended for."""

from __future__ import annotations

import signal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from wal_agent.records import Cause, Host
from wal_agent.recovery.lease_policy import (
    MAX_PAUSE,
    Acquire,
    Decline,
    Local,
    StopKind,
    Wait,
    abandons_spool,
    admit,
    classify_stop,
    failure_text,
    replays_spool,
)
from wal_agent.supervise.exits import ExitFacts, classify_exit
from wal_agent.text import job_command
from wal_agent.wal.lease import LeaseDoc, LeaseState, StoredLease
from wal_agent.wal.spool import Presence

HOST = Host(name="vm-22", boot="b1", pidns="4026531836", pid=8123, lock="/run/x")
ELSEWHERE = Local(boot="b2", pidns="4026531836")


def seen(state: LeaseState = "held", age: float = 3.0, off: bool = False) -> StoredLease:
    doc = LeaseDoc(
        format=1,
        job="shop",
        epoch=4,
        run="r",
        nonce="n",
        state=state,
        host=HOST,
        agent="gemini",
        workspace="/w",
        started=0.0,
        ttl=30.0,
        off=off,
    )
    return StoredLease(doc, "v", 1000.0, 1000.0 + age)


def here(lock: str) -> Local:
    return Local(boot="b1", pidns="4026531836", lock=lock)  # type: ignore[arg-type]


def test_no_lease_is_the_first() -> None:
    assert admit(None, ELSEWHERE) == Acquire("first")


@pytest.mark.parametrize("state", ["closed", "released"])
def test_what_was_given_up_may_be_taken(state: LeaseState) -> None:
    assert admit(seen(state), ELSEWHERE) == Acquire(state)  # type: ignore[arg-type]


def test_a_live_owner_is_named() -> None:
    assert admit(seen(), ELSEWHERE) == Decline(
        "job shop is running on vm-22 (pid 8123, heartbeat 3 s ago).",
        "Wait for it with --wait, look with `wal-agent status --job shop`, or end it with `wal-agent stop --job shop`.",
    )


def test_hints_are_commands_for_the_bucket_and_name_no_option_that_the_caller_lacks() -> None:
    url = "gs://acme/jobs"
    for age in (3.0, 22.0):
        found = admit(seen(age=age), ELSEWHERE, url=url, starts=False)
        assert isinstance(found, Decline)
        assert f"`{job_command('stop', 'shop', url)}`" in found.hint and "--wait" not in found.hint
    waits = admit(paused(3600, age=600), ELSEWHERE, url=url)
    assert isinstance(waits, Wait) and waits.why.endswith(f"{job_command('pause', 'shop', url)} --end")


def test_an_old_heartbeat_says_when_it_can_be_taken_over() -> None:
    found = admit(seen(age=22), ELSEWHERE)
    assert isinstance(found, Decline)
    assert "heartbeat 22 s ago" in found.sentence and "can be taken over in 8 s" in found.hint


def test_wait_waits_until_it_can_be_taken_or_for_another_look() -> None:
    assert admit(seen(age=3), ELSEWHERE, wait=True) == Wait(
        2.0, "job shop is running on vm-22 (pid 8123, heartbeat 3 s ago)."
    )
    soon = admit(seen(age=29), ELSEWHERE, wait=True)
    assert isinstance(soon, Wait) and soon.seconds == 1.0


def test_the_ttl_by_the_stores_clock() -> None:
    assert admit(seen(age=30), ELSEWHERE) == Acquire("dead")
    assert isinstance(admit(seen(age=29.9), ELSEWHERE), Decline)


def test_the_ttl_by_watching() -> None:
    watched = Local(boot="b2", pidns="1", unchanged=30.0)
    assert admit(seen(age=-100), watched) == Acquire("dead")


def test_the_kernel_says_at_once() -> None:
    assert admit(seen(age=0), here("dead")) == Acquire("dead")
    assert isinstance(admit(seen(age=0), here("alive")), Decline)
    # Alive, but it cannot renew: it is not for us to take the job from a process that can be stopped here.
    refused = admit(seen(age=99), here("alive"))
    assert isinstance(refused, Decline) and "taken over" not in refused.hint
    assert admit(seen(age=31), here("unknown")) == Acquire("dead")
    assert isinstance(admit(seen(age=0), here("unknown")), Decline)


@pytest.mark.parametrize(
    "local", [Local("b1", "other", "dead"), Local("b2", "4026531836", "dead"), Local("", "", "dead")]
)
def test_a_lock_says_nothing_of_another_kernel_or_pid_namespace(local: Local) -> None:
    assert isinstance(admit(seen(age=0), local), Decline)
    blank = seen(age=0)
    doc = msgspec.structs.replace(blank.doc, host=msgspec.structs.replace(HOST, boot="", pidns=""))
    assert isinstance(admit(StoredLease(doc, "v", 0.0, 0.0), Local("", "", "dead")), Decline)


def test_unlocked_waits_one_ttl_unless_the_old_host_is_off() -> None:
    found = admit(seen("unlocked", age=10), ELSEWHERE)
    assert isinstance(found, Wait) and found.seconds == 20.0
    assert admit(seen("unlocked", age=30), ELSEWHERE) == Acquire("unlocked")
    assert admit(seen("unlocked", age=0, off=True), ELSEWHERE) == Acquire("unlocked")
    assert admit(seen("unlocked", age=0), here("dead")) == Acquire("unlocked")
    assert isinstance(admit(seen("unlocked", age=0), here("alive")), Wait)


@settings(deadline=None)
@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.booleans())
def test_nobody_takes_from_a_live_owner_before_its_ttl(age: float, unchanged: float, wait: bool) -> None:
    found = admit(seen(age=age), Local("b2", "1", unchanged=unchanged), wait=wait)
    if isinstance(found, Acquire):
        assert max(seen(age=age).now - 1000.0, unchanged) >= 30.0
    if isinstance(found, Wait):
        assert 0 < found.seconds <= 30.0


# ---- R9: a job whose owner may have spooled

SPOOL = "/home/u/.local/state/wal-agent/spools/shop-r"


def spooling(state: LeaseState = "held", age: float = 3.0, off: bool = False) -> StoredLease:
    found = seen(state, age, off)
    return replace(found, doc=msgspec.structs.replace(found.doc, spool=SPOOL))


def with_spool(spool: Presence, lock: str = "unknown", boot: str = "b2", unchanged: float = 1e9) -> Local:
    return Local(boot=boot, pidns="4026531836", lock=lock, unchanged=unchanged, spool=spool)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["held", "unlocked"])
@pytest.mark.parametrize("off", [False, True])
def test_no_time_that_passes_makes_a_spooling_owner_dead(state: LeaseState, off: bool) -> None:
    """R9, V12: also unlocked, and also when a person said that the old host is off."""
    found = admit(spooling(state, age=1e9, off=off), with_spool("absent"))
    assert found == Decline(
        f"job shop may have records that only vm-22 has, in {SPOOL} (--on-outage spool).",
        "Start it on that machine, which carries them in; or go on without them: --accept-loss.",
    )
    waits = admit(spooling(state, age=1e9, off=off), with_spool("absent"), wait=True)
    assert isinstance(waits, Wait) and "only vm-22 has" in waits.why


def test_the_machine_that_the_lease_names_is_told_that_the_folder_is_gone() -> None:
    local = replace(with_spool("absent"), name="vm-22", spools="/other/spools")
    assert admit(spooling(age=1e9), local) == Decline(
        f"job shop may have records that only {SPOOL} has; it was not found under /other/spools here.",
        "Give it back, with HOME and XDG_STATE_HOME as they were then; or go on without them: --accept-loss.",
    )


@pytest.mark.parametrize(("state", "cause"), [("held", "dead"), ("unlocked", "unlocked")])
@pytest.mark.parametrize("accept_loss", [False, True])
def test_the_machine_with_the_spool_opens_at_once_when_its_lock_is_free(
    state: LeaseState, cause: Cause, accept_loss: bool
) -> None:
    local = with_spool("free", boot="b1", unchanged=0.0)
    assert admit(spooling(state, age=0), local, accept_loss=accept_loss) == Acquire(cause)
    assert replays_spool(spooling(state), local) and not abandons_spool(spooling(state), local)


@pytest.mark.parametrize(("state", "cause"), [("held", "dead"), ("unlocked", "unlocked")])
@pytest.mark.parametrize("accept_loss", [False, True])
def test_behind_a_reboot_a_free_lock_and_one_ttl_prove_that_the_owner_is_gone(
    state: LeaseState, cause: Cause, accept_loss: bool
) -> None:
    """R9, I2: the folder may be on a network file system, where the lock that a living owner holds looks free here."""
    local = with_spool("free", "dead", unchanged=0.0)

    def found(age: float, local: Local = local, wait: bool = False) -> Acquire | Decline | Wait:
        return admit(spooling(state, age=age), local, wait=wait, accept_loss=accept_loss)

    early = found(2)
    if state == "held":
        assert isinstance(early, Decline) and "vm-22" in early.sentence and "can be taken over in 28 s" in early.hint
        assert isinstance(found(2, wait=True), Wait)
    else:
        assert isinstance(early, Wait) and early.seconds == 28.0
    assert found(30) == Acquire(cause)
    assert found(-100, replace(local, unchanged=30.0)) == Acquire(cause)
    assert not abandons_spool(spooling(state, age=30), local)


def test_a_host_that_is_said_to_be_off_is_not_waited_for() -> None:
    local = with_spool("free", unchanged=0.0)
    assert admit(spooling("unlocked", age=0, off=True), local) == Acquire("unlocked")
    assert not abandons_spool(spooling("unlocked", age=0, off=True), local)


@pytest.mark.parametrize("accept_loss", [False, True])
@pytest.mark.parametrize(
    "local", [with_spool("held"), with_spool("free", "alive", "b1"), with_spool("held", "dead", "b1")]
)
def test_an_owner_that_lives_here_keeps_its_job_whatever_was_said(local: Local, accept_loss: bool) -> None:
    found = admit(spooling(age=1e9), local, accept_loss=accept_loss)
    assert isinstance(found, Decline) and "is running on vm-22" in found.sentence


def test_accepting_the_loss_leaves_the_usual_rules() -> None:
    away = Local("b2", "1")
    assert isinstance(admit(spooling(age=29), away, accept_loss=True), Decline)
    assert admit(spooling(age=30), away, accept_loss=True) == Acquire("dead")
    assert isinstance(admit(spooling("unlocked", age=29), away, accept_loss=True), Wait)
    assert admit(spooling("unlocked", age=0, off=True), away, accept_loss=True) == Acquire("unlocked")
    assert admit(spooling(age=0), with_spool("absent", "dead", "b1"), accept_loss=True) == Acquire("dead")
    assert abandons_spool(spooling(), away) and abandons_spool(spooling("unlocked"), away)


@pytest.mark.parametrize("state", ["closed", "released"])
def test_a_job_that_was_given_up_has_nothing_in_a_spool(state: LeaseState) -> None:
    """R6: it is given up only when the log has everything."""
    assert admit(spooling(state), with_spool("absent")) == Acquire(state)  # type: ignore[arg-type]
    assert not abandons_spool(spooling(state), with_spool("absent")) and not abandons_spool(None, with_spool("absent"))


# ---- paused


def paused(lasts: float, age: float, until: float = 1_000_000.0, reason: str = "") -> StoredLease:
    """Written `age` seconds ago by a host whose clock is wherever `until` says; the store's says 50_000 now."""
    doc = msgspec.structs.replace(seen("released").doc, until=until, time=until - lasts, reason=reason)
    return StoredLease(doc, "v", 50_000.0 - age, 50_000.0)


def test_a_paused_job_is_waited_for_until_it_is_due() -> None:
    assert admit(paused(3600, age=600, reason="rate limit"), ELSEWHERE) == Wait(
        3000.0,
        "job shop is paused until 14:43 UTC (rate limit); to start it now, end the pause: "
        "wal-agent pause --job shop --end",
    )
    assert admit(paused(3600, age=3600), ELSEWHERE) == Acquire("released")
    assert admit(paused(3600, age=600), ELSEWHERE, pauses="ignore") == Acquire("released")
    refused = admit(paused(20, age=7), ELSEWHERE, pauses="refuse")
    assert isinstance(refused, Decline) and refused.sentence == "job shop is paused until 13:53:33 UTC."


@pytest.mark.parametrize("until", [100.0, 50_060.0, 9e9])
def test_a_wrong_clock_makes_a_pause_neither_shorter_nor_longer(until: float) -> None:
    """The pauser's clock says how long it lasts, the store's how much of that has passed."""
    found = admit(paused(60, age=20, until=until), ELSEWHERE)
    assert isinstance(found, Wait) and found.seconds == 40.0 and "until 13:54 UTC" in found.why


def test_a_pause_ends_by_watching_where_the_stores_clock_stands() -> None:
    found = admit(paused(60, age=-1e6), replace(ELSEWHERE, unchanged=59.0))
    assert isinstance(found, Wait) and found.seconds == 1.0
    assert admit(paused(60, age=-1e6), replace(ELSEWHERE, unchanged=60.0)) == Acquire("released")


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_whatever_a_lease_says_nobody_waits_for_ever(until: float, time: float) -> None:
    doc = msgspec.structs.replace(seen("released").doc, until=until, time=time, reason="\x1b[2J" * 400)
    found = admit(StoredLease(doc, "v", 50_000.0, 50_000.0), ELSEWHERE)
    assert found == Acquire("released") or (isinstance(found, Wait) and 0 < found.seconds <= MAX_PAUSE)
    assert admit(StoredLease(doc, "v", 50_000.0, 50_000.0 + MAX_PAUSE), ELSEWHERE) == Acquire("released")


@pytest.mark.parametrize("state", ["closed", "held", "unlocked"])
def test_only_a_job_that_was_given_up_is_paused(state: LeaseState) -> None:
    doc = msgspec.structs.replace(seen(state).doc, until=9e9, off=True)
    assert not isinstance(admit(StoredLease(doc, "v", 1000.0, 1031.0), ELSEWHERE), Wait)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("drained (SIGTERM)", "handed_over"),
        ("preempted (gcp)", "handed_over"),
        ("stopped: interrupted by SIGTERM before the agent was started.", "handed_over"),
        ("stopped: this machine is going away (gcp); the agent was not started.", "handed_over"),
        ("stopped (69): The bucket cannot be reached.", "handed_over"),
        ("stopped: interrupted by SIGINT before the agent was started.", ""),
        ("stopped: 5 crashes in 10 min", "halted"),
        ("stopped (80): twice the same death", "halted"),
        ("stopped: stopped (69): ", "halted"),
        ("interrupted", ""),
        ("completed", ""),
        ("paused", ""),
        ("the agent said: stopped: ", ""),
        ("the agent ended with 41 and more", ""),
        ("", ""),
    ],
)
def test_what_a_reason_says(reason: str, expected: StopKind) -> None:
    assert classify_stop(reason) == expected


@pytest.mark.parametrize(
    "facts",
    [
        ExitFacts(code=41, completed=True, interactive=False),
        ExitFacts(code=0, completed=False, interactive=False),
        ExitFacts(code=-signal.SIGSEGV, completed=False, interactive=False),
        ExitFacts(code=-9, completed=False, interactive=False, oom_kills=1),
        ExitFacts(code=134, completed=False, interactive=False, said=b"FATAL: JavaScript heap out of memory"),
    ],
)
def test_each_death_that_has_words_of_ours_is_known_by_them(facts: ExitFacts) -> None:
    """The fleet sees the lease alone."""
    assert classify_stop(classify_exit(facts).why) == "failed"


def test_the_agents_own_words_are_judged_by_its_class() -> None:
    assert [classify_stop("no quota", cls) for cls in ("quota", "context", "stopped", "interrupted", "")] == [
        *("failed", "halted", "stopped"),
        *("", ""),
    ]
    assert classify_stop("stopped: a person is needed", "failed") == "halted"


def test_a_failure_in_words() -> None:
    assert failure_text("the agent ended with 41") == "the agent failed with 41"
    assert (
        failure_text("the agent ended with 0, but not its turn") == "the agent failed: ended with 0, but not its turn"
    )
    assert failure_text("killed by SIGSEGV") == "the agent failed: killed by SIGSEGV"
