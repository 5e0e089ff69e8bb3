from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from wal_agent.wal.ahead import ahead


@pytest.mark.parametrize("parallel", [1, 2, 5])
def test_results_come_in_order_and_all_of_them(parallel: int) -> None:
    assert [*ahead(lambda n: n * n, range(50), parallel)] == [n * n for n in range(50)]


def test_so_many_are_on_their_way_at_once() -> None:
    meeting = threading.Barrier(4, timeout=30)
    assert [*ahead(lambda n: meeting.wait() >= 0, range(8), 4)] == [True] * 8


def test_no_more_are_begun_than_were_taken_and_may_be_on_their_way() -> None:
    begun: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            begun.append(n)
            yield n

    found = ahead(lambda n: n, items(), 3)
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(begun) == 7  # the five, and two ahead: a third begins when the sixth is asked for


def test_an_error_comes_in_its_place_and_nothing_is_begun_after_it() -> None:
    def act(n: int) -> int:
        if n == 2:
            raise ValueError(n)
        return n

    numbers = iter(range(1000))
    found = ahead(act, numbers, 2)
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(ValueError, match="2"):
        next(found)
    assert next(numbers) == 4
