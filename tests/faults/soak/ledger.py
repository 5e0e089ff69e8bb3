"""What the store holds of a soaked job, checked against the world that its agent changed. Reads around the storm."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from wal_agent.bucket.base import Bucket
from wal_agent.budget import FOREIGN
from wal_agent.records import AnyRecord, End, Intent, Opening
from wal_agent.wal import codec as packing
from wal_agent.wal import reader
from wal_agent.wal.codec import Segment
from wal_agent.wal.keys import Keys
from wal_agent.wal.state import State

_COMMAND = re.compile(r"append (\S+) as (\S+)")


class Wrong(AssertionError):
    """An invariant does not hold; begins with its name."""


@dataclass(frozen=True)
class Effect:
    """A line of the world: what was done, and which attempt at it this was."""

    uid: str
    attempt: str


@dataclass(frozen=True)
class Call:
    """A changing call as the log has it. `at`: its segment."""

    number: int
    effect: Effect
    at: int


@dataclass
class Ledger:
    """`look` after every cycle; `audit` at the end."""

    bucket: Bucket
    keys: Keys
    segments: dict[str, bytes] = field(default_factory=dict)  # key -> bytes, of every one that was ever seen

    def look(self, world: list[Effect]) -> None:
        """I1: what happened in the world is in the log by now, whoever is dead and whatever is still under way."""
        for entry in self.bucket.list(self.keys.log):
            if entry.key not in self.segments:
                self.segments[entry.key] = self.bucket.get(entry.key).data
        intended = {call.effect for call in self.calls()}
        if missing := [effect for effect in world if effect not in intended]:
            raise Wrong(f"I1: {missing} happened, and the log has no intent of it")

    def audit(self, world: list[Effect]) -> None:
        self.look(world)
        listed = {entry.key for entry in self.bucket.list(self.keys.log)}
        changed = [k for k, data in self.segments.items() if k not in listed or self.bucket.get(k).data != data]
        if changed:
            raise Wrong(f"I3: {changed} are gone or have changed")
        state = self.replayed()
        self._epochs()
        self._ends(state, world)
        self._repeats(world)

    def replayed(self) -> State:
        found = reader.replay(self.bucket, self.keys)
        if found.damage is not None:
            raise Wrong(f"I3: {found.damage.why}")
        return found.state

    def open(self) -> list[Call]:
        numbers = {one.intent.call for one in self.replayed().open}
        return [call for call in self.calls() if call.number in numbers]

    # ---- the log

    def log(self) -> list[Segment]:
        found = []
        for key in sorted(self.segments):
            raw = packing.decompress(self.segments[key], FOREIGN.segment)
            found.append(msgspec.msgpack.decode(raw, type=Segment))
        return found

    def records(self) -> list[AnyRecord]:
        return [record for one in self.log() for record in one.records]

    def calls(self) -> list[Call]:
        made = []
        for one in self.log():
            for record in one.records:
                if isinstance(record, Intent) and record.tool == "run_shell_command":
                    assert record.input.data is not None
                    command = _COMMAND.fullmatch(json.loads(record.input.data)["command"])
                    assert command is not None
                    made.append(Call(record.call, Effect(command[1], command[2]), one.seq))
        return made

    def _epochs(self) -> None:
        epoch = 0
        for one in self.log():
            opened = [r.epoch for r in one.records if isinstance(r, Opening)]
            if one.epoch < epoch or opened != [one.epoch] * (one.epoch > epoch):
                raise Wrong(f"I2: segment {one.seq} of epoch {one.epoch} follows epoch {epoch}")
            epoch = one.epoch

    def _ends(self, state: State, world: list[Effect]) -> None:
        records = self.records()
        ends = {r.call: r for r in records if isinstance(r, End)}
        ended = [r.call for r in records if isinstance(r, End)]
        unsettled = [one.intent.call for one in state.open]
        if sorted([*ended, *unsettled]) != sorted(r.call for r in records if isinstance(r, Intent)):
            twice = [call for call, n in Counter([*ended, *unsettled]).items() if n > 1]
            raise Wrong(f"I8: calls without an end that are not open, or with two ({twice})")
        for call in self.calls():
            end = ends.get(call.number)
            how = end.how if end else "open"
            if end and end.by == "recovery" and end.finding == "unknown":
                raise Wrong(f"I8: call #{call.number} was settled, and nobody knows what became of it")
            if how == "refused" and call.effect in world:
                raise Wrong(f"I5: call #{call.number} was denied, and {call.effect} happened")
            if how in ("done", "failed") and call.effect not in world:
                raise Wrong(f"I8: call #{call.number} is {how}, and {call.effect} never happened")

    def _repeats(self, world: list[Effect]) -> None:
        """Nothing is done twice, but for what was in flight when a run was lost, and told so to the next."""
        attempts = Counter(effect.attempt for effect in world)
        if twice := [attempt for attempt, n in attempts.items() if n > 1]:
            raise Wrong(f"I1: attempts {twice} took effect twice")
        open: set[int] = set()
        known: set[str] = set()
        told: set[str] = set()  # what was in flight at the last opening
        calls = {call.number: call for call in self.calls()}
        for one in self.log():
            for record in one.records:
                if isinstance(record, Opening):
                    told = {calls[number].effect.uid for number in open & calls.keys()}
                elif isinstance(record, End):
                    open.discard(record.call)
                elif isinstance(record, Intent):
                    open.add(record.call)
                    if record.call in calls and (uid := calls[record.call].effect.uid) in known - told:
                        raise Wrong(f"I8: call #{record.call} does {uid} again, which was not in flight")
                    known |= {calls[record.call].effect.uid} if record.call in calls else set()
