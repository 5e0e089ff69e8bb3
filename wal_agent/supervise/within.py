"""Work that may take no longer than it is given: what a hung request holds up is left behind in its thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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
