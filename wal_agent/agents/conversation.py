"""What of a session travels: an allow-list of its records and their fields, which each agent names.

A log says what whoever writes the bucket likes, and an agent's session file may hold more than words: permissions,
mode, model, instructions, tools, hooks, folders. Those are the person's, on this machine. So of what this machine has
not itself, only the conversation is restored (SECURITY.md). A name that is not known here is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from wal_agent.agents.session_files import Json, as_object, as_text, decode_json, encode_json, records
from wal_agent.safefs import Buffer, Pieces

Fields = Mapping[str, "Fields"]
"""The fields that are kept; empty: the whole value, whatever it is."""
Keep = Callable[[Json], Json | None]
"""Return what of a record is conversation; None for nothing."""

_MAX_NAMES = 1000  # of what was left out


class Records(msgspec.Struct, frozen=True):
    """A file of records: JSON lines, or one JSON object. `id` and `parent`: the fields by which a record names itself
    and the one before it, which follow where a record is left out."""

    keep: Keep
    id: str = ""
    parent: str = ""


Travels = Records | Literal["text", "nothing"]
"""What of a file is conversation. "text": all of it, since no program takes settings from it."""


def fields(*names: str) -> Fields:
    """Make `Fields` from words such as "uuid message.content"."""
    made: dict[str, Any] = {}
    for name in " ".join(names).split():
        at = made
        for part in name.split("."):
            at = at.setdefault(part, {})
    return made


def keep_fields(value: Any, kept: Fields) -> Any:
    """Return a value with only those fields, in its own order; of a list, each value so."""
    if not kept:
        return value
    if isinstance(value, list):
        return [keep_fields(each, kept) for each in value]
    if isinstance(value, dict):
        return {name: keep_fields(each, kept[name]) for name, each in value.items() if name in kept}
    return value


def kind_of(record: Json) -> str:
    """Name a record as its agent does, for a person."""
    inside = next((v for name in ("payload", "attachment") if (v := as_object(record.get(name)))), {})
    words = (as_text(record.get("type")), as_text(record.get("subtype")), as_text(inside.get("type")))
    return "/".join(word for word in words if word) or "record"


class LeftOut(msgspec.Struct):
    """The names of what was not restored, in the order in which they came."""

    names: dict[str, None] = msgspec.field(default_factory=dict)

    def note(self, record: Json, kept: Json | None) -> None:
        found = [kind_of(record)] if kept is None else [f"{kind_of(record)}.{name}" for name in _missing(record, kept)]
        if len(self.names) < _MAX_NAMES:
            self.names.update(dict.fromkeys(found))


def _missing(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name not in after:
                yield name
            elif value is not after[name]:
                yield from (f"{name}.{inner}" for inner in _missing(value, after[name]))
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield "[]"
        for one, other in zip(before, after, strict=False):
            yield from _missing(one, other)


def carry(travels: Travels, name: str, data: Buffer, own: int, left: LeftOut) -> Pieces:
    """Return what of a file's `data` is restored. `own`: how many bytes of its beginning this machine has itself; they
    stay as they are, up to their last whole line. `left` gets what is left out. What is read is written anew, so that
    it has one meaning for every reader."""
    if travels == "text" or own >= len(data):
        return [data]
    if travels == "nothing":
        left.names[name.partition("/")[0]] = None
        return []
    if name.endswith(".jsonl"):
        return _lines(travels, data, data.rfind(b"\n", 0, own) + 1, left)
    try:
        value = decode_json(bytes(data))
    except ValueError:
        value = None
    kept = travels.keep(value) if isinstance(value, dict) else None
    left.note(as_object(value), kept)
    return [] if kept is None else [encode_json(kept)]


def _lines(kept: Records, data: Buffer, begin: int, left: LeftOut) -> Iterator[bytes | memoryview]:
    gone: dict[str, Any] = {}  # the parent of each record that was left out
    yield memoryview(data)[:begin]
    for record, line in records(data[begin:] if begin else data):
        new = None if record is None else kept.keep(record)
        if record is None:
            yield bytes(line)  # damaged: `reconcile` counts it and leaves it out
        else:
            left.note(record, new)
            if new is None:
                gone[as_text(record.get(kept.id))] = _parent(record, kept, gone)
                continue
            if kept.parent in new:
                new[kept.parent] = _parent(new, kept, gone)
            yield encode_json(new)
        yield b"\n"


def _parent(record: Json, kept: Records, gone: Mapping[str, Any]) -> Any:
    parent = record.get(kept.parent)
    return gone.get(parent, parent) if isinstance(parent, str) else parent
