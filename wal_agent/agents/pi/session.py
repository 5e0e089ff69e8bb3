"""pi's session: its one file, the tree of entries in it, and what appended lines report.

pi finds a session by the id in the first line of a `.jsonl` of the folder that belongs to the workspace. Links are not
followed. After the head the entries form a tree by `parentId`; the last entry is where pi continues. A line that is not
touched keeps its bytes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec

from wal_agent.agents.base import Compacted, Env, SeenCall, SessionFile
from wal_agent.agents.pi.hooks import compacted
from wal_agent.agents.program import read_object
from wal_agent.agents.session_files import (
    EPOCH,
    FileLines,
    Json,
    LineRecord,
    as_object,
    as_objects,
    as_text,
    decode_json,
    encode_json,
    largest_file,
    read_start,
    records,
    walk_files,
)
from wal_agent.paths import user_home
from wal_agent.safefs import Buffer, Pieces

MAIN = "session.jsonl"
_SESSION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_HEAD = 1 << 16  # bytes of a first line

VERSION = 3
_NAMED = "wal-agent-tool"  # in a result's details: the name that hooks/pi.ts gives a tool that replaces pi's own


def is_id(session: str) -> bool:
    """Return whether pi takes it as the id of a session, and it fits into the name of a file."""
    return _SESSION.fullmatch(session) is not None


def agent_dir(env: Env) -> Path:
    """Return pi's folder, by its own rule."""
    chosen = env.get("PI_CODING_AGENT_DIR")
    return expand_path(chosen, env) if chosen else pi_home(env) / ".pi" / "agent"


def pi_home(env: Env) -> Path:
    return user_home(env)


def expand_path(path: str, env: Env) -> Path:
    return pi_home(env) / path[2:] if path == "~" or path.startswith("~/") else Path(path)


def folder(env: Env) -> Path:
    return own_folder(env) or agent_dir(env) / "sessions"


def own_folder(env: Env) -> Path | None:
    """Return the folder that the user chose for all sessions of all workspaces."""
    chosen = env.get("PI_CODING_AGENT_SESSION_DIR") or read_settings(agent_dir(env) / "settings.json").get("sessionDir")
    return expand_path(chosen, env) if isinstance(chosen, str) and chosen else None


def read_settings(path: Path) -> dict[str, object]:
    return read_object(path) or {}


def workspace_sessions(workspace: Path, env: Env) -> Path:
    """Return the folder of the workspace's sessions."""
    slug = re.sub(r"[/\\:]", "-", re.sub(r"^[/\\]", "", str(workspace)))
    return own_folder(env) or folder(env) / f"--{slug}--"


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    main = largest_file(existing_files(session, workspace, env))
    return [SessionFile(MAIN, main)] if main is not None else []


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not is_id(session):
        raise ValueError(f"{session!r} is no session id")
    if name != MAIN:
        raise ValueError(f"{name!r} is no file of a pi session")
    return workspace_sessions(workspace, env) / f"1970-01-01T00-00-00-000Z_{session}.jsonl"


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    if not is_id(session):
        return []
    inside = [p for p in walk_files(workspace_sessions(workspace, env), deep=1) if p.name.endswith(".jsonl")]
    named = [p for p in inside if p.name.endswith(f"_{session}.jsonl")]  # as pi names them: others need not be opened
    return sorted(p for p in named or inside if read_head(p).get("id") == session)


def resumable(session: str, workspace: Path, env: Env) -> bool:
    return bool(existing_files(session, workspace, env))


def read_head(path: Path) -> dict[str, object]:
    """Return the first line of a regular file; empty when it is no session's."""
    try:
        value = decode_json(read_start(path, _HEAD, line=True))
    except ValueError:
        return {}
    return value if isinstance(value, dict) and value.get("type") == "session" else {}


