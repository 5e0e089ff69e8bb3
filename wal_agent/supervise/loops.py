"""Notice a model that makes the same call with the same result again and again, in a run without a person. Pure, and
bounded: it keeps two digests and a number.

A call that waits (`WAITS`) polls for something and does not count, nor does one beside work in the background.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from wal_agent.calls.call import ReadCall

WAITS = 5.0  # seconds
_VARIES = re.compile(rb"Process Group PGID: \d+|<shellId: [^<> ]*")  # in results of equal calls


class Loops:
    """Not thread-safe: the gate holds its lock."""

    def __init__(self, limit: int) -> None:
        """`limit`: after so many equal calls in a row the model is told; after twice as many the run ends."""
        self._limit = limit
        self._call = self._result = b""
        self._told = False
        self.times = 0  # in a row

    def begin(self, call: ReadCall) -> Literal["", "tell", "end"]:
        """What follows from a call that is about to begin."""
        digest = _digest_of_call(call)
        if digest != self._call:
            self.clear()
            self._call = digest
        if self.times >= 2 * self._limit:
            return "end"
        if self.times < self._limit or self._told:
            return ""
        self._told = True
        return "tell"

    def end(self, call: ReadCall, result: bytes, seconds: float) -> None:
        """A call has ended. `seconds`: how long it took."""
        if seconds >= WAITS or _digest_of_call(call) != self._call:
            return
        found = hashlib.sha256(_VARIES.sub(b"", result)).digest()
        if found != self._result:
            self._result, self._told, self.times = found, False, 0
        self.times += 1

    def clear(self) -> None:
        """Something else was done, or the agent was prompted."""
        self._call = self._result = b""
        self._told, self.times = False, 0


def _digest_of_call(call: ReadCall) -> bytes:
    """Words for people and limits of time make no other call."""
    from wal_agent.calls.reading import TALK  # late: what only hooks need is imported beside the agent's own start

    fields, said = call.fields, call.input
    if fields is not None:
        said = msgspec.json.encode({k: v for k, v in sorted(fields.items()) if k not in TALK})
    return hashlib.sha256(call.tool.encode("utf-8", "replace") + b"\0" + said).digest()
