"""A session of OpenCode's database as records, and as the lines of our journal of it.

The journal is only appended to; the last line for an id counts, and `gone` says that its row was deleted. It holds the
session, the sessions of its subagents, their messages and parts (calls are parts), and the list of things to do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from wal_agent.agents.session_files import Json, encode_json, records

Key = tuple[str, str]  # kind, id
KINDS = ("session", "message", "part", "todo")
COLUMNS = {  # of each table, beside the id; `data` and `row` hold the rest
    "message": ("session", "created", "data"),
    "part": ("session", "message", "created", "data"),
    "todo": ("session", "row"),
    "session": ("row",),
}


@dataclass
class Rows:
    """What a journal says. `junk`: lines that are none of ours; `torn`: its end has no line end."""

    found: dict[Key, Json] = field(default_factory=dict)
    junk: int = 0

    def of(self, kind: str) -> list[Json]:
        return [r for (k, _), r in self.found.items() if k == kind]

    def sessions(self, root: str) -> list[Json]:
        """The root first, then children behind their parents."""
        rows = {r["id"]: r for r in self.of("session")}
        children: dict[str, list[Json]] = {}
        for row in rows.values():
            if row["id"] != root and isinstance(parent := row["row"].get("parent_id"), str):
                children.setdefault(parent, []).append(row)
        out = [rows[root]] if root in rows else []
        for one in out:
            out += children.pop(one["id"], ())
        return out

    def messages(self, session: str) -> list[Json]:
        return sorted((r for r in self.of("message") if r["session"] == session), key=row_order)

    def parts(self) -> dict[str, list[Json]]:
        """By message, in order."""
        out: dict[str, list[Json]] = {}
        for part in self.of("part"):
            out.setdefault(part["message"], []).append(part)
        return {message: sorted(parts, key=lambda p: str(p["id"])) for message, parts in out.items()}

    def add(self, record: Json) -> None:
        self.found[record["type"], record["id"]] = record


def row_order(record: Json) -> tuple[float, str]:
    return record["created"], record["id"]


def row_key(record: Json) -> Key | None:
    """None for a line that is not one of ours, in whole."""
    kind, id = record.get("type"), record.get("id")
    if not isinstance(id, str) or not id or not isinstance(kind, str) or kind not in COLUMNS:
        return None
    return (kind, id) if record.get("gone") is True or _sane(kind, record) else None


def _sane(kind: str, record: Json) -> bool:
    for name in COLUMNS[kind]:
        value = record.get(name)
        if name in ("data", "row"):
            if not isinstance(value, dict):
                return False
        elif name == "created":
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
                return False
        elif not isinstance(value, str):
            return False
    state = record["data"].get("state") if kind == "part" else None
    return state is None or isinstance(state, dict)


def load_rows(data: bytes) -> Rows:
    rows = Rows()
    for record, _ in records(data):
        key = row_key(record) if record is not None else None
        if record is None or key is None:
            rows.junk += record is None or record.get("type") != "turn"
        elif record.get("gone") is True:
            rows.found.pop(key, None)
        else:
            rows.found[key] = record
    return rows


def dump_rows(rows: Rows) -> bytes:
    """Each record once, in an order that does not depend on how they were read."""
    todos = sorted(rows.of("todo"), key=lambda r: str(r["id"]))
    sessions = sorted(rows.of("session"), key=lambda r: str(r["id"]))
    messages = sorted(rows.of("message"), key=row_order)
    parts = sorted(rows.of("part"), key=lambda r: (r["message"], r["id"]))
    return journal_lines([*sessions, *messages, *parts, *todos])


def journal_lines(found: Iterable[Json]) -> bytes:
    return b"".join(encode_json(record) + b"\n" for record in found)


def row_digest(record: Json) -> bytes:
    """Of what counts: OpenCode touches a session's time whenever anything happens."""
    row = record.get("row")
    if isinstance(row, dict):
        record = {**record, "row": {k: v for k, v in row.items() if k != "time_updated"}}
    record = {**record, "created": 0}
    try:
        text = msgspec.json.encode(record, order="deterministic")
    except UnicodeEncodeError:  # half a surrogate pair
        text = json.dumps(record, sort_keys=True).encode()
    return hashlib.sha256(text).digest()


def tool_parts(rows: Rows) -> Iterator[Json]:
    """The parts that are calls."""
    return (p for p in rows.of("part") if p["data"].get("type") == "tool" and isinstance(p["data"].get("state"), dict))


def content_text(value: Any) -> str:
    return value if isinstance(value, str) else ""
