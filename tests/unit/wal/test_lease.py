"""wal/lease.py, wal/lease.py: the timing rules, R7, R8, R10, a decoder that nothing can surprise, the repair."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.wal.world import KEYS, TTL, Flaky, World, claim
from wal_agent.bucket.base import Object
from wal_agent.bucket.file import FileBucket
from wal_agent.errors import Conflict, Damaged, Fenced, LeaseHeld, Unavailable
from wal_agent.wal import job as openings
from wal_agent.wal import lease as leases
from wal_agent.wal.job import OpenedJob, close_job
from wal_agent.wal.keys import MAX_SEQ
from wal_agent.wal.lease import (
    DUE_NOW,
    MAX_BYTES,
    MAX_TTL,
    LeaseDoc,
    LeaseRequest,
    Repaired,
    decode_lease,
    encode_lease,
    longest_ttl,
    may_allow,
    next_epoch,
    replace_damaged_lease,
    timing_holds,
)
from wal_agent.wal.reader import Tail, read_tail, replay


def test_the_timing_inequality() -> None:
    assert timing_holds(30, 20, 10) and timing_holds(1, 0.7, 0.5)
    for ttl, deadline, period in [(20, 20, 10), (30, 12, 10), (30, 20, 0), (30, 20, -1), (10, 20, 5)]:
        assert not timing_holds(ttl, deadline, period)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(-100, 100), st.floats(0.1, 100), st.floats(0, 10))
def test_an_allow_is_in_time_or_not_sent(sent: float, since: float, ttl: float, margin: float) -> None:
    now = sent + since
    assert may_allow(now, sent, ttl, margin) == (0 <= now - sent < ttl - margin)
    assert not may_allow(sent + ttl + 0.001, sent, ttl, margin)


@settings(deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_an_epoch_is_above_all_that_was_seen(lease: int, log: int) -> None:
    assert next_epoch(lease, log) > max(lease, log)


def test_r7_counts_from_the_sending_of_a_renewal_that_succeeded() -> None:
    world = World()
    job = world.open("a")
    world.clock.at += TTL - 3
    assert job.lease.may_allow(2) and not job.lease.may_allow(3)
    world.bucket.fates = ["dropped"]
    with pytest.raises(Unavailable):
        job.lease.renew()
    assert not job.lease.may_allow(3)

    def slow(key: str) -> None:
        world.clock.at += 5

    world.bucket.before_put = slow
    job.lease.renew(phase="executing_tools", tool="x", seq=9)
    world.clock.at += TTL - 5
    assert not job.lease.may_allow(0)  # sent 5 s before it came back
    seen = world.seen()
    assert seen is not None and (seen.doc.beat, seen.doc.phase, seen.doc.tool, seen.doc.seq) == (
        1,
        "executing_tools",
        "x",
        9,
    )


def test_a_renewal_whose_reply_was_lost_is_adopted() -> None:
    world = World()
    job = world.open("a")
    world.bucket.fates = ["lost"]
    with pytest.raises(Unavailable):
        job.lease.renew()
    job.lease.renew()  # R10: what stands there is mine, with another nonce
    job.lease.renew()
    seen = world.seen()
    assert seen is not None and seen.doc == job.lease.doc


def test_every_write_has_its_own_nonce() -> None:
    world = World()
    job = world.open("a")
    nonces = {job.lease.doc.nonce}
    for _ in range(5):
        job.lease.renew()
        nonces.add(job.lease.doc.nonce)
    assert len(nonces) == 6


def test_a_lease_that_is_anothers_is_lost_for_good() -> None:
    world = World()
    old = world.open("a")
    world.take_over("b")
    for _ in range(2):
        with pytest.raises(Fenced, match="taken over by host-b \\(epoch 2\\)"):
            old.lease.renew()
        world.inner.delete(KEYS.lease)  # nobody asks again
    assert not old.lease.may_allow(0)
    with pytest.raises(Fenced):
        old.lease.settle("closed")


def test_a_deleted_lease_is_lost() -> None:
    world = World()
    job = world.open("a")
    world.inner.delete(KEYS.lease)
    with pytest.raises(Fenced, match="was deleted"):
        job.lease.renew()


@pytest.mark.parametrize("fates", [["lost"], ["dropped"], ["lost", "dropped", "lost"]])
def test_settling_through_lost_replies(fates: list[str]) -> None:
    world = World()
    job = world.open("a")
    world.bucket.fates = fates
    job.lease.settle("released", "drained")
    seen = world.seen()
    assert seen is not None and (seen.doc.state, seen.doc.reason) == ("released", "drained")


def test_settling_does_not_wait_for_a_renewal_that_hangs() -> None:
    world = World()
    job = world.open("a")
    hanging, free = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        hanging.set()
        free.wait(20)

    world.bucket.before_put = hang
    renewal = threading.Thread(target=job.lease.renew)
    renewal.start()
    try:
        assert hanging.wait(20)
        with pytest.raises(Unavailable, match="hangs"):
            job.lease.settle("closed", budget=0.05)
        assert close_job(job, "closed", budget=0.05) == "left"
        assert not free.is_set() and renewal.is_alive()
    finally:
        free.set()
        renewal.join()


def test_unlock_keeps_the_epoch_and_fences_the_owner() -> None:
    world = World()
    world.open("a")
    job = world.take_over("b")
    seen = world.seen()
    assert seen is not None
    doc = leases.unlock(world.store, seen=seen, reason="by hand")
    assert (doc.state, doc.epoch, doc.run) == ("unlocked", 2, "b")
    with pytest.raises(Fenced, match="unlocked by hand"):
        job.lease.renew()
    with pytest.raises(Fenced):
        job.lease.settle("closed")


def test_unlock_names_the_lease_that_was_shown() -> None:
    world = World()
    job = world.open("a")
    seen = world.seen()
    assert seen is not None
    job.lease.renew()
    with pytest.raises(LeaseHeld, match="lives"):
        leases.unlock(world.store, seen=seen, reason="")
    world.take_over("b")
    with pytest.raises(Fenced):
        leases.unlock(world.store, seen=seen, reason="")


@pytest.mark.parametrize("fate", ["lost", "dropped"])
def test_unlock_through_a_lost_reply(fate: str) -> None:
    world = World()
    world.open("a")
    seen = world.seen()
    assert seen is not None
    world.bucket.fates = [fate]
    leases.unlock(world.store, seen=seen, reason="", off=True)
    after = world.seen()
    assert after is not None and after.doc.state == "unlocked" and after.doc.off


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": "unlocked", "reason": "host is gone"}, "unlocked by hand (host is gone)"),
        ({"state": "unlocked"}, "unlocked by hand (no reason given)"),
        ({"state": "unlocked", "epoch": 3, "run": "c"}, "taken over by host-a (epoch 3); this run had epoch 2"),
        ({"epoch": 3}, "taken over by host-a (epoch 3)"),
        ({"run": "c"}, "taken over by host-a (epoch 2)"),
        ({"state": "released"}, "says released (epoch 2)"),
        (None, "was deleted"),
    ],
)
def test_a_run_that_lost_its_lease_says_to_whom(change: dict[str, Any] | None, words: str) -> None:
    world = World()
    mine = msgspec.structs.replace(world.open("a").lease.doc, epoch=2)
    seen = None
    if change is not None:
        seen = leases.StoredLease(msgspec.structs.replace(mine, **change), "v", 0.0, 0.0)
    error = leases.lease_lost_error(mine, seen)
    assert isinstance(error, Fenced) and words in error.what


def test_what_a_heartbeat_says_of_the_log_never_goes_back() -> None:
    world = World()
    job = world.open("a")
    for seq in (9, 3):
        job.lease.renew(seq=seq, since=5.0)
    seen = world.seen()
    assert seen is not None and (seen.doc.seq, seen.doc.since, seen.doc.beat) == (9, 5.0, 2)
    job.lease.settle("released", seq=4)
    seen = world.seen()
    assert seen is not None and seen.doc.seq == 9


def test_r7_counts_on_the_shortest_ttl_that_may_have_landed() -> None:
    """A shorter one that was thought lost may be stored, and whoever takes the lease goes by it."""
    world = World()
    lease = world.open("a").lease
    world.bucket.fates = ["dropped"]
    with pytest.raises(Unavailable):
        lease.renew(ttl=TTL / 2)
    assert (lease.ttl, lease.doc.ttl) == (TTL / 2, TTL)
    world.bucket.fates = ["dropped"]
    with pytest.raises(Unavailable):
        lease.renew(ttl=2 * TTL)
    assert lease.ttl == TTL / 2, "a longer one is not counted on before it is known to be stored"
    lease.renew(ttl=2 * TTL)
    assert lease.ttl == lease.doc.ttl == 2 * TTL
    world.clock.at += 2 * TTL - 1
    assert lease.may_allow(0.5) and not lease.may_allow(1)


def test_no_heartbeat_follows_a_settled_lease() -> None:
    world = World()
    job = world.open("a")
    assert job.lease.held
    job.lease.settle("closed", "over")
    puts = len(world.bucket.puts)
    job.lease.renew()
    assert len(world.bucket.puts) == puts and not job.lease.held and not job.lease.may_allow(0)
    seen = world.seen()
    assert seen is not None and (seen.doc.state, seen.doc.reason) == ("closed", "over")
    job.lease.settle("released")
    assert len(world.bucket.puts) == puts, "it is settled once"


def test_a_settling_that_gave_up_lets_the_next_one_in() -> None:
    world = World()
    job = world.open("a")
    world.bucket.fates = ["dropped"] * 1000
    with pytest.raises(Unavailable):
        job.lease.settle("released", budget=1.0)
    world.bucket.fates = []
    job.lease.settle("released", budget=1.0)
    seen = world.seen()
    assert seen is not None and seen.doc.state == "released"


def test_there_is_no_epoch_above_the_last() -> None:
    world, seen = released()
    for epoch, taken in ((MAX_SEQ - 1, True), (MAX_SEQ, False)):
        old = leases.StoredLease(msgspec.structs.replace(seen.doc, epoch=epoch), seen.version, 0.0, 0.0)
        if taken:
            assert leases.acquire(world.store, seen=old, claim=claim("b"), log_epoch=1).epoch == MAX_SEQ
        else:
            with pytest.raises(Damaged, match="there is none above"):
                leases.acquire(world.store, seen=old, claim=claim("b"), log_epoch=1)


@pytest.mark.parametrize("state", ["held", "released"])
def test_an_acquisition_is_not_made_from_a_lease_that_its_own_run_has_given_up(state: str) -> None:
    """R10: what is stored there by the same run and epoch is an own write that was thought lost, while it is held."""
    world, seen = released()

    def faster(key: str) -> None:
        doc = msgspec.structs.replace(seen.doc, run="b", epoch=2, state=state)
        world.inner.put(KEYS.lease, encode_lease(doc), if_version=seen.version)

    world.bucket.before_put = faster
    if state == "held":
        assert leases.acquire(world.store, seen=seen, claim=claim("b"), log_epoch=1).epoch == 2
    else:
        with pytest.raises(LeaseHeld, match="taken by host-a"):
            leases.acquire(world.store, seen=seen, claim=claim("b"), log_epoch=1)


def test_an_unlock_that_another_person_was_faster_with_is_done() -> None:
    world = World()
    world.open("a")
    seen = world.seen()
    assert seen is not None
    theirs = leases.unlock(world.store, seen=seen, reason="theirs")
    assert leases.unlock(world.store, seen=seen, reason="mine") == theirs
    world.inner.delete(KEYS.lease)
    with pytest.raises(Fenced, match="was deleted"):
        leases.unlock(world.store, seen=seen, reason="mine")


@pytest.mark.parametrize(
    ("text", "ttl"),
    [
        (b'"ttl": 86400}', 86_400.0),
        (b'"ttl": 86400.5}', None),
        (b'"ttl": 0}', None),
        (b'"ttl": 0.5,', 0.5),
        (b'"ttl": 30, "ttl": 60, "ttl": 45,', 60.0),
    ],
)
def test_the_longest_time_that_damaged_bytes_may_say(text: bytes, ttl: float | None) -> None:
    assert leases.find_ttl(text) == ttl


def rewritten(world: World) -> None:
    """Somebody copied the object onto itself: the same bytes under another version."""
    found = world.inner.get(KEYS.lease)
    world.inner.put(KEYS.lease, found.data, if_version=found.version)


def released() -> tuple[World, leases.StoredLease]:
    world = World()
    close_job(world.open("a"), "released")
    seen = world.seen()
    assert seen is not None
    return world, seen


@pytest.mark.parametrize(("lasts", "until"), [(60.0, 60.0), (0.0, DUE_NOW)])
def test_a_pause_is_moved_for_exactly_the_lease_that_was_seen(lasts: float, until: float) -> None:
    world, seen = released()
    args = {"seen": seen, "lasts": lasts, "reason": "rate limit"}
    doc = leases.reschedule_pause(world.store, **args)  # type: ignore[arg-type]
    stored = world.seen()
    assert stored is not None and stored.doc == doc
    assert (doc.state, doc.epoch, doc.reason, doc.until) == ("released", 1, "rate limit", world.clock.now() + until)
    with pytest.raises(LeaseHeld):
        leases.reschedule_pause(world.store, **args)  # type: ignore[arg-type]
    after = world.seen()
    assert after is not None and after.doc == doc


@pytest.mark.parametrize("number", ["started", "time", "since", "until"])
@pytest.mark.parametrize("value", ["NaN", "1e999", "-1e999"])
def test_a_time_that_is_no_number_is_damage(number: str, value: str) -> None:
    _, seen = released()
    fields = msgspec.json.decode(encode_lease(seen.doc))
    fields[number] = msgspec.Raw(value.encode())
    with pytest.raises(Damaged):
        decode_lease(msgspec.json.encode(fields), KEYS.job)


@pytest.mark.parametrize(("pid", "sound"), [(-1, False), (0, True), (10**18, True), (10**18 + 1, False)])
def test_a_pid_is_none_that_no_system_has(pid: int, sound: bool) -> None:
    _, seen = released()
    fields = msgspec.json.decode(encode_lease(seen.doc))
    fields["host"]["pid"] = pid
    data = msgspec.json.encode(fields)
    if sound:
        assert decode_lease(data, KEYS.job).host.pid == pid
    else:
        with pytest.raises(Damaged):
            decode_lease(data, KEYS.job)


def test_a_lease_carries_on_what_the_one_before_it_knew_of_the_log() -> None:
    """Until the first renewal: else the end of a log that was cut off would not be missed (KnownEnd)."""
    world = World()
    assert world.open("a").lease._doc.seq == 0
    first = world.seen()
    assert first is not None
    stored = msgspec.structs.replace(first.doc, seq=41)
    version = world.bucket.put(KEYS.lease, encode_lease(stored), if_version=first.version)
    seen = leases.StoredLease(stored, version, first.updated, first.now)
    lease = leases.acquire(world.store, seen=seen, claim=claim("b"), log_epoch=7)
    assert (lease._doc.seq, lease.epoch) == (41, 8)


def test_unlock_of_a_lease_that_was_copied_onto_itself() -> None:
    world = World()
    world.open("a")
    seen = world.seen()
    assert seen is not None
    rewritten(world)
    leases.unlock(world.store, seen=seen, reason="")
    after = world.seen()
    assert after is not None and after.doc.state == "unlocked" and len(world.bucket.puts) < 6


@pytest.mark.parametrize("what", ["acquire", "unlock", "renew", "settle"])
def test_a_store_that_refuses_what_it_should_take_is_not_asked_without_a_pause(what: str) -> None:
    """Conflict, again and again, for a version that stands there: the budget ends it, in few requests."""
    world = World()
    job = world.open("a")
    seen = world.seen()
    assert seen is not None
    refused = 0

    def refuse(key: str) -> None:
        nonlocal refused
        refused += 1
        assert refused < 50, "it spins"
        world.bucket.before_put = refuse
        raise Conflict(key)

    world.bucket.before_put = refuse
    with pytest.raises(Unavailable, match="refuses to replace the lease of job shop"):
        match what:
            case "acquire":
                leases.acquire(
                    world.store,
                    seen=seen,
                    claim=claim("b"),
                    log_epoch=1,
                )
            case "unlock":
                leases.unlock(world.store, seen=seen, reason="")
            case "renew":
                job.lease.renew()
            case _:
                job.lease.settle("released")
    after = world.seen()
    assert after is not None and after.doc == seen.doc


def test_round_trip() -> None:
    doc = World().open("a").lease.doc
    assert decode_lease(encode_lease(doc), "shop") == doc


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(Damaged, match="lease of job shop is damaged"):
        decode_lease(data, "shop")


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": "2"},
        {"job": "other"},
        {"epoch": 0},
        {"epoch": 10**30},
        {"ttl": 0},
        {"ttl": 1e300},
        {"state": "mine"},
        {"seq": -1},
        {"host": None},
        {"nonce": "x" * 100_000},
    ],
)
def test_a_lease_that_says_what_none_can(change: dict[str, object]) -> None:
    doc = msgspec.to_builtins(World().open("a").lease.doc)
    with pytest.raises(Damaged):
        decode_lease(msgspec.json.encode({**doc, **change}), "shop")
    assert decode_lease(msgspec.json.encode({**doc, "from_the_future": 1}), "shop").epoch == 1


def damaged() -> tuple[World, OpenedJob]:
    """A job that epoch 2 holds, and a lease that nobody can read."""
    world = World()
    world.open("a")
    job = world.take_over("b")
    world.inner.put(KEYS.lease, b"junk", if_version=world.inner.get(KEYS.lease).version)
    return world, job


def repair(world: World, **more: Any) -> LeaseDoc:
    end = read_tail(world.inner, KEYS)
    return replaced(world, end, **more).doc


@pytest.mark.parametrize(("ahead", "until"), [(None, 0.0), (60.0, 60.0), (-60.0, DUE_NOW)])
def test_a_job_is_paused_only_where_a_time_was_given(ahead: float | None, until: float) -> None:
    """A pause that is over already leaves the job due, and still says that it was paused."""
    world = World()
    job, now = world.open("a"), world.clock.now()
    job.lease.settle("released", until=0.0 if ahead is None else now + ahead)
    seen = world.seen()
    assert seen is not None and seen.doc.until == (until and now + until)


def test_a_settling_that_landed_without_a_reply_is_not_written_again() -> None:
    world = World()
    job = world.open("a")
    world.bucket.puts.clear()
    world.bucket.fates = ["lost"]
    job.lease.settle("released", "done")
    seen = world.seen()
    assert len(world.bucket.puts) == 2 and seen is not None, "the second was refused"
    assert seen.doc == job.lease.doc and (seen.doc.state, seen.doc.reason) == ("released", "done")


def test_an_unlock_goes_on_when_reading_back_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.open("a")
    seen = world.seen()
    assert seen is not None
    world.bucket.fates = ["dropped"]
    read, failures = world.bucket.get, [1]

    def get(key: str) -> Object:
        if failures:
            failures.pop()
            raise Unavailable("away")
        return read(key)

    monkeypatch.setattr(world.bucket, "get", get)
    leases.unlock(world.store, seen=seen, reason="r")
    now = world.seen()
    assert now is not None and now.doc.state == "unlocked"


def replaced(world: World, end: Tail, **more: Any) -> Repaired:
    return replace_damaged_lease(world.store, tail=end, ttl=TTL, key="k1", reason="r", **more)


def test_it_says_what_the_log_says() -> None:
    world, _ = damaged()
    doc = repair(world, off=True)
    seen = world.seen()
    assert seen is not None and seen.doc == doc
    assert (doc.state, doc.epoch, doc.seq, doc.key, doc.off, doc.spool) == ("unlocked", 2, 2, "k1", True, "")
    assert (doc.host.pid, doc.run, doc.until, doc.beat) == (0, "", 0.0, 0), "of its owner nothing is known"


@pytest.mark.parametrize("fate", ["lost", "dropped"])
def test_through_a_lost_reply(fate: str) -> None:
    world, _ = damaged()
    world.bucket.fates = [fate]
    doc = repair(world)
    seen = world.seen()
    assert seen is not None and seen.doc == doc and len(world.bucket.fates) == 0


def test_an_outage_is_undecided_in_the_end() -> None:
    world, _ = damaged()
    world.bucket.fates = ["dropped"] * 1000
    with pytest.raises(Unavailable):
        repair(world)
    assert world.inner.get(KEYS.lease).data == b"junk"


def test_a_sound_lease_that_came_meanwhile_stays() -> None:
    """Somebody else repaired it, and a new owner has it already."""
    world, _ = damaged()

    def other(key: str) -> None:
        repair(world, off=True)
        world.open("c")

    world.bucket.before_put = other
    with pytest.raises(LeaseHeld, match="held, epoch 3"):
        repair(world)
    seen = world.seen()
    assert seen is not None and (seen.doc.run, seen.doc.state) == ("c", "held")


def test_the_old_owner_is_fenced_by_its_next_heartbeat() -> None:
    world, job = damaged()
    repair(world, off=True)
    with pytest.raises(Fenced, match="unlocked by hand"):
        job.lease.renew()


def test_an_owner_that_had_not_opened_yet_does_not_share_its_epoch() -> None:
    """I2: what the lost lease said was above the log, so the next owner gets the same epoch; the log takes one."""
    world = World()
    first = world.open("a")
    world.clock.at += TTL + 1
    claim = LeaseRequest(run="b", host=first.lease.doc.host, agent="gemini", workspace="/w", ttl=TTL)
    slow = leases.acquire(world.store, seen=world.seen(), claim=claim, log_epoch=1)
    world.inner.put(KEYS.lease, b"junk", if_version=world.inner.get(KEYS.lease).version)
    repair(world, off=True)
    assert world.open("c").lease.epoch == slow.epoch == 2
    opening = msgspec.structs.replace(first.replay.state.openings[0].opening, run="b", epoch=2)
    with pytest.raises(Fenced):
        openings.place_opening(world.store, opening)
    assert [o.opening.run for o in replay(world.inner, KEYS).state.openings] == ["a", "c"]


# ---- the ttl that it still says


@pytest.mark.parametrize(
    ("harm", "ttl"),
    [
        (lambda data: data[:-3], 90.0),
        (lambda data: data.replace(b'"epoch": 2', b'"epoch": -2'), 90.0),
        (lambda data: data.replace(b"90.0", b"9")[:-3], TTL),
        (lambda data: data.replace(b"90.0", b"999999"), None),
        (lambda data: data.replace(b"90.0", b"1e9"), None),
        (lambda data: data.replace(b"90.0", b"-90"), None),
        (lambda data: b"x" * MAX_BYTES + data, None),
        (lambda data: b"junk", None),
    ],
)
def test_the_next_owner_waits_as_long_as_the_lost_lease_says(harm: Callable[[bytes], bytes], ttl: float | None) -> None:
    """R8: its owner may go on for that long; damaged bytes are never believed to shorten it."""
    world = World()
    world.open("a")
    job = world.take_over("b")
    sound = msgspec.structs.replace(job.lease.doc, ttl=90.0, workspace='/w", "ttl": 80000,')
    broken = harm(encode_lease(sound))
    world.inner.put(KEYS.lease, broken, if_version=world.inner.get(KEYS.lease).version)
    done = replaced(world, read_tail(world.inner, KEYS))
    assert (done.said, done.doc.ttl) == (ttl is not None, longest_ttl(TTL) if ttl is None else ttl)


# ---- an object that its bucket cannot read


@pytest.mark.parametrize("then", ["sound", "other damage", "the same"])
def test_what_is_deleted_is_what_was_seen_to_be_damaged(tmp_path: Path, then: str) -> None:
    """Another person repairs it between two looks, and a new owner has it."""
    world, bucket = World(), FileBucket(tmp_path)
    path = tmp_path / f"{KEYS.lease}="
    version = bucket.put(KEYS.lease, b"a lease")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    end = Tail(0, 0)
    looks = 0

    class Looking(Flaky):
        def get(self, key: str) -> Object:
            nonlocal looks
            looks += 1
            if looks == 2 and then != "the same":
                path.unlink()
                bucket.put(KEYS.lease, encode_lease(World().open("c").lease.doc))
                if then == "other damage":
                    path.write_bytes(path.read_bytes()[:-1])
            return bucket.get(key)

        def delete(self, *keys: str) -> None:
            bucket.delete(*keys)

        def put(self, key: str, data: bytes, *, if_version: str | None = None) -> str:
            return bucket.put(key, data, if_version=if_version)

    world.bucket, world.rng = Looking(world.inner), random.Random(8)
    if then == "the same":
        assert replaced(world, end).doc.state == "unlocked" and bucket.get(KEYS.lease).version != version
    else:
        with pytest.raises(LeaseHeld, match="sound again: held" if then == "sound" else "changed meanwhile"):
            replaced(world, end)
        assert path.exists()


@pytest.mark.parametrize(
    ("what", "gets", "puts", "pauses"),
    [
        ("acquire", 1, 2, 3),
        ("unlock", 1, 2, 2),  # one for the put and the read behind it
        ("pause", 1, 2, 2),
        ("unspool", 0, 2, 2),
        ("settle", 0, 2, 2),
        ("repair", 1, 2, 3),
    ],
)
def test_between_two_tries_there_is_a_pause_whichever_request_failed(
    what: str, gets: int, puts: int, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket that is just back must not be asked as fast as it answers. So many requests fail before all is well."""
    world, _ = damaged() if what == "repair" else (World(), None)
    job = world.open("a") if what != "repair" else None
    seen = world.seen() if what != "repair" else None
    if what == "pause" and job is not None:
        job.lease.settle("released")
        seen = world.seen()
    slept: list[float] = []
    read, failures = world.bucket.get, [Unavailable("away")] * gets

    def get(key: str) -> Object:
        if failures:
            raise failures.pop()
        return read(key)

    monkeypatch.setattr(world.bucket, "get", get)
    monkeypatch.setattr(world.clock, "sleep", slept.append)
    world.bucket.fates = ["dropped"] * puts
    match what:
        case "acquire":
            assert leases.acquire(world.store, seen=seen, claim=claim("b"), log_epoch=1).epoch == 2
        case "unlock":
            assert seen is not None and leases.unlock(world.store, seen=seen, reason="").state == "unlocked"
        case "pause":
            assert seen is not None and leases.reschedule_pause(world.store, seen=seen, lasts=9.0, reason="r").until > 0
        case "repair":
            assert not replaced(world, Tail(2, 2)).said
        case _:
            assert job is not None
            job.lease._doc = msgspec.structs.replace(job.lease.doc, spool="/s")
            job.lease.unspool() if what == "unspool" else job.lease.settle("released")
            assert (job.lease.doc.spool, job.lease.doc.state) in (("", "held"), ("/s", "released"))
    assert len(slept) == pauses and not world.bucket.fates and not failures


