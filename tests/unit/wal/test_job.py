"""wal/job.py and wal/job.py: R1, R2, R6 through the way that every run goes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from tests.unit.wal.world import FIELDS, KEYS, TTL, World, claim, drain, end, intent
from wal_agent.bucket.base import Bucket, BucketDecorator, Object
from wal_agent.bucket.decorators import RetryBudget
from wal_agent.errors import Conflict, Damaged, Fenced, LeaseHeld, NotFound, Unavailable
from wal_agent.records import AnyRecord, Cause, Opening, StepBegun
from wal_agent.wal import job as jobs
from wal_agent.wal import job as openings
from wal_agent.wal import reader
from wal_agent.wal.job import close_job, open_job
from wal_agent.wal.reader import Damage, Tail, read_tail, replay
from wal_agent.wal.spool import SpoolContent
from wal_agent.wal.store import JobStore

BEGUN = StepBegun(time=1.0, name="s", command=("true",))


def test_first_opening() -> None:
    job = World().open("a")
    assert (job.lease.epoch, job.replay.seq, job.replay.state.opened) == (1, 1, 1)
    assert job.replay.damage is None
    assert job.replay.state.openings[0].opening.cause == "first"


@pytest.mark.parametrize("how", ["closed", "released"])
def test_reopening_raises_the_epoch_and_sees_all(how: str) -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1), end(1))
    assert close_job(job, how) == how  # type: ignore[arg-type]
    again = world.open("b")
    assert again.lease.epoch == 2
    assert again.replay.state.calls == 1
    assert again.replay.state.openings[-1].opening.cause == how


@pytest.mark.parametrize(
    ("phase", "cause", "calls", "says"),
    [
        ("starting", "dead", 1, "recovering"),
        ("starting", "released", 1, "recovering"),
        ("starting", "closed", 1, "starting"),
        ("starting", "first", 1, "starting"),
        ("starting", "dead", 0, "starting"),
        ("", "dead", 1, ""),
    ],
)
def test_a_lease_says_recovering_only_where_calls_may_have_been_lost(
    phase: str, cause: Cause, calls: int, says: str
) -> None:
    world = World()
    job = world.open("a")
    for call in range(1, calls + 1):
        job.writer.append(intent(call))
        drain(job)
    wanted, seen = replace(claim("b"), phase=phase), world.seen()
    open_job(world.store, claim=wanted, fields=FIELDS, seen=seen, cause=cause)
    taken = world.seen()
    assert taken is not None and (taken.doc.phase, taken.doc.epoch) == (says, 2)


def test_closed_with_an_open_intent_is_released() -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1))
    assert close_job(job, "closed") == "released"


def test_an_undecided_log_leaves_the_lease_to_run_out() -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1))
    world.bucket.fates = ["dropped"] * 1000
    assert close_job(job, "closed") == "left"
    seen = world.seen()
    assert seen is not None and seen.doc.state == "held"


def test_after_a_close_nothing_is_allowed() -> None:
    world = World()
    job = world.open("a")
    assert job.lease.may_allow(0)
    close_job(job, "closed")
    assert not job.lease.may_allow(0)
    job.lease.renew()
    seen = world.seen()
    assert seen is not None and seen.doc.state == "closed"


def test_only_one_of_two_that_saw_the_same_lease_gets_it() -> None:
    world = World()
    world.open("a")
    world.clock.at += TTL + 1
    seen = world.seen()
    world.open("b")
    with pytest.raises(LeaseHeld):
        open_job(
            world.store,
            claim=claim("c"),
            fields=FIELDS,
            seen=seen,
            cause="dead",
        )


@pytest.mark.parametrize("fates", [["lost"], ["dropped"], ["lost", "lost"], ["", "lost"], ["", "dropped", "lost"]])
def test_an_opening_survives_lost_replies(fates: list[str]) -> None:
    world = World()
    world.bucket.fates = fates
    job = world.open("a")
    assert (job.lease.epoch, job.replay.seq) == (1, 1)
    assert replay(world.bucket, KEYS).state.opened == 1


def test_the_places_of_a_crash_are_around_the_put_of_an_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kill tests of R1 are worth what these places are; each send has them."""
    world, seen = World(), list[tuple[str, int]]()
    monkeypatch.setattr(jobs, "failpoint", lambda place: seen.append((place, read_tail(world.inner, KEYS).seq)))
    world.open("a")
    assert seen == [("opening.before_put", 0), ("opening.after_put", 1)]


