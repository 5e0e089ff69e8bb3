"""The stores' buckets on a network that loses, delays, cuts and refuses: what they say then is the bucket contract.

The stores are real processes; what none of them does by itself (409, throttling, lost replies) the proxy does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import pytest

from tests.contract.wire import STORES, Wire, own_credentials, reach, wired
from tests.servers import Scheme
from tests.servers.proxy import (
    Fault,
    Hang,
    Late,
    LostReply,
    Reply,
    ResetUpload,
    SlowBody,
    StaleClose,
    Storm,
    calm,
    refusal,
)
from tests.tiers import once
from tests.unit.wal.world import FIELDS, KEYS, FakeClock, claim, intent
from wal_agent.bucket import base, http
from wal_agent.bucket.base import Bucket
from wal_agent.bucket.decorators import RetryBucket
from wal_agent.errors import BucketError, Conflict, Denied, Fenced, Misconfigured, NotFound, Unavailable
from wal_agent.records import Intent
from wal_agent.wal import lease as leases
from wal_agent.wal import reader
from wal_agent.wal.job import OpenedJob, close_job, open_job
from wal_agent.wal.store import JobStore

T = TypeVar("T")
PATIENCE = 200  # tries; no seed comes near it
OLD, NEW = b"old", b"the new bytes, " * 100

Act = Callable[[Bucket], object]
ACTS: dict[str, Act] = {
    "create": lambda bucket: bucket.put("new", NEW),
    "replace": lambda bucket: bucket.put("old", NEW, if_version=bucket.get("old").version),
    "get": lambda bucket: bucket.get("old"),
    "delete": lambda bucket: bucket.delete("old"),
    "list": lambda bucket: [*bucket.list("")],
    "time": lambda bucket: bucket.time(),
}
PERMISSIONS = {
    "az": {
        "create": "blobs/write",
        "replace": "blobs/write",
        "get": "blobs/read",
        "delete": "blobs/delete",
        "list": "blobs/read (in a SAS: l)",
        "time": "blobs/read (in a SAS: l)",
    },
    "gs": {
        "create": "storage.objects.create",
        "replace": "storage.objects.delete",
        "get": "storage.objects.get",
        "delete": "storage.objects.delete",
        "list": "storage.objects.list",
        "time": "storage.objects.list",
    },
    "s3": {
        "create": "s3:PutObject",
        "replace": "s3:PutObject",
        "get": "s3:GetObject",
        "delete": "s3:DeleteObject",
        "list": "s3:ListBucket",
        "time": "s3:ListBucket",
    },
}
each_act = pytest.mark.parametrize("act", sorted(ACTS))
each_put = pytest.mark.parametrize("act", ["create", "replace"])


@pytest.fixture(autouse=True, scope="module")
def credentials() -> Iterator[None]:
    with own_credentials():
        yield


@pytest.fixture(params=sorted(STORES))
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    with wired(request.param) as made:
        made.straight.put("old", OLD)
        yield made


def meet(wire: Wire, act: str, fault: Fault) -> BucketError | Misconfigured | None:
    """What `act` raises when its last request meets the fault."""
    wire.meets(*[None] * (act == "replace"), fault)
    try:
        ACTS[act](wire.bucket)
    except (BucketError, Misconfigured) as error:
        return error
    finally:
        wire.meets()
    return None


# --- one request each


@each_act
def test_each_call_is_one_request_on_the_warm_connection(wire: Wire, act: str) -> None:
    if act == "replace":
        version = wire.bucket.get("old").version
        seen = wire.requests(lambda: wire.bucket.put("old", NEW, if_version=version))
    else:
        seen = wire.requests(lambda: ACTS[act](wire.bucket))
    assert [(one.connection, one.expect) for one in seen] == [(0, False)]


def test_a_condition_that_does_not_hold_is_a_conflict_after_one_request(wire: Wire) -> None:
    def create() -> None:
        with pytest.raises(Conflict):
            wire.bucket.put("old", NEW)

    def replace() -> None:
        with pytest.raises(Conflict):
            wire.bucket.put("old", NEW, if_version=stale)

    stale = wire.straight.get("old").version
    wire.bucket.put("old", b"newer", if_version=stale)  # it also shows how the store wants If-Match
    assert [one.status for one in [*wire.requests(create), *wire.requests(replace)]] == [wire.taken, 412]
    assert wire.holds() == {"old": b"newer"}


# --- refused by the service


@each_act
def test_what_the_service_says_may_be_tried_again_is_unavailable_and_is_not_tried_again_below(
    wire: Wire, act: str
) -> None:
    """A retry inside of the SDK would turn an own put that landed into a conflict (R3, R10)."""
    says = [refusal(wire.scheme, status) for status in (408, 429, 500, 503)]
    says += [refusal("s3", 409), refusal("s3", 400)] if wire.scheme == "s3" else []  # 400: S3's RequestTimeout
    says += [refusal("az", 409)] if wire.scheme == "az" else []
    says += [Reply(502, b"<html>a load balancer</html>", (("Content-Type", "text/html"),))]
    says += [Reply(status) for status in (408, 429, 504)]  # a gateway's, without a word
    for fault in says:
        before = len(wire.proxy.seen)
        error = meet(wire, act, fault)
        assert isinstance(error, Unavailable), (fault, error)
        assert len(wire.proxy.seen) - before == 1 + (act == "replace")
    assert wire.holds() == {"old": OLD}


@pytest.mark.parametrize("fault", [LostReply(), ResetUpload(), Reply(503)], ids=["lost", "reset", "503"])
def test_deleting_many_is_unavailable_when_one_request_was_and_can_be_done_again(wire: Wire, fault: Fault) -> None:
    wire.straight.put("other", OLD)
    wire.meets(fault)
    with pytest.raises(Unavailable):
        wire.bucket.delete("old", "other")
    wire.bucket.delete("old", "other")
    assert wire.holds() == {}


@each_act
def test_a_missing_permission_is_named_with_the_bucket(wire: Wire, act: str) -> None:
    error = meet(wire, act, refusal(wire.scheme, 403, "Access denied."))
    assert isinstance(error, Denied)
    assert wire.name in error.what and PERMISSIONS[wire.scheme][act] in str(error)
    assert wire.holds() == {"old": OLD}


@pytest.mark.parametrize("act", ["create", "replace", "get", "list", "time"])
def test_a_page_of_somebody_elses_is_never_taken_for_the_stores_answer(wire: Wire, act: str) -> None:
    """A captive portal, or a proxy's login page, says 200 to everything. It passes: a start may be tried again (69)."""
    page = Reply(200, b"<html><body>Log in to the guest network</body></html>", (("Content-Type", "text/html"),))
    error = meet(wire, act, page)
    assert isinstance(error, Unavailable), error


