from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from wal_agent.concurrency import prefetch_map


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_results_come_in_order_and_all_of_them(parallel: int) -> None:
    assert [*prefetch_map(lambda n: n * n, range(50), parallel)] == [n * n for n in range(50)]


def test_so_many_are_on_their_way_at_once() -> None:
    meeting = threading.Barrier(4, timeout=30)
    assert [*prefetch_map(lambda n: meeting.wait() >= 0, range(8), 4)] == [True] * 8


def test_no_more_are_begun_than_were_taken_and_may_be_on_their_way() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            begun.append(n)
            yield n

    found = prefetch_map(lambda n: n, items(), 3)
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(begun) == 7  # the five, and two ahead: a third begins when the sixth is asked for


def test_an_error_comes_in_its_place_and_nothing_is_begun_after_it() -> None:
    def act(n: int) -> int:
        if n == 2:
            raise ValueError(n)
        return n

    numbers = iter(range(1000))
    found = prefetch_map(act, numbers, 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(found)
    assert next(numbers) == 4


def test_what_was_begun_has_ended_when_the_user_leaves() -> None:
    """Nobody is surprised later by what an abandoned replay still does."""
    inside, leave, ended = threading.Event(), threading.Event(), threading.Event()

    def act(n: int) -> int:
        if n == 1:
            inside.set()
            leave.wait(30)
            ended.set()
        return n

    found = prefetch_map(act, range(100), 2)
    assert next(found) == 0 and inside.wait(30)
    threading.Timer(0.05, leave.set).start()
    found.close()  # type: ignore[attr-defined]
    assert ended.is_set()


HANGS = {
    "ahead": "from wal_agent.concurrency import prefetch_map; use = lambda: [*prefetch_map(hang, range(4), 2)]",
    "deletes in gs://": (
        "from wal_agent.bucket.gcs import GcsBucket; GcsBucket._delete = hang; "
        "use = lambda: GcsBucket('gs://shop-bucket/x', 'http://127.0.0.1:9').delete('a', 'b', 'c')"
    ),
}


@pytest.mark.parametrize("use", HANGS.values(), ids=HANGS)
def test_a_request_that_hangs_keeps_no_program_alive(use: str) -> None:
    """A run whose bucket is away ends when its agent has ended: housekeeping is a daemon, and so is its help."""
    program = f"""
import threading
inside = threading.Event()
def hang(*_):
    inside.set()
    threading.Event().wait()
{use}
threading.Thread(target=use, daemon=True).start()
assert inside.wait(60)
"""
    subprocess.run([sys.executable, "-c", program], timeout=90, check=True)