def test_an_opening_gives_up_when_the_bucket_stays_away() -> None:
    world = World()
    world.bucket.fates = [""] + ["dropped"] * 1000
    with pytest.raises(Unavailable):
        world.open("a")


def opening(epoch: int, run: str = "b") -> Opening:
    made = claim(run)
    return Opening(
        time=5.0,
        run=run,
        epoch=epoch,
        cause="dead",
        host=made.host,
        agent="g",
        agent_version="",
        version="",
        workspace="",
    )


def test_the_old_owners_late_append_moves_the_opening_on() -> None:
    world = World()
    old = world.open("a")
    old.writer.append(intent(1, "late"))
    world.clock.at += TTL + 1
    # It lands between the new owner's list and its put: R1 "taken: read it; lower epoch: next", and R2 sees it.
    world.bucket.before_put = lambda key: None
    seen = world.seen()

    def sneak(key: str) -> None:
        if key == KEYS.lease:
            world.bucket.before_put = sneak
        else:
            assert old.writer.commit_once() == "acked"

    world.bucket.before_put = sneak
    new = open_job(
        world.store,
        claim=claim("b"),
        fields=FIELDS,
        seen=seen,
        cause="dead",
    )
    assert new.replay.seq == 3
    assert [c.intent.agent_call for c in new.replay.state.open] == ["late"]


def test_an_equal_or_higher_epoch_at_the_tail_ends_the_attempt() -> None:
    world = World()
    world.open("a")
    with pytest.raises(Fenced):
        openings.place_opening(world.store, opening(1))


class Seen(BucketDecorator):
    """Notes the keys that are read."""

    def __init__(self, inner: Bucket) -> None:
        super().__init__(inner)
        self.read: list[str] = []

    def get(self, key: str) -> Object:
        self.read.append(key)
        return super().get(key)


def test_an_opening_reads_the_tail_once() -> None:
    """Each read is a round trip that the agent's start waits for."""
    world = World()
    old = world.open("a")
    old.writer.append(intent(1))
    drain(old)
    world.clock.at += TTL + 1
    bucket = Seen(world.bucket)
    new = open_job(
        JobStore(bucket, KEYS, world.clock, world.rng), claim=claim("b"), fields=FIELDS, seen=world.seen(), cause="dead"
    )
    assert (new.replay.seq, sorted(bucket.read)) == (3, [KEYS.segment(n) for n in (1, 2, 2, 3)])
    # 2: as the tail, and in the replay, which could not know its bytes before.


def test_a_tail_that_grew_is_read() -> None:
    world = World()
    old = world.open("a")
    known = read_tail(world.bucket, KEYS)
    old.writer.append(intent(1))
    drain(old)
    assert read_tail(world.bucket, KEYS, before=known) == read_tail(world.bucket, KEYS) != known


def test_an_opening_in_a_hole_of_retention_is_placed_again_at_the_real_tail() -> None:
    world = World()
    old = world.open("a")
    for n in (1, 2, 3):
        old.writer.append(intent(n))
        drain(old)

    def hole(key: str) -> None:
        world.inner.delete(KEYS.segment(2))

    world.bucket.before_put = hole
    at = openings.place_opening(world.store, opening(2))
    assert at.seq == 5
    world.inner.delete(KEYS.segment(2))
    landed = openings._land(world.store, RetryBudget(world.clock, world.rng, 1), opening(3), Tail(1, 1, bytes(32)), b"")
    assert landed.seq == 2  # in the hole; what is behind it has a lower epoch: not the end of the log
    assert openings.resolve_later_segment(read_tail(world.bucket, KEYS), 3) == "again"
    assert openings.resolve_later_segment(read_tail(world.bucket, KEYS), 1) == "give_up"


def test_an_opening_of_a_higher_epoch_that_is_faster_ends_the_attempt() -> None:
    """R1: between reading the tail and creating the opening behind it."""
    world = World()
    world.open("a")

    def faster(key: str) -> None:
        openings.place_opening(replace(world.store, bucket=world.inner), opening(3))

    world.bucket.before_put = faster
    with pytest.raises(Fenced, match="epoch 3"):
        openings.place_opening(world.store, opening(2))
    assert read_tail(world.inner, KEYS).epoch == 3


def test_an_owner_that_slept_while_opening_is_fenced_not_damaged() -> None:
    world = World()
    read = jobs.replay_for_plan

    def later(*args: Any) -> Any:
        """Another owner opens behind this one, and retention takes what should be read now."""
        with mock.patch.object(jobs, "replay_for_plan", read):
            world.take_over("b")
        world.inner.delete(KEYS.segment(1))
        return read(*args)

    with mock.patch.object(jobs, "replay_for_plan", later), pytest.raises(Fenced, match="taken over \\(epoch 2\\)"):
        world.open("a")


