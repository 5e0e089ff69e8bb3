"""Threads beside the main one: a bounded ordered parallel map, daemon threads without signals, calls with a timeout."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

A = TypeVar("A")
T = TypeVar("T")


def prefetch_map(act: Callable[[A], T], items: Iterable[A], parallel: int) -> Iterator[T]:
    """`act` of each item, in order. At most `parallel` results are on their way or wait to be taken, which bounds the
    memory. 1: no threads. What `act` raises comes where its result would have; nothing more is begun then, and what was
    begun is waited for. The threads are daemons, unlike an executor's: a request that hangs keeps no program alive."""
    if parallel < 2:
        yield from map(act, items)
        return
    from concurrent.futures import Future

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
        _run_task(act, *job)
        del job  # its result is the user's alone from now on


def _run_task(act: Callable[[A], T], future: Future[T], item: A) -> None:
    if future.set_running_or_notify_cancel():
        try:
            result = act(item)
        except BaseException as error:  # noqa: BLE001 - raised where its result would have come
            future.set_exception(error)
        else:
            future.set_result(result)


def start_daemon(name: str, work: Callable[[], None]) -> threading.Thread:
    """It runs `work` already. It inherits the mask, so it may be begun before the main thread has blocked anything."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread


def call_with_timeout(seconds: float, work: Callable[[], T], late: T) -> T:
    """What `work` gives, or raises; `late` when it takes longer. It may still come to its end then, or never."""
    done: list[T] = []
    failed: list[BaseException] = []

    def worker() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failed.append(error)

    thread = threading.Thread(target=worker, name="within", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread is left; the work matters more than its limit
        return work()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return done[0] if done else late
