"""Doing things in parallel, in order, and a bounded number ahead of their user: a round trip each would add up."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")


def prefetch_map(act: Callable[[A], T], items: Iterable[A], parallel: int) -> Iterator[T]:
    """`act` of each item, in order. At most `parallel` results are on their way or wait to be taken, which bounds the
    memory. 1: no threads. What `act` raises comes where its result would have; nothing more is begun then, and what was
    begun is waited for. The threads are daemons, unlike an executor's: a request that hangs keeps no program alive."""
    if parallel < 2:
        yield from map(act, items)
        return
    rest = iter(items)
    begun: deque[Future[T]] = deque()
    jobs: SimpleQueue[tuple[Future[T], A] | None] = SimpleQueue()
    threads: list[Thread] = []

    def begin(item: A) -> None:
        begun.append(Future())
        jobs.put((begun[-1], item))

    try:
        for item in islice(rest, parallel):
            begin(item)
            thread = Thread(target=_work, args=(act, jobs), name="ahead", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread is left: those that run do all
                if not threads:
                    raise
                continue
            threads.append(thread)
        while begun:
            yield begun.popleft().result()
            for item in islice(rest, 1):
                begin(item)
    finally:
        for future in begun:
            future.cancel()
        for _ in threads:
            jobs.put(None)
        for thread in threads:
            thread.join()


def _work(act: Callable[[A], T], jobs: SimpleQueue[tuple[Future[T], A] | None]) -> None:
    while (job := jobs.get()) is not None:
        _do(act, *job)
        del job  # its result is the user's alone from now on


def _do(act: Callable[[A], T], future: Future[T], item: A) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = act(item)
        except BaseException as error:  # noqa: BLE001 - raised where its result would have come
            future.set_exception(error)
        else:
            future.set_result(result)
