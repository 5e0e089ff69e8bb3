"""A thread beside the main one: a daemon that takes no signal. One that did not block them all could be given those
that the main thread waits for, and their default action ends the process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


def start_daemon(name: str, work: Callable[[], None]) -> threading.Thread:
    """It runs `work` already. It inherits the mask, so it may be begun before the main thread has blocked anything."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return thread
