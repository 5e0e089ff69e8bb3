"""Find crashes in the log: which ends count, where each was, and whether it repeats. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, Literal

from wal_agent.records import ExitClass, Intent, Opening, Payload
from wal_agent.shell.quote import inline, show_input
from wal_agent.wal.state import OpenCall, State

CRASH_CLASSES: Final[frozenset[ExitClass]] = frozenset(
    {"killed", "out_of_memory", "heap", "hung", "incomplete", "context"}
)
"""Ends that nobody wanted."""
STUCK_WINDOW: Final = 3600.0  # seconds; later deaths in one long call may be the machines' fault

_WORDS: Final[dict[str, str]] = {
    "killed": "killed",
    "out_of_memory": "killed: out of memory",
    "heap": "JavaScript heap out of memory",
    "hung": "the model did not answer",
    "incomplete": "ended in the middle of a turn",
    "context": "the conversation is too long for the model",
    "": "cut off with its machine or wal-agent",
}


@dataclass(frozen=True, slots=True)
class Crash:
    """`cls` and `place` are "" where the whole run was cut off, and nothing could log them."""

    time: float
    cls: ExitClass | Literal[""] = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class Stuck:
    """It died twice in a row in the same way at the same place: in `call`, or between two calls."""

    cls: ExitClass | Literal[""]
    call: OpenCall | None


def recent(state: State, opening: Opening, window: float) -> tuple[Crash, ...]:
    """Return the crashes of the last `window` seconds, oldest first; `opening` may have found one. Hosts' clocks
    differ, but what is far in the future does not count."""
    openings = (*(o.opening for o in state.openings), opening)
    found = [Crash(o.time) for o in openings if o.cause == "dead"]
    found += [Crash(e.time, e.cls, e.place) for e in state.ends if e.cls in CRASH_CLASSES]
    return tuple(sorted((c for c in found if abs(c.time - opening.time) < window), key=lambda c: c.time))


def find_stuck(state: State, home: Opening | None, opening: Opening) -> Stuck | None:
    """Find where the last two runs died alike. A call that a person has settled since does not count."""
    if state.ended is not None:
        return _ended_alike(state)
    return _cut_off_alike(state, home, opening) if home is not None else None


def _ended_alike(state: State) -> Stuck | None:
    if len(state.ends) < 2:
        return None
    before, last = state.ends[-2:]
    if last.cls not in CRASH_CLASSES or not last.place or (last.cls, last.place) != (before.cls, before.place):
        return None
    kind, _, key = last.place.partition(" ")[2].partition(" ")
    if kind != "call":
        return Stuck(last.cls, None)
    mine = (o for o in reversed(state.open) if o.epoch == state.home)
    return next((Stuck(last.cls, o) for o in mine if call_key(o.intent) == key), None)


def _cut_off_alike(state: State, home: Opening, opening: Opening) -> Stuck | None:
    """Whether two runs in a row were cut off as a whole, each in an equal call: the first one's call is still open,
    since the turn that reported it was never completed."""
    if not (home.cause == opening.cause == "dead") or opening.time - home.time > STUCK_WINDOW:
        return None
    mine = [o for o in state.open if o.epoch == home.epoch]
    earlier = {call_key(o.intent) for o in state.open if o.epoch < home.epoch}
    return Stuck("", mine[-1]) if mine and call_key(mine[-1].intent) in earlier else None


def crash_place(state: State, epoch: int) -> str:
    """Return a key that is equal for crashes at the same place: the session, and the newest open call of `epoch` by
    tool and input; else the number of calls so far."""
    mine = [o.intent for o in state.open if o.epoch == epoch]
    return f"{state.session} call {call_key(mine[-1])}" if mine else f"{state.session} after {state.calls}"


def call_key(call: Intent) -> str:
    """Return a key that is equal for calls of one tool with the same input, in any run."""
    return hashlib.sha256(f"{call.tool}\0{_content(call.input)}".encode("utf-8", "replace")).hexdigest()[:16]


def _content(input: Payload) -> str:
    if input.data is not None:
        return hashlib.sha256(input.data).hexdigest()
    return (input.blob or "").partition("-")[0]  # without the epoch, see wal/keys.py


# ---- words


def describe_class(cls: str) -> str:
    return _WORDS.get(cls, cls)


def describe_classes(found: tuple[Crash, ...]) -> str:
    """ "killed: out of memory", or each way once, most frequent first."""
    ways = [c.cls for c in found]
    return "; ".join(describe_class(cls) for cls in sorted(set(ways), key=lambda cls: (-ways.count(cls), cls)))


def describe_call(call: Intent) -> str:
    """ "run_shell_command `make e2e`"; foreign text, made safe."""
    if call.input.data is None:
        return call.tool
    return f"{call.tool} {inline(show_input(call.tool, call.input.data), 80)}"


def describe_place(state: State, found: tuple[Crash, ...]) -> str:
    """ " all in ..." where that is so, else the newest call that is known, else ""."""
    places = {c.place for c in found}
    for o in reversed(state.open) if len(places) == 1 else ():
        if all(p.endswith(f" call {call_key(o.intent)}") for p in places):
            return f", all in {describe_call(o.intent)}"
    if state.open:
        return f", the last one in {describe_call(state.open[-1].intent)}"
    return f", the last tool was {state.last_tool}" if state.last_tool else ""
