"""Fetching in parallel and in order, a bounded number ahead of whoever uses it: a round trip each would add up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


def ahead(act: Callable[[A], T], items: Iterable[A], parallel: int) -> Iterator[T]:
    """`act` of each item, in order. At most `parallel` results are on their way or wait to be taken, which bounds the
    memory. 1: no threads. What `act` raises comes where its result would have; nothing more is begun then."""
    if parallel < 2:
        yield from map(act, items)
        return
    rest = iter(items)
    begun: deque[Future[T]] = deque()
    with ThreadPoolExecutor(parallel, "ahead") as pool:
        try:
            begun.extend(pool.submit(act, item) for item in islice(rest, parallel))
            while begun:
                yield begun.popleft().result()
                begun.extend(pool.submit(act, item) for item in islice(rest, 1))
        finally:
            for future in begun:
                future.cancel()
