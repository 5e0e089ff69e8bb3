"""Classify how an agent ended, as one class and one sentence: what restarts, alerts and the crash loop go by.

What we did ourselves stands first, then what the kernel says, then the agent's own words; an exit code alone proves
nothing (RECOVERY.md). `classify_exit` is pure.

`StderrTail` keeps the end of what the agent writes to stderr, which says what it died of. To have it we stand in
between: each byte goes on to our own stderr, unchanged and in order (I6). Only where that can make no difference: not
at a terminal, and not where stdout is the same file or pipe, since between the two the order would change. What was
under way when we are killed is lost with us.

`oom_kills`: how often the kernel's OOM killer struck where this process lives: in its cgroup (v2 or v1), else on the
machine. The agent is in the same cgroup as we are, so that a count that grew while it ran, and an agent that ended by
SIGKILL, say together what it died of. Either alone says nothing: it may have been a tool of its, or a person.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Literal

from wal_agent.agents.base import ExitCause, TurnFailed
from wal_agent.records import ExitClass, RunEnded
from wal_agent.supervise.shutdown import ShutdownPlan

PERSONS_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
_DEADLY: Final = frozenset(
    {
        *(signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV),
        *(signal.SIGPIPE, signal.SIGTERM, signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ),
    }
)
_OURS: Final[dict[str, ExitClass]] = {"drain": "drained", "pause": "paused", "hang": "hung"}
_HEAP: Final = b"JavaScript heap out of memory"  # V8, of any Node program
MAX_WHY = 300  # characters

# Of an agent that is started again. Not `context`: it would end the same way. Not `failed`: that is its own answer.
RESTARTED: Final[frozenset[ExitClass]] = frozenset({"killed", "out_of_memory", "heap", "hung", "incomplete"})

QUOTA_PAUSE = 60.0  # seconds until a provider is asked again that did not say when; doubled each time
LEAST_AGAIN = 30.0  # from the second in a row, whatever it said: each try is a whole recovery
LONGEST_UNTOLD = 3600.0
LONGEST_TOLD = 7 * 86_400.0  # whatever a provider says
LONG_IN_VAIN = 3 * 3600.0  # seconds of waiting for nothing, after which a person is notified


@dataclass(frozen=True, slots=True)
class ExitFacts:
    """All that is known of an end. `code` >= 0, or -N for signal N. `stopped`: why we ended it at once; `signals`: what
    came while it ran and was its to take; `oom_kills`: of our cgroup meanwhile; `said`: the end of its stderr, `death`:
    what its module reads there; `failed`: why its newest turn ended, if for want of the model."""

    code: int
    completed: bool
    interactive: bool
    down: ShutdownPlan | None = None
    stopped: str = ""
    signals: frozenset[int] = frozenset()
    oom_kills: int = 0
    said: bytes = b""
    death: ExitCause | None = None
    failed: TurnFailed | None = None


@dataclass(frozen=True, slots=True)
class ExitReason:
    """`retry_after`: seconds, where a provider said (0: it did not)."""

    cls: ExitClass
    why: str
    retry_after: float = 0.0


def classify_exit(f: ExitFacts) -> ExitReason:
    """The class and why, one sentence without the full stop."""
    if f.stopped:
        return ExitReason("stopped", f.stopped[:MAX_WHY])
    if f.down is not None:
        return ExitReason(_OURS[f.down.kind], f.down.why)
    if f.code == 0 and f.completed:
        return ExitReason("completed", "completed")
    number = _signal(f.code)
    if f.oom_kills > 0 and number == signal.SIGKILL:
        return ExitReason("out_of_memory", "killed: out of memory")
    if f.code != 0 and _HEAP in f.said:
        return ExitReason("heap", "JavaScript heap out of memory")
    if number in PERSONS_SIGNALS or f.signals & PERSONS_SIGNALS:
        return ExitReason("interrupted", "interrupted")
    if number:
        return ExitReason("killed", f"killed by {signal.Signals(number).name}")
    if f.interactive and f.code == 0:
        return ExitReason("interrupted", "left in the middle of a turn")
    said = _said(f)
    if said is not None:
        return said
    if f.code == 0:
        return ExitReason("incomplete", "the agent ended with 0, but not its turn")
    return ExitReason("failed", f"the agent ended with {f.code}")


def _signal(code: int) -> int:
    """The signal that ended it, also where a shell in between reports it as 128+N; 0 for none."""
    if code < 0:
        return -code if -code in signal.valid_signals() else 0
    number = code - 128
    return number if number in _DEADLY or number in (signal.SIGINT, signal.SIGHUP) else 0


def _said(f: ExitFacts) -> ExitReason | None:
    if f.death is not None:
        return ExitReason(f.death.cls, _line(f.death.why), f.death.retry_after)
    if f.failed is not None and f.failed.cls != "other":
        return ExitReason(f.failed.cls, _line(f.failed.why), f.failed.retry_after)
    return None


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_WHY else line[: MAX_WHY - 1] + "…"


# ---- what the job is settled as


def lease_state_after(
    cls: ExitClass, *, clean: bool, untold: bool, interactive: bool, until: float
) -> Literal["closed", "released"]:
    """`closed` only where the end was the agent's own or its person's: the next start of a closed job begins anew, so
    what died is `released`, even behind a completed turn. `clean`: no turn is unfinished, and we did not end it;
    `untold`: a recovery's words were for a turn that never began; `until` > 0: it is to rest, which only a released job
    does."""
    if not clean or until > 0:
        return "released"
    if cls == "completed" or (cls == "interrupted" and interactive):
        return "closed"
    return "closed" if cls in ("failed", "interrupted") and not untold else "released"


# ---- a provider that has to be waited for


def quota_pause(word: ExitReason, place: str, ends: Iterable[RunEnded]) -> float:
    """Seconds until a quota is worth another try: what the provider said, but longer each time that nothing was done in
    between. `place`: where it ended now (RunEnded.place); `ends`: those of the job before, oldest first."""
    asked = min(word.retry_after, LONGEST_TOLD)
    row = _in_a_row(ends)
    vain = len(_in_vain(place, row))
    if asked <= 0:
        return _doubled(vain)
    if vain:
        return max(asked, LEAST_AGAIN, _doubled(vain - 1))
    return max(asked, LEAST_AGAIN) if row else asked


def waits_in_vain(place: str, ends: Iterable[RunEnded], now: float) -> float:
    """Seconds for which a quota has now kept it from doing anything, the one time that this becomes long; else 0."""
    vain = _in_vain(place, _in_a_row(ends))
    if not vain or vain[-1].time - vain[0].time >= LONG_IN_VAIN:
        return 0.0
    lasted = now - vain[0].time
    return lasted if lasted >= LONG_IN_VAIN else 0.0


def _doubled(times: int) -> float:
    return min(QUOTA_PAUSE * float(2 ** min(times, 10)), LONGEST_UNTOLD)


def _in_a_row(ends: Iterable[RunEnded]) -> list[RunEnded]:
    """The newest ends for a quota, oldest first; pauses and drains in between count for nothing."""
    row: list[RunEnded] = []
    for ended in reversed(list(ends)):
        if ended.cls == "quota":
            row.insert(0, ended)
        elif ended.cls not in ("paused", "drained"):
            break
    return row


def _in_vain(place: str, row: list[RunEnded]) -> list[RunEnded]:
    """Those at the end of `row` since which no call was made, in whatever session."""
    first = len(row)
    while first and _progress(row[first - 1].place) == _progress(place):
        first -= 1
    return row[first:]


def _progress(place: str) -> str:
    return place.partition(" ")[2]


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


PROC = Path("/proc")
MOUNT = Path("/sys/fs/cgroup")


def oom_counter(proc: Path = PROC, mount: Path = MOUNT) -> Path | None:
    """The file whose line `oom_kill N` counts for us; None where there is none (not Linux)."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for place in _places(lines, mount):
        if oom_kills(place) is not None:
            return place
    machine = proc / "vmstat"  # the root cgroup counts nothing by itself
    return machine if oom_kills(machine) is not None else None


def _places(lines: list[str], mount: Path) -> list[Path]:
    """Candidates, best first. In a container without a cgroup namespace of its own our cgroup is the top of the mount,
    whatever /proc says."""
    found: list[Path] = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, inside = rest.partition(":")
        below = inside.lstrip("/")
        if "memory" in controllers.split(","):  # v1
            top = mount / "memory"
            found[:0] = [top / below / "memory.oom_control", top / "memory.oom_control"]
        elif not controllers:  # v2
            found += [mount / below / "memory.events", mount / "memory.events"]
    return found


def oom_kills(file: Path | None) -> int | None:
    """The number in its line `oom_kill N`; None where it cannot be read, or has no such line."""
    if file is None:
        return None
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill" and number.strip().isdigit():
            return int(number)
    return None


def oom_kills_since(before: int | None, file: Path | None) -> int:
    """How many more there are than `before`."""
    now = oom_kills(file)
    return max(0, now - before) if now is not None and before is not None else 0