def test_a_job_whose_log_is_empty_gets_its_first_epoch_by_a_repair() -> None:
    world = World()
    world.inner.put(KEYS.lease, b"junk")
    repaired = replaced(world, Tail())
    assert (repaired.doc.epoch, repaired.doc.seq, repaired.doc.ttl, repaired.said) == (1, 0, longest_ttl(TTL), False)


@pytest.mark.parametrize(("text", "format"), [(b"junk", 0), (b"{}", 0), (b"[1]", 0), (b'{"format": 7}', 7)])
def test_bytes_that_name_no_format_have_none(text: bytes, format: int) -> None:
    assert leases.find_format(text) == format


def test_a_lease_is_written_for_people_one_field_a_line() -> None:
    doc = World().open("a").lease.doc
    lines = encode_lease(doc).split(b"\n")
    assert lines[0] == b"{" and lines[1] == b' "format": 1,' and lines[-1] == b"}"


def test_a_pause_until_a_moment_long_ago_leaves_the_job_due() -> None:
    world = World()
    world.open("a").lease.settle("released", until=0.5)
    seen = world.seen()
    assert seen is not None and seen.doc.until == world.clock.now() + DUE_NOW


def test_a_lease_may_be_stretched_to_a_bound() -> None:
    assert (longest_ttl(30.0), longest_ttl(MAX_TTL / 2)) == (120.0, MAX_TTL)
