"""A fork: a new job that says what another one said at a place in its log; the source is not touched."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.shelf import KEYS, commit, intent, payload
from tests.unit.cli.test_restore import MAIN, Story
from wal_agent.operate.fork import Source, fork, free_name
from wal_agent.records import End, Fact, Host, Turn
from wal_agent.recovery.lease_policy import Acquire, Local, admit
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import INLINE, Blobs, write_file
from wal_agent.wal.job import Opener, OpeningFields
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State
from wal_agent.wal.store import JobStore

NEW = Keys("shop-from-9")
CLAIM = LeaseRequest(
    run="f", host=Host(name="h", boot="b", pidns="1", pid=1, lock=""), agent="gemini", workspace="/w", ttl=30.0
)
FIELDS = OpeningFields("0.61.0", "0", ("--yolo",), False)


class Cut(Exception):
    pass


@pytest.fixture
def story(tmp_path: Path) -> Story:
    """Two calls, of which the first has ended with a result that is a blob; a session; a tree; a turn that goes on."""
    story = Story(tmp_path)
    writer = story.job.writer
    writer.append(Turn(time=2.0, state="started", session="s", prompt=payload(b"do it")))
    story.step("one")
    result = story.job.blobs.put_payload(b"r" * (INLINE + 1))
    writer.append(End(time=3.0, call=1, how="done", by="hook", result=result))
    (story.work / "big").write_bytes(random.Random(1).randbytes(1 << 20))
    story.step("two")
    return story


def source(story: Story, upto: int | None = None) -> Source:
    bucket = story.shelf.bucket
    return Source(bucket, KEYS, replay(bucket, KEYS, upto), Blobs(JobStore(bucket, KEYS, rng=random.Random(1))))


def go(of: Source) -> State:
    fork(of, JobStore(of.bucket, NEW, rng=random.Random(1)), CLAIM, FIELDS)
    return replay(of.bucket, NEW).state


def blobs(of: Source, state: State) -> dict[str, bytes]:
    """What a recovery of the new job reads, from its own blobs alone."""
    own = Blobs(JobStore(of.bucket, NEW, rng=random.Random(1)))
    found = {f"#{o.intent.call}": own.fetch(o.intent.input) for o in state.open}
    found |= {f"={e.intent.call}": own.fetch(e.end.result) for e in state.unsettled if e.end.result}
    if state.workspace:
        parts = [own.fetch(part) for pack in state.workspace.packs for part in pack.parts]
        found["tree"] = b"".join(parts)
    return found


def test_a_fork_says_what_its_source_said_there(story: Story, tmp_path: Path) -> None:
    of = source(story)
    old = of.found.state
    before = {p: p.read_bytes() for p in (tmp_path / "bucket" / "shop").rglob("*") if p.is_file()}
    state = go(of)
    assert [o.intent.call for o in state.open] == [2] == [o.intent.call for o in old.open]
    assert [e.intent.call for e in state.unsettled] == [1]
    assert (state.session, state.turn, state.next_call) == ("s", "started", 3)
    assert state.prompt and old.prompt and state.prompt.prompt == old.prompt.prompt
    write_file(Blobs(JobStore(of.bucket, NEW, rng=random.Random(1))), state.files[MAIN], tmp_path / "exact")
    assert (tmp_path / "exact").read_text() == "two" * 3
    told = blobs(of, state)
    assert told["=1"] == b"r" * (INLINE + 1)
    parts = [of.blobs.fetch(p) for pack in (old.workspace.packs if old.workspace else ()) for p in pack.parts]
    assert told["tree"] == b"".join(parts) and len(told["tree"]) > 1 << 20
    assert state.workspace and old.workspace and state.workspace.commit == old.workspace.commit
    home = state.openings[-1].opening
    assert (state.home, home.epoch, home.args) == (1, 1, ("--yolo",))
    seen = leases.read_lease(of.bucket, NEW)
    assert seen and (seen.doc.state, seen.doc.reason) == ("released", f"forked from shop at record {of.found.seq}")
    assert {p: p.read_bytes() for p in (tmp_path / "bucket" / "shop").rglob("*") if p.is_file()} == before


def test_what_was_true_on_the_sources_machine_is_no_evidence_on_the_forks(story: Story) -> None:
    """A wrong verdict: a file that is absent here was never deleted by a call that ran elsewhere."""
    fact = Fact(what="entry", where="/outside/a", value="x")
    story.job.writer.append(msgspec.structs.replace(intent(9, command="rm /outside/a"), before=(fact,)))
    commit(story.job)
    state = go(source(story))
    assert [o.intent.before for o in state.open] == [(), ()]
    assert [o.intent.before for o in source(story).found.state.open] == [(), (fact,)]


def test_a_fork_of_an_earlier_place(story: Story) -> None:
    """Before the first call had ended, and before the second began."""
    first = next(
        seq for seq in range(1, 99) if [o.intent.call for o in replay(story.shelf.bucket, KEYS, seq).state.open] == [1]
    )
    state = go(source(story, first))
    assert [o.intent.call for o in state.open] == [1] and not state.unsettled


def test_a_fork_that_was_cut_off_is_a_job_that_never_ran(story: Story) -> None:
    """I8: what stands in it is no whole copy, so nobody may recover from it; and the next fork has another name."""
    of, steps = source(story), 0

    def cut() -> None:
        nonlocal steps
        steps += 1
        if steps > at:
            raise Cut

    for at in range(99):
        steps = 0
        name = free_name(of.bucket, "shop", at + 100)
        try:
            fork(of, JobStore(of.bucket, name, rng=random.Random(1)), CLAIM, FIELDS, Opener(check_stop=cut))
        except Cut:
            assert replay(of.bucket, name).state.home == 0, at
            assert free_name(of.bucket, "shop", at + 100).job == f"{name.job}-2"
        else:
            break
    assert at > 5 and replay(of.bucket, name).state.home == 1


def test_the_new_job_is_given_up_in_good_order(story: Story) -> None:
    of = source(story)
    go(of)
    decided = admit(leases.read_lease(of.bucket, NEW), Local("", "", unchanged=0.0))
    assert decided == Acquire("released")


def test_names_fit(story: Story) -> None:
    long = "j" * 100
    assert free_name(story.shelf.bucket, long, 12).job == "j" * 92 + "-from-12"
    assert free_name(story.shelf.bucket, "shop", 12).job == "shop-from-12"
