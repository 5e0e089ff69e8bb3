"""Report what the run has waited for too long (ARCHITECTURE.md): a state that moves on by the time that passes awake.

Only a phase in which the model owes an answer counts as idle, and where nobody sits before the agent, one in which it
does not begin, or does not end behind its turn. No wall clock is read, suspended time does not count, and a look that
comes late counts for nothing: neither a clock's jump, a closed lid, a stop (^Z) nor a starved machine fires it. It only
reports what it found; what is emitted or ended is up to the caller.

`Liveness`: whether the supervisor's own loop turns, which a service manager and a liveness probe ask. The bucket has no
part in it, since an outage of the store must not restart a fleet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from wal_agent.events import HungUp, TakesLong
from wal_agent.records import Class, Late
from wal_agent.supervise.context import PHASES, Phase, is_idle

if TYPE_CHECKING:
    from wal_agent.supervise.gate import RunningCall

STUCK = 300.0  # seconds for beginning and for ending, which may fetch and flush things over a slow network
LATE = 5.0  # seconds between two looks, of which ten come in one: the process was stopped or starved, not the agent
AGAIN = 3  # a question that still stands is reported again after so many times as long ...
AT_MOST = 86_400.0  # ... but daily at least: a night makes six tellings, not sixty

# How long a tool may run, in times of `WatchdogLimits.tool` (120 s). Reading is done in seconds, but for a search
# through a whole disk or a page that hangs; what can be done twice is mostly a build or a test run, 10 minutes; what
# changes something or is not known may be a deployment or a migration: half an hour.
TIMES: Final[dict[Class, int]] = {"read_only": 1, "idempotent": 5, "mutation": 15, "unknown": 15}
STALLED = 20.0  # seconds without a turn of a loop that turns ten times a second

# What a phase waits for.
_WAITS: Final[dict[Phase, Late]] = {
    **{phase: "model" for phase in PHASES if is_idle(phase)},
    "awaiting_approval": "approval",
    "starting": "start",
    "awaiting_user": "exit",
}


class WatchdogLimits(msgspec.Struct, frozen=True):
    """After how many seconds something takes long; 0: never. `hang`: the agent is given up. `stuck`: it does not begin
    or end; for where a person sits before it this says nothing."""

    idle: float = 90.0
    approval: float = 300.0
    tool: float = 120.0
    hang: float = 0.0
    stuck: float = 0.0


def watched_phase(phase: Phase, turned: bool) -> Phase:
    """The phase to watch. `turned`: a turn has begun; until then the first one is still owed, though the session has
    begun."""
    return "starting" if phase == "awaiting_user" and not turned else phase


class Watchdog:
    """`tick` is called by one thread, `rearm` by any."""

    def __init__(self, bounds: WatchdogLimits) -> None:
        self._bounds = bounds
        self._armed = 0
        self._at: tuple[Phase, int] | None = None
        self._looked: float | None = None
        self._waited = 0.0
        self._due = self._hang = math.inf
        self._told = False
        self._ran: dict[int, float] = {}  # seconds, by call
        self._long: set[int] = set()  # calls that were reported
        self.late: tuple[TakesLong, ...] = ()
        """What was reported and still holds, with the seconds of the newest look."""

    def rearm(self) -> None:
        """Count anew from the next look on. Two threads at once may count as one: it only has to differ."""
        self._armed += 1

    def tick(
        self, awake: float, phase: Phase, what: str, running: Sequence[RunningCall], fed: bool = False
    ) -> list[TakesLong | HungUp]:
        """What takes long since the look before: each is reported once until it is over, a question again and again.
        `awake`: Clock.awake(); `what`: the tool that `phase` is about, which in a wait for the model is the last;
        `fed`: a program may have another turn's words for the agent, so that it need neither begin one nor end."""
        passed = 0.0 if self._looked is None else awake - self._looked
        self._looked = awake
        if not 0 <= passed <= LATE:
            passed = 0.0
        if (phase, self._armed) != self._at or (fed and _WAITS.get(phase) in ("start", "exit")):
            self._arm(phase)
        else:
            self._waited += passed
        found = [*self._waiting(phase, what), *self._tools(phase, passed, running)]
        late = [self._wait(phase, what)] if self._told else []
        if phase == "executing_tools":
            late += [TakesLong("tool", self._ran[r.call], r.tool) for r in running if r.call in self._long]
        self.late = tuple(late)
        return found

    def _arm(self, phase: Phase) -> None:
        self._at = (phase, self._armed)
        self._waited, self._told = 0.0, False
        bounds, waits = self._bounds, _WAITS.get(phase)
        due = hang = 0.0
        if waits == "model":
            due, hang = bounds.idle, bounds.hang
        elif waits == "approval":
            due = bounds.approval
        elif waits is not None:
            due, hang = bounds.stuck, max(bounds.stuck, bounds.hang) if bounds.stuck and bounds.hang else 0.0
        self._due, self._hang = due or math.inf, hang or math.inf

    def _waiting(self, phase: Phase, what: str) -> list[TakesLong | HungUp]:
        found: list[TakesLong | HungUp] = []
        if self._waited >= self._due:
            self._told = True
            found.append(self._wait(phase, what))
            asks = phase == "awaiting_approval"
            self._due = min(self._waited * AGAIN, self._waited + AT_MOST) if asks else math.inf
        if self._waited >= self._hang:
            self._hang = math.inf
            found.append(HungUp(self._waited, _WAITS[phase]))
        return found

    def _tools(self, phase: Phase, passed: float, running: Sequence[RunningCall]) -> list[TakesLong]:
        """A call counts only while tools are executed: what stands in another phase waits for a person or has been
        refused by one, and its end is still to come."""
        self._ran = {r.call: self._ran.get(r.call, -passed) for r in running}  # one that is new begins now
        self._long &= self._ran.keys()
        found: list[TakesLong] = []
        if phase == "executing_tools":
            for r in running:
                self._ran[r.call] += passed
                if r.call not in self._long and self._ran[r.call] >= (self._bounds.tool * TIMES[r.cls] or math.inf):
                    self._long.add(r.call)
                    found.append(TakesLong("tool", self._ran[r.call], r.tool))
        return found

    def _wait(self, phase: Phase, what: str) -> TakesLong:
        waits = _WAITS[phase]
        return TakesLong(waits, self._waited, what if waits == "approval" else "")


class Liveness:
    """Beaten by the main loop while it waits for the agent. Times are awake seconds (Clock.awake)."""

    def __init__(self) -> None:
        self._last: float | None = None

    def beat(self, now: float) -> None:
        self._last = now

    def rest(self) -> None:
        """The loop is left; what follows has limits of its own."""
        self._last = None

    def stalled(self, now: float) -> bool:
        last = self._last
        return last is not None and now - last > STALLED
