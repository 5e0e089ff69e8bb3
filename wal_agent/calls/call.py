"""Hold a tool call as it is read: once, at its hook or for a recovery, then handed to all that ask something of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property

import msgspec

from wal_agent.calls.shell.reader import parse
from wal_agent.calls.shell.syntax import Script


class ReadCall(msgspec.Struct, frozen=True, dict=True):
    """`input`: the agent's JSON object; it is decoded when that is asked for first, and each shell text in it is parsed
    once. `folder`: where the agent says that the call runs, "" where it says nothing."""

    tool: str
    input: bytes
    folder: str = ""

    @cached_property
    def fields(self) -> dict[str, object] | None:
        """The input as an object; None where it is not JSON, no object, or names a key twice."""
        return read_input(self.input)

    @property
    def known(self) -> Mapping[str, object]:
        """`fields`; none where they cannot be read."""
        return self.fields or {}

    @cached_property
    def _scripts(self) -> dict[str, Script | None]:
        return {}

    def parse(self, text: str) -> Script | None:
        """The commands of a shell text of this call, or of one that its commands run; None as `reader.parse`."""
        if text not in self._scripts:
            self._scripts[text] = parse(text)
        return self._scripts[text]


def read_input(input: bytes) -> dict[str, object] | None:
    """A call's input as an object with string keys; None when it is not JSON, not an object, or names a key twice."""
    try:
        fields = json.loads(input, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found