# --- lost on the way


@each_put
def test_a_put_whose_reply_was_lost_is_undecided_and_shows_when_read_back(wire: Wire, act: str) -> None:
    """BUCKETS.md: a lost reply is not a failure, nor may it come back as a conflict of the put with itself."""
    before = len(wire.proxy.seen)
    assert isinstance(meet(wire, act, LostReply()), Unavailable)
    assert [one.status for one in wire.proxy.seen[before:]][-1:] == [wire.done]
    assert len(wire.proxy.seen) - before == 1 + (act == "replace")
    assert wire.bucket.get({"create": "new", "replace": "old"}[act]).data == NEW


@each_put
@pytest.mark.parametrize("after", [0, 10, 700])
def test_a_reset_upload_is_undecided_and_leaves_what_stood_there(wire: Wire, act: str, after: int) -> None:
    before = len(wire.proxy.seen)
    assert isinstance(meet(wire, act, ResetUpload(after)), Unavailable)
    assert len(wire.proxy.seen) - before == 1 + (act == "replace")
    assert wire.holds() == {"old": OLD}


@each_act
@pytest.mark.parametrize("fault", [LostReply(), ResetUpload()], ids=["lost", "reset"])
def test_no_reply_is_unavailable_for_every_call_and_asked_once(wire: Wire, act: str, fault: Fault) -> None:
    before = len(wire.proxy.seen)
    assert isinstance(meet(wire, act, fault), Unavailable)
    assert len(wire.proxy.seen) - before == 1 + (act == "replace")


