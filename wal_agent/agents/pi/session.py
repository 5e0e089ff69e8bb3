"""pi's session file: a head, then entries that form a tree by `parentId`. The last entry is where it goes on.

A line that is not touched keeps its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wal_agent.agents.session_files import Json, Line, encode_json, records

VERSION = 3
EPOCH = "1970-01-01T00:00:00.000Z"


@dataclass(slots=True)
class Entry:
    """After a change, `line` is dropped and the value is written anew."""

    value: Json
    line: Line | None = None

    @property
    def id(self) -> str:
        return _text(self.value.get("id"))

    @property
    def parent(self) -> str | None:
        found = self.value.get("parentId")
        return found if isinstance(found, str) else None

    @property
    def message(self) -> Json:
        """Empty when it is none."""
        found = self.value.get("message") if self.value.get("type") == "message" else None
        return found if isinstance(found, dict) else {}

    @property
    def role(self) -> str:
        return _text(self.message.get("role"))

    @property
    def calls(self) -> list[Json]:
        """The calls of an answer that pi goes on with: one that broke off is not told to the model again."""
        content = self.message.get("content") if self.role == "assistant" else None
        if not isinstance(content, list) or self.message.get("stopReason") in ("error", "aborted"):
            return []
        calls = [b for b in content if isinstance(b, dict) and b.get("type") == "toolCall" and _text(b.get("id"))]
        return list({call["id"]: call for call in calls}.values())

    def hang_on(self, parent: str | None) -> None:
        self.value = {**self.value, "parentId": parent}
        self.line = None


@dataclass(slots=True)
class Tree:
    head: Json = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    junk: int = 0  # lines that are no JSON objects
    headed: bool = False  # the first line is the session's head
    orphans: int = 0  # entries whose parent was lost: they hang on the one before them

    @property
    def ids(self) -> set[str]:
        return {entry.id for entry in self.entries}

    @property
    def time(self) -> str:
        """Of the last entry that tells one."""
        told = (t for e in reversed(self.entries) if isinstance(t := e.value.get("timestamp"), str))
        return next(told, None) or _text(self.head.get("timestamp")) or EPOCH


def load_tree(data: bytes) -> Tree:
    """pi writes the head, and all that stood in the file, once more where it held no answer of the model's yet."""
    tree = Tree()
    known: dict[str, Entry] = {}
    for n, (record, line) in enumerate(records(data)):
        if record is None:
            tree.junk += 1
        elif record.get("type") == "session":
            tree.head = tree.head or record
            tree.headed = tree.headed or (n == 0 and isinstance(record.get("id"), str))
        else:
            entry = Entry(record, line)
            if entry.id in known and _same(entry, known[entry.id]):
                continue
            _hang(tree, entry, known)
            known |= {entry.id: entry} if entry.id else {}
            tree.entries.append(entry)
    return tree


def _same(one: Entry, other: Entry) -> bool:
    return {**one.value, "parentId": None} == {**other.value, "parentId": None}


def _hang(tree: Tree, entry: Entry, known: dict[str, Entry]) -> None:
    """Behind a parent that is lost, pi would forget all that was said before."""
    if entry.id and entry.parent is not None and entry.parent not in known:
        before = next((e.id for e in reversed(tree.entries) if e.id), None)
        entry.hang_on(before)
        tree.orphans += 1


def mend_head(tree: Tree, session: str, workspace: Path) -> None:
    """pi empties a file whose first line is no head, and goes to the folder that it names."""
    ours: Json = {"id": session, "cwd": str(workspace)}
    version = {} if tree.headed else {"version": VERSION}  # pi brings a file of an older one, or of none, up to date
    wanted = {"type": "session", **version, **ours, "timestamp": EPOCH}
    tree.head |= {name: value for name, value in wanted.items() if name not in tree.head} | ours


def dump_tree(tree: Tree) -> bytes:
    lines: list[Line] = [encode_json(tree.head)]
    lines += [e.line if e.line is not None else encode_json(e.value) for e in tree.entries]
    return b"\n".join(lines) + b"\n"


def message_text(entry: Entry) -> str:
    """All text of a message."""
    content = entry.message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "\n".join(_text(b.get("text")) for b in blocks if isinstance(b, dict))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