def test_a_stop_behind_the_opening_names_the_lease_that_is_held() -> None:
    """Whoever catches it gives the job up, and the next start takes it for no crash."""
    world = World()

    def stop(*_: Any) -> Any:
        raise jobs.Stopped("asked to end")

    with mock.patch.object(jobs, "replay_for_plan", stop), pytest.raises(jobs.Stopped) as stopped:
        world.open("a")
    assert stopped.value.lease is not None
    stopped.value.lease.settle("released", "stopped")
    assert world.open("b").replay.state.openings[-1].opening.cause == "released"


def test_a_stop_before_the_opening_leaves_the_lease() -> None:
    """Released without an opening, it would say of the owner before that it had given the job up."""
    world = World()

    def stop(*_: Any, **__: Any) -> Any:
        raise jobs.Stopped("asked to end")

    with mock.patch.object(openings, "place_opening", stop), pytest.raises(jobs.Stopped) as stopped:
        world.open("a")
    assert stopped.value.lease is None


@pytest.mark.parametrize(
    ("seq", "epoch", "then"), [(0, 0, "last"), (9, 3, "give_up"), (9, 2, "again"), (9, 1, "again")]
)
def test_only_a_higher_epoch_behind_the_opening_ends_the_attempt_at_once(seq: int, epoch: int, then: str) -> None:
    """R1, list after. What else is there is read as the tail, where an equal epoch ends it too (may_chain)."""
    assert openings.resolve_later_segment(Tail(seq, epoch), 2) == then
    assert openings.may_chain(Tail(seq, epoch), 2) == (epoch < 2)


def test_a_taken_seq_is_mine_only_byte_for_byte() -> None:
    assert openings.resolve_opening_conflict(b"x", 2, b"x", 2) == "mine"
    assert openings.resolve_opening_conflict(b"y", 1, b"x", 2) == "next"
    assert openings.resolve_opening_conflict(b"y", 2, b"x", 2) == "give_up"
    assert openings.resolve_opening_conflict(b"y", 3, b"x", 2) == "give_up"


def test_a_wrong_hint_costs_a_list_and_nothing_else() -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1))
    drain(job)
    assert (
        read_tail(world.bucket, KEYS).seq
        == read_tail(world.bucket, KEYS, 2).seq
        == read_tail(world.bucket, KEYS, 99).seq
        == 2
    )


# ---- an outage on the way


class Scripted:
    """A bucket that answers as it is written down, one request after the other."""

    url = "memory:"

    def __init__(self, *answers: Exception | bytes) -> None:
        self.answers = list(answers)

    def _next(self) -> bytes:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(self, key: str, data: bytes) -> None:
        self._next()

    def get(self, key: str) -> Object:
        return Object(self._next(), "v", 0.0, 0.0)


def test_what_is_at_a_number_is_asked_until_it_is_decided_and_with_a_pause_where_the_bucket_is_away() -> None:
    """R1, seq taken. A segment that retention took between the two requests is no outage: it is sent again at once."""
    world, slept = World(), list[float]()
    retries = RetryBudget(world.clock, world.rng, 60.0)
    taken, away = Conflict("taken"), Unavailable("away")
    bucket: Any = Scripted(away, taken, away, taken, NotFound("gone"), taken, b"theirs")
    with mock.patch.object(world.clock, "sleep", slept.append):
        assert jobs._create_segment(bucket, KEYS, retries, 2, b"mine") == b"theirs"
        assert len(slept) == 2 and not bucket.answers
        bucket = Scripted(b"")
        assert jobs._create_segment(bucket, KEYS, retries, 2, b"mine") == b"mine" and len(slept) == 2


class Sending:
    """A writer whose steps end as they are written down."""

    ended = Fenced("taken over")

    def __init__(self, *steps: str) -> None:
        self.steps = list(steps)

    @property
    def pending(self) -> bool:
        return bool(self.steps)

    def commit_once(self) -> str:
        return self.steps.pop(0)


