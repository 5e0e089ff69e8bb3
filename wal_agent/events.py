"""Define the events of a live run and the bus that passes them to listeners.

`supervise` emits them; metrics, the structured log, traces, notifications and the service manager receive them. What is
worth keeping is in the log as well (records.py). Nothing is redacted here: each listener redacts what it lets out.
Durations are in seconds, times in seconds since 1970 (UTC).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from wal_agent.records import CallState, Cause, Class, Ending, ExitClass, Finding, Late, PhaseName, Trigger

CLOSE_TIMEOUT = 4.0  # seconds that the end of the process waits for all listeners together


class LeaseTaken(msgspec.Struct, frozen=True):
    """This run holds the job under `epoch`. `cause`: how the owner before ended; `run`: this run's id."""

    job: str
    bucket: str
    run: str
    epoch: int
    cause: Cause
    host: str
    agent: str
    agent_version: str
    workspace: str
    ttl: float


class LeaseRenewed(msgspec.Struct, frozen=True):
    """`left`: until the lease runs out, by when the renewal was sent."""

    epoch: int
    left: float = 0.0


class RenewalFailed(msgspec.Struct, frozen=True):
    """The bucket did not take a heartbeat; it is tried again. `left`: until the lease runs out."""

    why: str
    left: float


class LeaseLost(msgspec.Struct, frozen=True):
    """Another owner has the job, or the lease cannot be read: the run ends itself."""

    why: str


class LeaseSettled(msgspec.Struct, frozen=True):
    """The run released the lease. `until`: end of the pause (0: not paused)."""

    state: Literal["closed", "released", "left"]
    reason: str
    until: float = 0.0


class Recovered(msgspec.Struct, frozen=True):
    """An earlier run had been cut off; what it left is restored and will be told to the agent. `alert` is the plan's
    word for how it ended; `trace`: the W3C trace id of the run that was cut off, "" if none is known."""

    from_epoch: int
    old_host: str
    stopped: float
    alert: str
    findings: tuple[Finding, ...]  # one for each open call
    put_back: int
    seconds: float
    trace: str = ""
    states: tuple[CallState, ...] = ()  # of the same calls


class Halted(msgspec.Struct, frozen=True):
    """Nothing (more) is run, and a person is needed: `what` and `hint` as on the screen, `code` the exit code. `limit`:
    one of this machine is used up; the same command works once it is not."""

    code: int
    what: str
    hint: str
    limit: bool = False


class LeftOpen(msgspec.Struct, frozen=True):
    """The run is over and nothing takes the job up by itself; of these calls (number, tool, state), which are not as
    well done twice, nobody can tell whether they happened. A person can. `unproven`: at so many of them the agent has
    looked."""

    calls: tuple[tuple[int, str, CallState], ...]
    unproven: int = 0


class Ready(msgspec.Struct, frozen=True):
    """Lease, restore and the proof of the hooks are done: the agent works. Once a run."""


class AgentBegan(msgspec.Struct, frozen=True):
    pid: int
    session: str
    resumed: bool


class AgentEnded(msgspec.Struct, frozen=True):
    """`code` >= 0, or -N for signal N. `why`: one sentence for people; `cls` is what restarts and alerts go by."""

    code: int
    cls: ExitClass
    why: str


class HookAnswered(msgspec.Struct, frozen=True):
    """`event` is the agent's own name of it. `decision` is "" where nothing was to be decided; `reason`: a short word
    for why a call was denied (`unsaved`, `draining`, `late`, `fenced`, `ended`)."""

    event: str
    decision: Literal["", "allow", "deny"]
    reason: str
    seconds: float


class CallStarted(msgspec.Struct, frozen=True):
    """`agent_call`: the agent's own id of it, "" where it has none."""

    call: int
    tool: str
    cls: Class
    agent_call: str = ""


class CallEnded(msgspec.Struct, frozen=True):
    """`changed`: it may have changed something."""

    call: int
    tool: str
    how: Ending
    seconds: float
    changed: bool = False


class PhaseChanged(msgspec.Struct, frozen=True):
    """`lasted`: how long the phase before did. `tool`: what runs or waits in the new one."""

    was: PhaseName
    phase: PhaseName
    tool: str
    lasted: float


class TakesLong(msgspec.Struct, frozen=True):
    """The watchdog's word: `what` has been waited for since `seconds`; `tool` where it is one."""

    what: Late
    seconds: float
    tool: str = ""


class HungUp(msgspec.Struct, frozen=True):
    """The hard timeout: the agent is ended, and what follows is the plan's affair. `what`: never a person or a tool."""

    seconds: float
    what: Late = "model"


class NoticeReceived(msgspec.Struct, frozen=True):
    """This machine is going away. `source`: sigterm, gcp, aws, aws-rebalance, azure. `left` in seconds, 0: unknown."""

    source: str
    left: float = 0.0


class DrainStarted(msgspec.Struct, frozen=True):
    source: str
    budget: float


