"""wal/writer.py: group commit, R3, fences, and the seal of R6."""

from __future__ import annotations

import threading

import pytest

from tests.unit.wal.world import KEYS, World, drain, end, intent
from wal_agent.errors import Damaged, Fenced, WalAgentError
from wal_agent.wal import segment as codec
from wal_agent.wal.reader import replay
from wal_agent.wal.writer import Sealed


def test_appends_that_wait_together_share_a_segment() -> None:
    world = World()
    job = world.open("a")
    first, second = job.writer.append(intent(1)), job.writer.append(intent(2), end(1))
    assert job.writer.backlog.items == 2 and first.word == "undecided"
    assert job.writer.commit_once() == "acked"
    assert (first.word, second.word, first.seq, second.seq) == ("acked", "acked", 2, 2)
    assert job.writer.commit_once() == "idle"
    assert [c.intent.call for c in job.writer.state.open] == [2]


def test_a_full_segment_leaves_the_rest_for_the_next() -> None:
    job = World().open("a")
    big = [job.writer.append(intent(n, "x" * 400_000)) for n in (1, 2, 3)]
    drain(job)
    assert [t.seq for t in big] == [2, 2, 3]


@pytest.mark.parametrize("fate", ["lost", "dropped"])
def test_an_undecided_put_is_sent_again_byte_for_byte_and_nothing_else_is(fate: str) -> None:
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))
    world.bucket.fates = [fate]
    assert job.writer.commit_once() == "undecided"
    later = job.writer.append(intent(2))
    world.clock.at += 5  # a segment that was encoded again would have another time, and other bytes
    assert job.writer.commit_once() == "acked"
    assert ticket.word == "acked" and later.word == "undecided"
    sent = [data for key, data in world.bucket.puts if key == KEYS.segment(2)]
    assert len(sent) == 2 and sent[0] == sent[1]


def test_a_higher_epoch_at_my_seq_is_a_fence_for_good() -> None:
    world = World()
    old = world.open("a")
    ended: list[Exception] = []
    old.writer.on_end = ended.append
    new = world.take_over("b")
    ticket, queued = old.writer.append(intent(1)), old.writer.append(intent(2))
    assert old.writer.commit_once() == "ended"
    assert old.writer.commit_once() == "ended"
    with pytest.raises(Fenced, match="taken over by host-b"):
        ticket.wait(0)
    with pytest.raises(Fenced):
        assert queued.word
    with pytest.raises(Fenced):
        old.writer.append(intent(3))
    assert len(ended) == 1 and isinstance(ended[0], Fenced)
    assert new.replay.seq == 2


def test_what_can_only_be_a_fault_is_called_damage() -> None:
    world = World()
    job = world.open("a")
    stranger = codec.encode_segment(job="shop", epoch=1, seq=2, run="a", prev=bytes(32), time=0.0, records=[])
    world.inner.put(KEYS.segment(2), stranger)
    ticket = job.writer.append(intent(1))
    assert job.writer.commit_once() == "ended"
    with pytest.raises(Damaged, match="not what this run"):
        assert ticket.word


def test_what_could_not_be_read_back_never_gets_in() -> None:
    job = World().open("a")
    with pytest.raises(ValueError, match="cannot be read back"):
        job.writer.append(intent("1"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fits no segment"):
        job.writer.append(intent(1, "x" * codec.MAX_SEGMENT))
    with pytest.raises(ValueError, match="fit no segment"):
        job.writer.append(intent(1, "x" * 600_000), intent(2, "x" * 600_000))
    assert job.writer.commit_once() == "idle"


def test_seal_flushes_and_refuses() -> None:
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))
    world.bucket.fates = ["lost", "dropped"]
    assert job.writer.seal(10.0)
    assert ticket.word == "acked"
    with pytest.raises(Sealed):
        job.writer.append(intent(2))


def test_seal_says_when_it_could_not_decide() -> None:
    world = World()
    job = world.open("a")
    job.writer.append(intent(1))
    world.bucket.fates = ["dropped"] * 100
    assert not job.writer.seal(10.0)


def test_seal_of_a_fenced_writer_says_so() -> None:
    world = World()
    old = world.open("a")
    world.take_over("b")
    old.writer.append(intent(1))
    with pytest.raises(Fenced):
        old.writer.seal(10.0)


def test_call_numbers_go_on_where_the_log_ends() -> None:
    world = World()
    job = world.open("a")
    assert [job.writer.next_call(), job.writer.next_call()] == [1, 2]
    job.writer.append(intent(1), intent(2))
    drain(job)
    assert world.take_over("b").writer.next_call() == 3


def test_a_bucket_that_breaks_its_contract_ends_the_writer_loudly() -> None:
    world = World()
    job = world.open("a")
    ticket = job.writer.append(intent(1))

    def broken(key: str) -> None:
        raise RuntimeError("boom")

    world.bucket.before_put = broken
    ended: list[Exception] = []
    job.writer.on_end = ended.append
    with pytest.raises(RuntimeError):
        job.writer.run(threading.Event())
    with pytest.raises(WalAgentError, match="boom"):
        ticket.wait(0)
    with pytest.raises(WalAgentError):
        job.writer.append(intent(2))
    assert len(ended) == 1


def test_many_threads_append_while_the_loop_runs() -> None:
    world = World()
    job = world.open("a")
    stop = threading.Event()
    loop = threading.Thread(target=job.writer.run, args=(stop,))
    loop.start()

    def work() -> None:
        for _ in range(20):
            assert job.writer.append(intent(job.writer.next_call())).wait(60) == "acked"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    job.writer.append(intent(job.writer.next_call()))  # wakes the loop
    loop.join(60)
    found = replay(world.bucket, KEYS)
    assert found.damage is None
    assert sorted(c.intent.call for c in found.state.open)[:80] == list(range(1, 81))
