"""Qwen Code's session file: records that are a linked list by `parentUuid`. What the last one leads back to is the
conversation; a record whose parent is missing silently ends it there.

A line that is not touched keeps its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wal_agent.agents.session_files import Json, Line, decode_json, encode_json, records


@dataclass(slots=True)
class Record:
    """One record and the line that tells it. After a change, `line` is dropped and the value is written anew."""

    value: Json
    line: Line | None = None

    @property
    def uuid(self) -> str:
        return str(self.value["uuid"])

    @property
    def kind(self) -> str:
        return str(self.value.get("type", ""))

    def parts(self) -> list[Json]:
        message = self.value.get("message")
        found = message.get("parts") if isinstance(message, dict) else None
        return [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []

    def inside(self, key: str) -> list[Json]:
        """The objects under this key in its parts: `functionCall` or `functionResponse`."""
        return [part[key] for part in self.parts() if isinstance(part.get(key), dict)]

    def change(self, **news: Any) -> None:
        if any(self.value.get(key, self) != value for key, value in news.items()):
            self.value = {**self.value, **news}
            self.line = None


@dataclass(slots=True)
class Chat:
    records: list[Record] = field(default_factory=list)
    junk: int = 0  # lines that are no record

    def live(self) -> list[Record]:
        """The conversation: what the last record leads back to, oldest first."""
        known: dict[str, Record] = {}
        for record in self.records:
            known.setdefault(record.uuid, record)
        chain: dict[str, Record] = {}
        at = self.records[-1] if self.records else None
        while at is not None and at.uuid not in chain:
            chain[at.uuid] = at
            at = known.get(str(at.value.get("parentUuid")))
        return list(reversed(chain.values()))

    def last(self, key: str) -> str:
        """What the newest record with a text under this key says."""
        found = (record.value.get(key) for record in reversed(self.records))
        return next((text for text in found if isinstance(text, str)), "")


def load_chat(data: bytes) -> Chat:
    chat = Chat()
    for record, line in records(data):
        found = Record(record, line) if record is not None else _glued(line)
        if found is not None and isinstance(found.value.get("uuid"), str):
            chat.records.append(found)
        chat.junk += record is None or "uuid" not in record
    return chat


def _glued(line: Line) -> Record | None:
    """A whole record that was appended to the torn one before it."""
    text = bytes(line)
    at = text.rfind(b'{"uuid":')
    try:
        value = decode_json(text[at:]) if at > 0 else None
    except ValueError:
        return None
    return Record(value) if isinstance(value, dict) else None


def dump_chat(chat: Chat) -> bytes:
    """Loading it gives the same records again."""
    return b"".join(
        line for r in chat.records for line in (r.line if r.line is not None else encode_json(r.value), b"\n")
    )
