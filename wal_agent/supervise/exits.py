"""Shut an agent down in good order, and classify how it ended.

Shutdown: why, and by when. The machine goes away, the job is paused, or the agent hangs. The first request counts, and
fixes the deadline, which is split between running tools, the agent and the last save.

Ends are one class and one sentence: what restarts, alerts and the crash loop go by. What we did ourselves comes first,
then what the kernel says, then the agent's own words; an exit code alone proves nothing (RECOVERY.md). `classify_exit`
is pure.

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
import math
import os
import select
import signal
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import ExitCause, TurnFailed
from wal_agent.clock import Clock
from wal_agent.records import ExitClass, RunEnded

HURRY = 20.0  # seconds for all that follows, once somebody hurries
TOOLS, TREE, SAVE = 0.5, 0.65, 0.8  # by which part of the time: tools are done, the agent is gone, all is captured
LINGER = 10.0  # seconds for a paused agent's last word, from when nothing runs any more
LAST_SAVE = 10.0  # seconds for the captures that are left when the agent has ended
LAST_SAVE_AT_LEAST = 1.0  # also when the time for going down is used up
LEFT_AT_LEAST = 0.2  # seconds, for what comes between the agent's end and the last save

_HANGS = {"start": "the agent did not begin", "exit": "the agent did not end behind its turn"}
_HEAP: Final = b"JavaScript heap out of memory"  # V8, of any Node program
MAX_WHY = 300  # characters
QUOTA_PAUSE = 60.0  # seconds until a provider is asked again that did not say when; doubled each time
LEAST_AGAIN = 30.0  # from the second in a row, whatever it said: each try is a whole recovery
MAX_UNTOLD = 3600.0
MAX_TOLD = 7 * 86_400.0  # whatever a provider says
LONG_IN_VAIN = 3 * 3600.0  # seconds of waiting for nothing, after which a person is notified
MAX_TAIL = 64 << 10  # bytes
_PIECE = 64 << 10
HURRIED = 20  # twentieths of a second
PERSONS_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGHUP})
_DEADLY: Final = frozenset(
    {
        *(signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV),
        *(signal.SIGPIPE, signal.SIGTERM, signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ),
    }
)
_OURS: Final[dict[str, ExitClass]] = {"drain": "drained", "pause": "paused", "hang": "hung"}
# Of an agent that is started again. Not `context`: it would end the same way. Not `failed`: that is its own answer.
RESTARTED: Final[frozenset[ExitClass]] = frozenset({"killed", "out_of_memory", "heap", "hung", "incomplete"})
PROC = Path("/proc")
MOUNT = Path("/sys/fs/cgroup")


class ShutdownPlan(msgspec.Struct, frozen=True):
    """`kind`: drain (SIGTERM or a notice: saved, released), pause (released, with a time) or hang (the hard timeout).
    `source`: who said so (sigterm, gcp, aws, pause, quota), or of a hang, what was waited for. `began` and `until` are
    boot time: by `until` all is saved and stopped. `sentence`: what a changing tool gets that comes after it."""

    kind: Literal["drain", "pause", "hang"]
    source: str
    began: float
    until: float
    sentence: str
    resume_at: float = 0.0  # since 1970; of a pause
    reason: str = ""  # of a pause, in the pauser's words
    hurried: float = math.inf  # boot time; from then on nothing is waited for but the last save

    @property
    def half(self) -> float:
        """When a tool that still runs has had its time."""
        return min(self.hurried, self._at(TOOLS))

    @property
    def gone(self) -> float:
        """By when the agent has ended, or is killed: the rest is for what it leaves."""
        return min(self.hurried, self._at(TREE))

    @property
    def saved(self) -> float:
        """By when the last captures are in the bucket; then the log is sealed and the lease given up."""
        return min(self.hurried + HURRY / 2, self._at(SAVE))

    @property
    def end(self) -> float:
        """By when the process ends, saved or not."""
        return min(self.hurried + HURRY, self.until)

    @property
    def why(self) -> str:
        """For the lease, the log and the next run's first words."""
        match self.kind:
            case "drain":
                return "drained (SIGTERM)" if self.source == "sigterm" else f"preempted ({self.source})"
            case "pause":
                return "paused"
            case _:
                return _HANGS.get(self.source, "the model did not answer")

    def after(self, current: ShutdownPlan | None) -> ShutdownPlan | None:
        """What stands when this one is asked for and `stands` was before; None: this one comes too late. The first word
        counts, but a drain overrules a pause or a hang; the job stays paused then, whoever has it next."""
        if current is None:
            return self
        if self.kind != "drain" or current.kind == "drain":
            return None
        return replace(self, resume_at=current.resume_at, reason=current.reason)

    def _at(self, part: float) -> float:
        return self.began + (self.until - self.began) * part


