"""pi's session: its one file, the tree of entries in it, and what appended lines report.

pi finds a session by the id in the first line of a `.jsonl` of the folder that belongs to the workspace. Links are not
followed. After the head the entries form a tree by `parentId`; the last entry is where pi continues. A line that is not
touched keeps its bytes.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wal_agent.agents.base import Env, SeenCall, SessionFile
from wal_agent.agents.session_files import Json, Line, decode_json, encode_json, records, walk_files

MAIN = "session.jsonl"
_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_HEAD = 1 << 16  # bytes of a first line
_LIMIT = 1 << 22


def agent_dir(env: Env) -> Path:
    """pi's folder, as it finds it itself."""
    return (
        expand_path(env["PI_CODING_AGENT_DIR"], env)
        if env.get("PI_CODING_AGENT_DIR")
        else pi_home(env) / ".pi" / "agent"
    )


def pi_home(env: Env) -> Path:
    return Path(env.get("HOME") or Path.home())


def expand_path(path: str, env: Env) -> Path:
    return pi_home(env) / path[2:] if path == "~" or path.startswith("~/") else Path(path)


def folder(env: Env) -> Path:
    return own_folder(env) or agent_dir(env) / "sessions"


def own_folder(env: Env) -> Path | None:
    """The folder that the user chose for all sessions of all workspaces."""
    chosen = env.get("PI_CODING_AGENT_SESSION_DIR") or read_settings(agent_dir(env) / "settings.json").get("sessionDir")
    return expand_path(chosen, env) if isinstance(chosen, str) and chosen else None


def read_settings(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as f:
            value = json.loads(f.read(_LIMIT))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def workspace_sessions(workspace: Path, env: Env) -> Path:
    """The folder of the workspace's sessions."""
    slug = re.sub(r"[/\\:]", "-", re.sub(r"^[/\\]", "", str(workspace)))
    return own_folder(env) or folder(env) / f"--{slug}--"


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    found = {path: size for path in existing_files(session, workspace, env) if (size := _size(path)) is not None}
    return [SessionFile(MAIN, max(found, key=found.__getitem__))] if found else []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:  # gone since it was listed
        return None


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    if name != MAIN:
        raise ValueError(f"{name!r} is no file of a pi session")
    return workspace_sessions(workspace, env) / f"1970-01-01T00-00-00-000Z_{session}.jsonl"


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    if not _SESSION.fullmatch(session):
        return []
    inside = [p for p in walk_files(workspace_sessions(workspace, env), deep=1) if p.name.endswith(".jsonl")]
    named = [p for p in inside if p.name.endswith(f"_{session}.jsonl")]  # as pi names them: others need not be opened
    return sorted(p for p in named or inside if read_head(p).get("id") == session)


def resumable(session: str, workspace: Path, env: Env) -> bool:
    return bool(existing_files(session, workspace, env))


def read_head(path: Path) -> dict[str, object]:
    """The first line of a regular file; empty when it is no session's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return {}
    with os.fdopen(fd, "rb") as f:
        line = f.readline(_HEAD) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    try:
        value = decode_json(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.get("type") == "session" else {}


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


_NAMED = "wal-agent-tool"  # in a result's details: what hooks/pi.ts called a tool in the place of one of pi's own


def seen_calls(appended: bytes) -> list[SeenCall]:
    """A result names its call by the id that the hooks told; the input stands in the answer, which may be older."""
    asked: dict[str, bytes] = {}
    found: list[SeenCall] = []
    for record, _ in records(appended):
        entry = Entry(record or {})
        for call in entry.calls:
            asked[call["id"]] = encode_json(call.get("arguments", {}))
        if entry.role == "toolResult":
            told = entry.message
            id, tool = str(told.get("toolCallId", "")), str(told.get("toolName", ""))
            input = asked.get(id, b"{}")
            details = told.get("details")
            tool = str(details.get(_NAMED, tool)) if isinstance(details, dict) else tool
            found.append(SeenCall(tool, input, "failed" if told.get("isError") else "done", entry.id, id))
    return found


def proves_turn(appended: bytes) -> bool:
    """The extension hears of the session before its first turn, and of each turn before anything of it is written."""
    return any(Entry(record or {}).role in ("user", "assistant") for record, _ in records(appended))