@pytest.mark.parametrize("after", [0, 1, 30])
def test_a_body_that_breaks_off_is_unavailable_and_never_a_shorter_object(wire: Wire, after: int) -> None:
    """I3: what a reader takes for the log is the log."""
    wire.straight.put("long", NEW)
    wire.meets(SlowBody(after))
    with pytest.raises(Unavailable):
        wire.bucket.get("long")
    wire.meets(SlowBody(after))
    with pytest.raises(Unavailable):
        [*wire.bucket.list("")]
    wire.meets(SlowBody(after, pause=0.001))
    assert wire.bucket.get("long").data == NEW


@pytest.mark.parametrize("act", ["get", "list"])
def test_a_reply_that_comes_byte_by_byte_is_unavailable(wire: Wire, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: nothing waits for hours on one connection, which would hold the log's writer when the store is well again."""
    monkeypatch.setattr(http, "GRACE", 0.2)
    wire.straight.put("also", OLD)
    wire.meets(SlowBody(0, pause=0.15))  # each byte comes long before a socket's timeout
    with pytest.raises(Unavailable) as said:
        ACTS[act](wire.bucket)
    assert f"127.0.0.1:{wire.proxy.server.port}" in str(said.value) and "Pool" not in str(said.value)
    wire.meets()
    assert wire.bucket.get("old").data == OLD


class EndlessPages:
    """A plan in which each page of a listing names a further one, and all have the same key ("": none)."""

    def __init__(self, scheme: Scheme, key: str) -> None:
        self._scheme, self._key = scheme, key

    def __call__(self, method: str, path: str, number: int) -> Fault:
        if self._scheme == "gs":
            items = [{"name": self._key, "size": "1", "updated": "2026-01-01T00:00:00Z"}] if self._key else []
            page = json.dumps({"items": items, "prefixes": [self._key], "nextPageToken": f"t{number}"})
            return Reply(200, page.encode(), (("Content-Type", "application/json"),))
        if self._scheme == "az":
            about = "<Last-Modified>Thu, 01 Jan 2026 00:00:00 GMT</Last-Modified><Content-Length>1</Content-Length>"
            blob = f"<Blob><Name>{self._key}</Name><Properties>{about}</Properties></Blob>" if self._key else ""
            found = f"<Blobs>{blob}<BlobPrefix><Name>{self._key}</Name></BlobPrefix></Blobs>"
            page = f"<EnumerationResults>{found}<NextMarker>t{number}</NextMarker></EnumerationResults>"
            return Reply(200, page.encode(), (("Content-Type", "application/xml"),))
        when = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        item = f"<Contents><Key>{self._key}</Key>{when}<Size>1</Size></Contents>" if self._key else ""
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>t{number}</NextContinuationToken>"
        folder = f"<CommonPrefixes><Prefix>{self._key}</Prefix></CommonPrefixes>"
        page = f"<ListBucketResult>{more}{item}{folder}</ListBucketResult>"
        return Reply(200, page.encode(), (("Content-Type", "application/xml"),))


@pytest.mark.parametrize("key", ["", "a/", "no key"], ids=["empty", "repeated", "strange"])
@pytest.mark.parametrize("act", ["list", "folders"])
def test_a_listing_without_an_end_is_unavailable(
    wire: Wire, act: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for ever: where a page that names a further one brings nothing new, again and again."""
    monkeypatch.setattr(base, "MAX_IDLE_PAGES", 5)
    wire.proxy.plan = EndlessPages(wire.proxy.server.scheme, key)
    with pytest.raises(Unavailable, match="does not end"):
        [*(wire.bucket.list("") if act == "list" else wire.bucket.folders(""))]
    assert len(wire.proxy.seen) < 10


def test_a_store_that_never_answers_is_unavailable_in_the_end(wire: Wire) -> None:
    """Without anybody's patience but the bucket's own."""
    wire.straight.put("a", b"1")

    def hang(act: str) -> BaseException | None:
        with closing(reach(wire.proxy.server, wire.bucket.url)) as bucket:
            try:
                bucket.put("b", b"1") if act == "replace" else ACTS[act](bucket)
            except BucketError as error:
                return error
        return None

    wire.proxy.plan = lambda method, path, number: Hang()
    with ThreadPoolExecutor(len(ACTS)) as pool:
        raised = [*pool.map(hang, ACTS)]
    assert [type(error) for error in raised] == [Unavailable] * len(ACTS)
    assert len(wire.proxy.seen) == 1 + len(ACTS)  # the first warmed the connection
    assert wire.holds() == {"a": b"1", "old": OLD}


# --- late


def test_a_create_that_arrives_late_finds_the_place_taken(wire: Wire) -> None:
    assert isinstance(meet(wire, "create", Late()), Unavailable)
    wire.straight.put("new", b"another's")
    assert wire.proxy.release() == [wire.taken]
    assert wire.holds()["new"] == b"another's"


def test_a_create_may_arrive_after_it_was_read_back_as_absent(wire: Wire) -> None:
    """So absence proves nothing, and the same bytes are sent again: what stands there then is one's own (R3)."""
    assert isinstance(meet(wire, "create", Late()), Unavailable)
    with pytest.raises(NotFound):
        wire.bucket.get("new")
    assert wire.proxy.release() == [wire.done]
    with pytest.raises(Conflict):
        wire.bucket.put("new", NEW)
    assert wire.bucket.get("new").data == NEW


def test_a_replace_that_arrives_late_does_not_undo_a_newer_one(wire: Wire) -> None:
    """I2: the lease of a new owner is not written over by a heartbeat that was under way."""
    assert isinstance(meet(wire, "replace", Late()), Unavailable)
    wire.straight.put("old", b"newer", if_version=wire.straight.get("old").version)
    assert wire.proxy.release() == [412]
    assert wire.holds() == {"old": b"newer"}


# --- connections


def test_an_idle_connection_that_the_store_closed_costs_nothing_or_a_try(wire: Wire) -> None:
    """Stores close idle connections; the close may cross the next request. Never a conflict, never two requests."""
    for number in range(6):
        wire.meets(StaleClose(noticed=number % 2 == 0))
        wire.bucket.put(f"before-{number}", b"1")
        before = len(wire.proxy.seen)
        try:
            wire.bucket.put(f"after-{number}", b"2")
        except Unavailable:
            assert f"after-{number}" not in wire.holds()
            wire.bucket.put(f"after-{number}", b"2")
            assert len(wire.proxy.seen) - before <= 2
        else:
            assert len(wire.proxy.seen) - before == 1
        assert wire.holds()[f"after-{number}"] == b"2"


def test_a_partition_is_unavailable_for_every_call_and_over_when_it_is_over(wire: Wire) -> None:
    version = wire.straight.get("old").version
    wire.proxy.partition()
    for act in ACTS.values():
        with pytest.raises(Unavailable):
            act(wire.bucket)
    with pytest.raises(Unavailable):
        wire.bucket.put("old", NEW, if_version=version)
    assert wire.holds() == {"old": OLD}
    wire.proxy.heal()
    for act in ACTS.values():
        act(wire.bucket)
    assert wire.holds() == {"new": NEW}


def test_nobody_at_the_address_is_unavailable(wire: Wire) -> None:
    wire.proxy.close()
    for act in ACTS.values():
        with pytest.raises(Unavailable):
            act(wire.bucket)


# --- the log and the lease on such a network


class Host:
    """One run of the job on a bucket; its own clock moves only when it is slept on, so that no budget runs out."""

    def __init__(self, bucket: Bucket, run: str, seed: int = 7) -> None:
        self.bucket, self.run = bucket, run
        self.clock, self.rng = FakeClock(), random.Random(seed)

    def open(self) -> OpenedJob:
        seen = self._patiently(lambda: leases.read_lease(self.bucket, KEYS))
        return open_job(
            JobStore(self.bucket, KEYS, self.clock, self.rng, budget=600.0, parallel=1),
            claim=claim(self.run),
            fields=FIELDS,
            seen=seen,
            cause="dead" if seen else "first",
        )

    def renew(self, job: OpenedJob) -> None:
        self._patiently(job.lease.renew)

    def _patiently(self, ask: Callable[[], T]) -> T:
        for _ in range(PATIENCE):
            try:
                return ask()
            except Unavailable:
                continue
        return ask()


def drain(job: OpenedJob) -> None:
    for _ in range(PATIENCE):
        if not job.writer.backlog.items:
            return
        job.writer.commit_once()
    raise AssertionError("the log did not get on")


def logged(bucket: Bucket) -> list[int]:
    """The calls whose intents stand in the log, in its order."""
    return [r.call for _, found in reader.iter_segments(bucket, KEYS) for r in found.records if isinstance(r, Intent)]


def test_an_append_whose_reply_was_lost_is_acknowledged_once(wire: Wire) -> None:
    """I3, R3: the same bytes are sent again, and what stands there is recognised as the run's own."""
    job = Host(wire.bucket, "a").open()
    ticket = job.writer.append(intent(1))
    wire.meets(LostReply())
    seen = wire.requests(lambda: [job.writer.commit_once(), job.writer.commit_once()])
    assert ticket.status == "acked" and ticket.seq == 2 and job.writer.ended is None
    assert [one.status for one in seen] == [wire.done, wire.taken, 200]  # landed, refused, read back
    assert logged(wire.straight) == [1]


def test_a_renewal_whose_reply_was_lost_keeps_the_lease(wire: Wire) -> None:
    """R10: the lease that stands there is this run's, whatever its nonce; its version is adopted."""
    job = Host(wire.bucket, "a").open()
    job.lease.renew()  # it also shows how the store wants If-Match
    wire.meets(LostReply())
    with pytest.raises(Unavailable):
        job.lease.renew(tool="one")
    seen = wire.requests(lambda: job.lease.renew(tool="two"))
    assert [one.status for one in seen] == [412, 200, wire.done]
    found = leases.read_lease(wire.straight, KEYS)
    assert job.lease.held and found is not None and found.doc == job.lease.doc and found.doc.tool == "two"


def test_an_append_that_arrives_behind_a_new_owner_is_fenced(wire: Wire) -> None:
    """I2: the old owner's put was under way when the new one opened; it finds the place taken."""
    old = Host(wire.bucket, "a").open()
    ticket = old.writer.append(intent(1))
    wire.meets(Late())
    assert old.writer.commit_once() == "undecided"
    new = Host(wire.straight, "b").open()
    assert wire.proxy.release() == [wire.taken]
    assert old.writer.commit_once() == "ended"
    with pytest.raises(Fenced):
        assert ticket.status
    with pytest.raises(Fenced):
        old.lease.renew()
    assert new.replay.seq == 2 and logged(wire.straight) == []


def test_an_append_that_arrives_ahead_of_a_new_owner_is_in_its_replay(wire: Wire) -> None:
    """I2, R1: the opening is placed behind it, and the plan sees it."""
    old = Host(wire.bucket, "a").open()
    old.writer.append(intent(1))
    wire.meets(Late())
    assert old.writer.commit_once() == "undecided"
    assert wire.proxy.release() == [wire.done]
    new = Host(wire.straight, "b").open()
    assert new.replay.seq == 3 and [call.intent.call for call in new.replay.state.open] == [1]


@pytest.mark.parametrize("seed", once(range(8), 0, 1))
def test_in_a_storm_every_acknowledged_record_is_replayed_once(wire: Wire, seed: int) -> None:
    """I2, I3, R3, R10: no acknowledged record is lost or doubled, and no owner is fenced but by another."""
    wire.proxy.plan = Storm(seed, wire.scheme, lost=0.15, late=0.1, reset=0.1, refused=0.15, cut=0.1, stale=0.2)
    host = Host(wire.bucket, "a", seed)
    job = host.open()
    acked: list[int] = []
    for call in range(1, 17):
        ticket = job.writer.append(intent(call))
        if call % 3 == 0:
            host.renew(job)
        drain(job)
        assert ticket.status == "acked" and job.writer.ended is None
        acked.append(call)
    stormy = {type(one.fault) for one in wire.proxy.seen}
    patient = RetryBucket(wire.bucket, host.clock, host.rng, attempts=PATIENCE, deadline=3600.0)
    next_owner = Host(patient, "b", seed).open()  # else each reply that is lost has all of the log read again
    with pytest.raises(Fenced):
        host.renew(job)
    wire.proxy.release()
    assert {LostReply, Late, Reply} <= stormy
    assert logged(wire.straight) == acked == [call.intent.call for call in next_owner.replay.state.open]
    found = reader.replay(wire.straight, KEYS)
    assert found.damage is None and found.state.epoch == 2 and found.seq == next_owner.replay.seq
    wire.proxy.plan = calm
    assert close_job(next_owner, "released", budget=600.0) == "released"
