"""The end of what the agent writes to stderr, which says what it died of. To have it we stand in between: each byte
goes on to our own stderr, unchanged and in order (I6).

Only where that can make no difference: not at a terminal, and not where stdout is the same file or pipe, since between
the two the order would change. What was under way when we are killed is lost with us.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count

MAX_TAIL = 64 << 10  # bytes
_PIECE = 64 << 10
HURRIED = 20  # twentieths of a second


def may_tee_stderr(out: int = 1, err: int = 2) -> bool:
    """Whether to stand in between."""
    try:
        if os.isatty(err):
            return False
        one, other, null = os.fstat(out), os.fstat(err), os.stat(os.devnull)  # noqa: PTH116 - beside fstat
    except OSError:  # closed: it stays so
        return False
    if stat.S_ISCHR(other.st_mode) and other.st_rdev == null.st_rdev:
        return True  # nobody reads it, so there is no order
    return (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino)


class StderrTail:
    """`inlet` is for the agent's stderr; call `began` once it has it, and `finish` when its whole tree is gone."""

    def __init__(self, sink: int = 2) -> None:
        self._sink = sink
        self._outlet, self.inlet = os.pipe()
        self._wake, self._waker = os.pipe()
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._copy, name="stderr", daemon=True)

    def began(self) -> None:
        os.close(self.inlet)
        self._thread.start()

    def finish(self, hurry: Callable[[], bool] = lambda: False) -> bytes:
        """Pass on what is left, however long the sink takes for it, or for a second where `hurry` says so. Gives the
        tail."""
        os.close(self._waker)
        for n in count():
            self._thread.join(0.05)
            if not self._thread.is_alive() or (n >= HURRIED and hurry()):
                return bytes(self._tail)
        raise AssertionError

    def _copy(self) -> None:
        """Until the last writer is gone, or `finish` was called and the pipe is empty: what the agent left running,
        and nobody could end, may hold it open for ever."""
        try:
            while True:
                ready, _, _ = select.select([self._outlet, self._wake], [], [])
                if self._outlet not in ready:
                    return
                data = os.read(self._outlet, _PIECE)
                if not data:
                    return
                self._tail += data
                del self._tail[:-MAX_TAIL]
                if not self._pass_on(data):
                    return
        finally:
            os.close(self._outlet)  # who writes from now on gets EPIPE, as from the sink itself
            os.close(self._wake)

    def _pass_on(self, data: bytes) -> bool:
        """False: the sink takes no more, for ever."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._sink, left) :]
            except BlockingIOError:
                with suppress(OSError):
                    select.select([], [self._sink], [])
            except OSError as error:
                # A full disk is no end: the agent's own write would have failed too, and it would have gone on.
                return error.errno not in (errno.EPIPE, errno.EBADF, errno.ECONNRESET)
        return True