class DrainFinished(msgspec.Struct, frozen=True):
    """`in_time`: all was saved within the budget and the lease was released; else the next start finds a crash."""

    seconds: float
    in_time: bool


class Paused(msgspec.Struct, frozen=True):
    """The job rests until then; whoever starts it from then on, on any machine, carries on. `vain`: nothing could be
    done for so many seconds, told the one time that this becomes long (else 0)."""

    until: float
    why: str
    vain: float = 0.0


class Restarting(msgspec.Struct, frozen=True):
    """The agent died (`cls`); it is started again after `delay`. `attempt` counts from 1."""

    attempt: int
    delay: float
    cls: ExitClass


class Saved(msgspec.Struct, frozen=True):
    """A capture (or a snapshot of the log) was acknowledged by the bucket; `size` in bytes, of what was sent. 0 of a
    session or workspace: a look found nothing new, and nothing waits."""

    what: Literal["session", "workspace", "snapshot"]
    size: int
    seconds: float


class CheckpointCreated(msgspec.Struct, frozen=True):
    """A checkpoint was acknowledged by the bucket; `size` in bytes."""

    number: int
    trigger: Trigger
    size: int


class CheckpointRestored(msgspec.Struct, frozen=True):
    """A recovery used checkpoint `number`, `age` seconds older than the end of the run that made it; 0: none was kept.
    `rebuilt`: its content was built anew from the log."""

    number: int
    age: float
    rebuilt: bool


class CheckpointFailed(msgspec.Struct, frozen=True):
    """A checkpoint could not be made or not be used; the run goes on."""

    why: str


class SummaryLost(msgspec.Struct, frozen=True):
    """The agent compacted its conversation, and the summary says nothing. `n`: the compaction's number; `mended`: the
    run ends, and starts again with a compact form of what was said."""

    n: int
    mended: bool


class Logged(msgspec.Struct, frozen=True):
    """Records were acknowledged by the bucket, by their tags. `unsettled`: calls of earlier runs that have no end."""

    kinds: tuple[str, ...]
    unsettled: int = 0


Event = (
    LeaseTaken
    | LeaseRenewed
    | RenewalFailed
    | LeaseLost
    | LeaseSettled
    | Recovered
    | Halted
    | LeftOpen
    | Ready
    | AgentBegan
    | AgentEnded
    | HookAnswered
    | CallStarted
    | CallEnded
    | PhaseChanged
    | TakesLong
    | HungUp
    | NoticeReceived
    | DrainStarted
    | DrainFinished
    | Paused
    | Restarting
    | Saved
    | CheckpointCreated
    | CheckpointRestored
    | CheckpointFailed
    | SummaryLost
    | Logged
)

Emit = Callable[[Event], None]


def emit_after(actions: Mapping[type[Any], Callable[[Any], None]], emit: Emit) -> Emit:
    """Return what emits each event after the action for its class, if there is one."""

    def act_and_emit(event: Event) -> None:
        if (act := actions.get(type(event))) is not None:
            act(event)
        emit(event)

    return act_and_emit


class LostOnce:
    """Pass on only the first `LeaseLost`: the renewer, the log's writer and the run itself may each find it."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._lost = False

    def __call__(self, event: Event) -> None:
        if isinstance(event, LeaseLost):
            with self._lock:
                known, self._lost = self._lost, True
            if known:
                return
        self._emit(event)


class Listener(Protocol):
    """Receive events, from any thread, and do not block: what takes time goes into a queue of its own."""

    def on_event(self, at: float, event: Event) -> None:
        """`at`: seconds since 1970."""

    def close(self) -> None:
        """Hand over what is pending within a few seconds: the process is about to end."""


class EventBus:
    """Passes each event to all listeners. A listener that raises is reported once to `failed`; the run goes on."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        now: Callable[[], float],
        failed: Callable[[BaseException], None],
        last: float = CLOSE_TIMEOUT,
    ) -> None:
        self._listeners = tuple(listeners)
        self._now = now
        self._failed = failed
        self._last = last
        self._broken: set[int] = set()

    def emit(self, event: Event) -> None:
        at = self._now()
        for listener in self._listeners:
            self._guarded(listener, lambda to=listener: to.on_event(at, event))  # type: ignore[misc]

    def add(self, *listeners: Listener) -> None:
        """Add listeners; they receive only later events."""
        self._listeners += listeners

    def close(self) -> None:
        """Close all listeners at the same time; after `last` seconds, do not wait for the others."""
        closing = [
            threading.Thread(target=self._guarded, args=(listener, listener.close), name="close", daemon=True)
            for listener in self._listeners
        ]
        until = time.monotonic() + self._last
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(max(0.0, until - time.monotonic()))

    def _guarded(self, listener: Listener, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a listener must not end the run
            if id(listener) not in self._broken:
                self._broken.add(id(listener))
                self._failed(error)