def test_what_was_spooled_is_sent_with_a_pause_behind_each_failure_and_a_new_budget_behind_each_success() -> None:
    world, asked = World(), list[int]()
    writer: Any = Sending("undecided", "acked", "undecided", "undecided", "acked")
    began, limit = world.clock.at, 0.4
    with mock.patch.object(world.rng, "random", lambda: 0.5):  # pauses of 0.05, 0.1, 0.2 seconds
        jobs.send_spooled(writer, replace(world.store, budget=0.15), lambda: asked.append(len(writer.steps)))
        assert world.clock.at - began == pytest.approx(0.05 + 0.05 + 0.1) and world.clock.at - began < limit
        assert asked == [5, 4, 3, 2, 1], "before each step a signal may end it"
        writer = Sending(*["undecided"] * 3)
        with pytest.raises(Unavailable, match="spooled for the job could not be saved"):
            jobs.send_spooled(writer, replace(world.store, budget=0.15))
    with pytest.raises(Fenced, match="taken over"):
        writer = Sending("ended", "acked")
        jobs.send_spooled(writer, replace(world.store, budget=0.15))


@pytest.mark.parametrize(
    ("seqs", "first", "prev", "unsent"),
    [
        ((), 4, "p", ()),
        ((3, 4, 5), 4, "p", (4, 5)),
        ((3, 4, 5), 6, "p", ()),  # the log has all of them
        ((3, 4, 5), 3, "p", (3, 4, 5)),
        ((3, 4, 5), 4, "other", None),
        ((3, 4, 5), 2, "p", None),
        ((3, 4, 5), 0, "p", None),  # no later epoch: not even the opening of this run
    ],
)
def test_what_of_a_spool_the_log_lacks_begins_where_the_next_epoch_does(
    seqs: tuple[int, ...], first: int, prev: str, unsent: tuple[int, ...] | None
) -> None:
    def segment(epoch: int, seq: int) -> Any:
        assert epoch == 1 and (not first or seq in (first, seqs[0])), "only the one in question is read"
        return mock.Mock(prev="p")

    spool: Any = mock.Mock(segment=segment, damaged=Damaged)
    opening = mock.Mock(seq=first, prev=prev) if first else None
    find: Any = mock.Mock(return_value=opening)
    bucket: Any = object()
    with mock.patch.object(jobs, "first_segment_after_epoch", find):
        if unsent is None:
            with pytest.raises(Damaged, match=f"record {3 if first != 4 else 4} does not follow"):
                jobs.unsent_seqs(bucket, KEYS, spool, SpoolContent(1, seqs))
        else:
            assert jobs.unsent_seqs(bucket, KEYS, spool, SpoolContent(1, seqs)) == unsent
    assert find.call_args_list == ([mock.call(bucket, KEYS, seqs[0], 1)] if seqs else [])


def test_the_first_segment_behind_an_epoch_is_the_opening_of_a_later_one() -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1))
    drain(job)
    assert jobs.first_segment_after_epoch(world.bucket, KEYS, 1, 1) is None
    world.take_over("b")
    for start in (1, 2, 3):
        found = jobs.first_segment_after_epoch(world.bucket, KEYS, start, 1)
        assert found is not None and (found.seq, found.epoch) == (3, 2)
    assert jobs.first_segment_after_epoch(world.bucket, KEYS, 1, 2) is None


@pytest.mark.parametrize(("epoch", "fenced"), [(0, False), (1, False), (2, True)])
def test_damage_is_a_fence_only_where_a_newer_owner_has_passed(epoch: int, fenced: bool) -> None:
    world = World()
    before = world.open("a").replay
    hole = replace(before, damage=Damage(2, "missing", 1, 0.0))
    log = world.store
    read = mock.Mock(return_value=hole)
    with (
        mock.patch.object(reader, "continue_replay", read),
        mock.patch.object(reader, "newest_after", lambda *_: Tail(9, epoch)),
    ):
        if fenced:
            with pytest.raises(Fenced, match="epoch 2"):
                jobs.replay_for_plan(log, before, Tail(1, 1))
        else:
            assert jobs.replay_for_plan(log, before, Tail(1, 1)) == hole


@pytest.mark.parametrize(("newest", "began", "goes_on"), [(0, 0, True), (3, 3, True), (4, 3, False), (1, 0, False)])
def test_a_replay_goes_on_only_from_a_snapshot_that_is_still_the_newest(newest: int, began: int, goes_on: bool) -> None:
    assert jobs.may_continue_replay(newest, began) is goes_on


@pytest.mark.parametrize("records", [(intent(1),), (BEGUN,), (intent(1), BEGUN)])
def test_a_job_with_a_call_or_a_step_that_has_no_end_is_not_closed(records: tuple[AnyRecord, ...]) -> None:
    """R6: both count."""
    job = World().open("a")
    job.writer.append(*records)
    assert close_job(job, "closed") == "released"