def may_end_paused(now: float, began: float, busy: float, free: bool) -> bool:
    """Whether a paused agent may be ended now. `began`: the pause; `busy`: when a call was last seen to run
    (== `now`: one runs, of whatever kind); `free`: it has had its last word. All in boot time."""
    return busy < now and (free or now >= max(began, busy) + LINGER)


class GracefulShutdown:
    """Begun and hurried from any thread; `step` is the main thread's. `free`: a paused agent may be ended as soon as
    nothing runs, since it has said its last word or can say none."""

    def __init__(self, clock: Clock, free: bool) -> None:
        self.free = free
        self._clock = clock
        self._lock = threading.Lock()
        self._down: ShutdownPlan | None = None
        self._over = False
        self._told = False
        self._busy = 0.0  # boot time of the newest step at which a call ran

    @property
    def down(self) -> ShutdownPlan | None:
        """Why and by when; None: it goes on."""
        return self._down

    def begin(self, down: ShutdownPlan, deny: Callable[[], None]) -> bool:
        """Whether `down` counts: it is the first, or overrules what stands (`Down.after`), and the agent has not ended.
        `deny` is called before a step may see that nothing changing runs: no such call may begin behind that (I1)."""
        with self._lock:
            current = down.after(self._down)
            if current is None or self._over:
                return False
            deny()
            self._down = current
            return True

    def hurry(self) -> None:
        """What was given to running tools and to the agent is over (a second SIGTERM); what is left is for saving."""
        with self._lock:
            if self._down is not None:
                self._down = replace(self._down, hurried=min(self._down.hurried, self._clock.boot()))

    def close(self) -> ShutdownPlan | None:
        """The agent has ended: what would end it comes too late from now on."""
        with self._lock:
            self._over = True
            return self._down

    def step(self, running: bool, changing: bool) -> Literal["", "terminate", "kill"]:
        """What is due now. `running`: a call runs, of whatever kind; `changing`: one that changes something."""
        down, now = self._down, self._clock.boot()
        if down is None:
            return ""
        if now >= down.gone:
            return "kill"
        if down.kind == "pause":
            self._busy = now if running else self._busy
            lets_go = may_end_paused(now, down.began, self._busy, self.free)
        else:
            lets_go = not changing
        if self._told or not (now >= down.half or lets_go):
            return ""
        self._told = True
        return "terminate"

    def left(self, most: float) -> float:
        """`most` seconds for something between the agent's end and the last save, or what there is of them."""
        if self._down is None:
            return most
        return max(LEFT_AT_LEAST, min(most, (self._down.gone - self._clock.boot()) / 2))

    def to_save(self) -> float:
        """Seconds for the last save."""
        if self._down is None:
            return LAST_SAVE
        return max(LAST_SAVE_AT_LEAST, self._down.saved - self._clock.boot())


class ExitFacts(msgspec.Struct, frozen=True):
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


class ExitReason(msgspec.Struct, frozen=True):
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
    asked = min(word.retry_after, MAX_TOLD)
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
    return min(QUOTA_PAUSE * float(2 ** min(times, 10)), MAX_UNTOLD)


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