class Entry(LineRecord):
    """One entry and its line."""

    __slots__ = ()

    @property
    def id(self) -> str:
        return as_text(self.value.get("id"))

    @property
    def parent(self) -> str | None:
        found = self.value.get("parentId")
        return found if isinstance(found, str) else None

    @property
    def message(self) -> Json:
        """Empty when it is none."""
        return as_object(self.value.get("message")) if self.value.get("type") == "message" else {}

    @property
    def role(self) -> str:
        return as_text(self.message.get("role"))

    @property
    def calls(self) -> list[Json]:
        """The calls of an answer that pi continues: the model does not get one that broke off again."""
        if self.role != "assistant" or self.message.get("stopReason") in ("error", "aborted"):
            return []
        blocks = as_objects(self.message.get("content"))
        calls = [b for b in blocks if b.get("type") == "toolCall" and as_text(b.get("id"))]
        return list({call["id"]: call for call in calls}.values())

    def hang_on(self, parent: str | None) -> None:
        self.change(parentId=parent)


class Tree(msgspec.Struct):
    head: Json = msgspec.field(default_factory=dict)
    entries: list[Entry] = msgspec.field(default_factory=list)
    junk: int = 0  # lines that are no JSON objects
    headed: bool = False  # the first line is the session's head
    orphans: int = 0  # entries whose parent was lost: they hang on the one before them

    @property
    def ids(self) -> set[str]:
        return {entry.id for entry in self.entries}

    @property
    def time(self) -> str:
        """The time of the last entry that has one."""
        times = (t for e in reversed(self.entries) if isinstance(t := e.value.get("timestamp"), str))
        return next(times, None) or as_text(self.head.get("timestamp")) or EPOCH


def load_tree(data: Buffer) -> Tree:
    """Parse the file. A pi before 1.0 has written the head and all entries once more where the file held no answer of
    the model's yet."""
    tree, size = Tree(), 0
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
            size = entry.shelve(size)
    return tree


def _same(one: Entry, other: Entry) -> bool:
    return {**one.value, "parentId": None} == {**other.value, "parentId": None}


def _hang(tree: Tree, entry: Entry, known: dict[str, Entry]) -> None:
    """Attach an entry whose parent is lost to the one before it: else pi would forget everything before it."""
    if entry.id and entry.parent is not None and entry.parent not in known:
        before = next((e.id for e in reversed(tree.entries) if e.id), None)
        entry.hang_on(before)
        tree.orphans += 1


def mend_head(tree: Tree, session: str, workspace: Path) -> None:
    """Complete the head: pi empties a file whose first line is none, and changes to the folder that it names."""
    ours: Json = {"id": session, "cwd": str(workspace)}
    version = {} if tree.headed else {"version": VERSION}  # pi brings a file of an older one, or of none, up to date
    wanted = {"type": "session", **version, **ours, "timestamp": EPOCH}
    tree.head |= {name: value for name, value in wanted.items() if name not in tree.head} | ours


def dump_tree(tree: Tree) -> bytes:
    return b"".join(tree_pieces(tree))


def tree_pieces(tree: Tree) -> Pieces:
    """What `dump_tree` joins."""
    return FileLines([encode_json(tree.head), *tree.entries])


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Return the results. One names its call by the hooks' id; the input is in the answer, which may be older."""
    asked: dict[str, bytes] = {}
    found: list[SeenCall] = []
    for record, _ in records(appended):
        entry = Entry(record or {})
        for call in entry.calls:
            asked[call["id"]] = encode_json(call.get("arguments", {}))
        if entry.role == "toolResult":
            message = entry.message
            id, tool = str(message.get("toolCallId", "")), str(message.get("toolName", ""))
            tool = str(as_object(message.get("details")).get(_NAMED, tool))
            status: Literal["done", "failed"] = "failed" if message.get("isError") else "done"
            found.append(SeenCall(tool, asked.get(id, b"{}"), status, entry.id, id))
    return found


def compactions(appended: bytes) -> list[Compacted]:
    """Read pi's own entries; what a compaction keeps word for word is only named there."""
    found: list[Compacted] = []
    if b'"compaction"' not in appended:
        return found
    for record, _ in records(appended):
        if record is not None and record.get("type") == "compaction" and record.get("fromHook") is not True:
            tokens = record.get("tokensBefore")
            before = tokens if isinstance(tokens, int) else 0
            found.append(compacted(as_text(record.get("id")), as_text(record.get("summary")), before))
    return found


def proves_turn(appended: bytes) -> bool:
    """The extension gets the session's start before its first turn, and each turn before anything of it is written."""
    return any(Entry(record or {}).role in ("user", "assistant") for record, _ in records(appended))
