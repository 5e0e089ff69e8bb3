"""Gemini's session: its folder, its files, their lines, and what appended lines report.

- Folder: which folder of `~/.gemini/tmp` belongs to a workspace, by Gemini's own rule, so that a restore meets its
  lookup.
- Lines: read as Gemini reads them: they append, replace by id, checkpoint and rewind. Junk lines are passed over, as
  there. A line that is not touched keeps its bytes.
- Names in the log: `session.jsonl`, `tool-outputs/<file>`, `subagents/<file>.jsonl`, `plans/<path>`. No other file of
  `~/.gemini` is ever named, so no credential can be. Links are not followed.

Hazards of the real program that this guards against: each resume leaves a stub of two lines under the same first
eight characters, and the next start of any other session deletes every file with them; a resume in the minute of
the file's name appends the stub to the real file; every start deletes each session file in which no prompt is
stored yet, also one that is in use, whose Gemini then continues in a new file without the head; on a terminal it
submits the prompt while it still loads the session (seen from about a megabyte on), so its first turn waits for that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import Compacted, Env, SeenCall, SessionFile, Status
from wal_agent.agents.session_files import (
    FileLines,
    Json,
    Line,
    LineRecord,
    as_object,
    as_objects,
    as_text,
    decode_json,
    encode_json,
    files_below,
    largest_file,
    name_parts,
    plain_text,
    records,
    walk_files,
)
from wal_agent.paths import user_home
from wal_agent.safefs import Buffer, Pieces, open_plain

_REGISTRY_LIMIT = 1 << 22  # of a registry or a marker that is worth reading
_SLUG = re.compile(r"[a-z0-9-]+")

# Of a file only the first lines are read, whatever its size (I9).
_PIECE = 1 << 16
_LIMIT = 1 << 23

MAIN = "session.jsonl"
_EXTRAS = ("tool-outputs", "subagents", "plans")
_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")

_STATUS: dict[str, Status] = {
    "success": "done",
    "error": "failed",
    "cancelled": "cancelled",
}
# Gemini's own words where a person's No came before the call was even scheduled, and for those queued behind it.
_DENIED = tuple(
    f"[Operation Cancelled] Reason: {reason}" for reason in ("User denied execution.", "User cancelled operation")
)

_READ = "Got it. Thanks for the additional context!"  # Gemini's own answer to its summary


def gemini_home(env: Env) -> Path:
    """Return Gemini's state folder, by its own rule."""
    return Path(env.get("GEMINI_CLI_HOME") or user_home(env)) / ".gemini"


def project_slug(home: Path, workspace: Path) -> str:
    """Return the registered slug, else one whose marker names the workspace, else the one that Gemini would claim."""
    registered = slug_registry(home)
    known = registered.get(str(workspace))
    if known is not None and all(owner in (None, str(workspace)) for owner in slug_owners(home, known)):
        return known
    for base in (home / "tmp", home / "history"):
        for folder in _folders(base):
            if _marker(folder) == str(workspace):
                return folder.name
    taken = set(registered.values())
    base_name = slugify(workspace.name)
    candidates = chain([base_name], (f"{base_name}-{n}" for n in count(1)))
    return next(
        slug
        for slug in candidates
        if slug not in taken and all(owner in (None, str(workspace)) for owner in slug_owners(home, slug))
    )


def slugify(name: str) -> str:
    """Return the name in lower case, anything but [a-z0-9] as single dashes, none at the ends."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "project"


def slug_registry(home: Path) -> dict[str, str]:
    """Read projects.json. One bad slug makes Gemini drop all of it, and so does this: a slug becomes a folder's
    name."""
    try:
        projects = json.loads(_read(home / "projects.json"))["projects"]
        items = dict(projects.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    if all(isinstance(slug, str) and _SLUG.fullmatch(slug) for slug in items.values()):
        return items
    return {}


def slug_owners(home: Path, slug: str) -> list[str | None]:
    return [_marker(home / "tmp" / slug), _marker(home / "history" / slug)]


def _marker(folder: Path) -> str | None:
    try:
        return _read(folder / ".project_root").decode().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        return ""  # present, of an unknown owner


def _folders(base: Path) -> Iterator[Path]:
    try:
        yield from sorted(p for p in base.iterdir() if _SLUG.fullmatch(p.name) and p.is_dir() and not p.is_symlink())
    except OSError:
        return


def _read(path: Path) -> bytes:
    with path.open("rb") as f:
        return f.read(_REGISTRY_LIMIT)


class Message(LineRecord):
    """One message and its line. After a change, `line` is dropped and the value is written anew."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return str(self.value.get("type", ""))

    @property
    def calls(self) -> list[Json]:
        found = self.value.get("toolCalls")
        return [c for c in found if isinstance(c, dict)] if isinstance(found, list) else []

    def parts(self) -> list[Any]:
        content = self.value.get("content")
        if isinstance(content, str):
            return [{"text": content}] if content else []
        return content if isinstance(content, list) else []


class Session(msgspec.Struct):
    meta: Json = msgspec.field(default_factory=dict)
    messages: dict[str, Message] = msgspec.field(default_factory=dict)
    taken: list[Message] = msgspec.field(default_factory=list)  # a user's words that the newest change took out again
    scratchpad: bytes | None = None  # the last $set of the memory scratchpad, while nothing came after it
    junk: int = 0  # lines that are not JSON objects
    headed: bool = False  # the first line is the session's head

    def said(self) -> list[Message]:
        return [m for m in self.messages.values() if m.kind in ("user", "gemini")]


def load_session(data: Buffer) -> Session:
    session, size = Session(), 0
    for n, (record, line) in enumerate(records(data)):
        if record is None:
            session.junk += 1
        else:
            _apply(session, record, line)
            if (made := session.messages.get(as_text(record.get("id")))) is not None:
                size = made.shelve(size)
            if n == 0:
                session.headed = _is_head(record)
    return session


def _apply(session: Session, record: Json, line: Line) -> None:
    change = record.get("$set")
    if isinstance(record.get("$rewindTo"), str):
        _rewind(session, record["$rewindTo"])
    elif isinstance(record.get("id"), str):
        session.messages[record["id"]] = Message(record, line)
        session.scratchpad = None
    elif isinstance(change, dict):
        if isinstance(change.get("messages"), list):
            session.taken = [m for m in session.messages.values() if m.kind == "user"]
            session.messages.clear()
            _add_messages(session, change["messages"])
        if "memoryScratchpad" in change:
            session.scratchpad = encode_json({"$set": {"memoryScratchpad": change["memoryScratchpad"]}})
        session.meta |= {k: v for k, v in change.items() if k not in ("messages", "memoryScratchpad")}
    elif _is_head(record):
        session.meta |= {k: v for k, v in record.items() if k != "messages"}
        if isinstance(record.get("messages"), list):
            _add_messages(session, record["messages"])


def _is_head(record: Json) -> bool:
    return isinstance(record.get("sessionId"), str) and isinstance(record.get("projectHash"), str)


def _add_messages(session: Session, messages: list[Any]) -> None:
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("id"), str):
            session.messages[message["id"]] = Message(message)


def _rewind(session: Session, to: str) -> None:
    ids = list(session.messages)
    gone = [session.messages.pop(id) for id in (ids[ids.index(to) :] if to in session.messages else ids)]
    session.taken = [m for m in gone if m.kind == "user"]
    session.scratchpad = None


def dump_session(session: Session) -> bytes:
    """The head, then each message once. Loading it gives the same session again."""
    return b"".join(session_pieces(session))


def session_pieces(session: Session) -> Pieces:
    """What `dump_session` joins."""
    last = [] if session.scratchpad is None else [session.scratchpad]
    return FileLines([encode_json(session.meta), *session.messages.values(), *last])


def session_id_of(path: Path) -> str | None:
    """Return the id in the first line."""
    return _id(_record(_lines(path, 1)))


def is_headless(path: Path) -> bool:
    """Return whether the first line is a whole record, but no session's head."""
    data = _lines(path, 1)
    record = _record(data)
    return b"\n" in data and record is not None and _id(record) is None


def begins_session(fd: int) -> bool:
    """Return whether an open file has the first line of a session."""
    return _id(_record(_first(fd, 1))) is not None


def _record(data: bytes) -> Json | None:
    try:
        record = decode_json(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _id(record: Json | None) -> str | None:
    found = record.get("sessionId") if record else None
    return found if isinstance(found, str) else None


def is_stub(path: Path, session: str) -> bool:
    """Return whether the file is only a head of this session and a checkpoint with just Gemini's own context."""
    data = _lines(path, 3)
    if data.count(b"\n") != 2 or not data.endswith(b"\n") or len(data) >= _LIMIT:
        return False
    read = load_session(data)
    texts = ["".join(str(p.get("text", "")) for p in m.parts() if isinstance(p, dict)) for m in read.said()]
    context = all(text.lstrip().startswith("<session_context>") for text in texts)
    return context and read.headed and read.junk == 0 and read.meta.get("sessionId") == session and len(texts) <= 1


def _lines(path: Path, wanted: int) -> bytes:
    try:
        with open_plain(path) as file:
            return _first(file.fileno(), wanted)
    except OSError:
        return b""


def _first(fd: int, wanted: int) -> bytes:
    """Read up to `wanted` lines and a piece."""
    data = b""
    while data.count(b"\n") < wanted and len(data) < _LIMIT and (piece := os.pread(fd, _PIECE, len(data))):
        data += piece
    return data


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    project = _project(workspace, env)
    main = _main(session, project)
    if main is None:
        return []
    found = [SessionFile(MAIN, main, begins_session)]
    return found + [file for kind in _EXTRAS for file in files_below(kind, _base(kind, session, project))]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    _check(session)
    project = _project(workspace, env)
    if name == MAIN:
        return project / "chats" / f"session-1970-01-01T00-00-{session[:8]}.jsonl"
    kind, *parts = name_parts(name)
    if kind not in _EXTRAS or not parts:
        raise ValueError(f"{name!r} is no file of a Gemini session")
    return _base(kind, session, project).joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    """Return all of the same first eight characters: Gemini deletes them together, whichever session they belong to."""
    return _twins(session, _project(workspace, env)) if _SESSION.fullmatch(session) else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Gemini refuses both to resume a session without a prompt (42) and to start another of its id."""
    return _real(session, _twins(session, _project(workspace, env))) is not None


def find_file(session: str, workspace: Path, env: Env) -> Path | None:
    """Return the file that Gemini resumes the session from."""
    return _real(session, existing_files(session, workspace, env))


def tidy(session: str, workspace: Path, env: Env) -> None:
    """Remove the stubs that resumes left beside the real file; only beside it, and only empty ones."""
    twins = _twins(session, _project(workspace, env))
    real = _real(session, twins)
    if real is None:
        return
    for twin in twins:
        if twin != real and is_stub(twin, session):
            twin.unlink(missing_ok=True)


def _check(session: str) -> None:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")


def _project(workspace: Path, env: Env) -> Path:
    home = gemini_home(env)
    return home / "tmp" / project_slug(home, workspace)


def _main(session: str, project: Path) -> Path | None:
    """Return the session's file. While a new session has no prompt yet, it looks like a stub; a file with more in it
    takes precedence. One that lost its head has only its name to show its session."""
    twins = _twins(session, project)
    real = _real(session, twins)
    if real is not None:
        return real
    headless = largest_file(p for p in twins if is_headless(p))
    return headless or next((p for p in twins if session_id_of(p) == session), None)


def _real(session: str, twins: list[Path]) -> Path | None:
    """Return the one that Gemini finds, and that holds something."""
    return largest_file(p for p in twins if session_id_of(p) == session and not is_stub(p, session))


def _twins(session: str, project: Path) -> list[Path]:
    if not _SESSION.fullmatch(session):
        return []
    tail = f"-{session[:8]}.jsonl"
    chats = walk_files(project / "chats", deep=1)
    return sorted(p for p in chats if p.name.startswith("session-") and p.name.endswith(tail))


def _base(kind: str, session: str, project: Path) -> Path:
    match kind:
        case "tool-outputs":
            return project / "tool-outputs" / f"session-{session}"
        case "subagents":
            return project / "chats" / session
        case _:
            return project / session / "plans"


def _how(call: Json) -> Status | None:
    status = _STATUS.get(str(call.get("status")))
    if status not in ("cancelled", "failed"):
        return status
    responses = (
        as_object(as_object(p.get("functionResponse")).get("response")) for p in as_objects(call.get("result"))
    )
    errors = [as_text(each.get("error")) for each in responses]
    if status == "failed":  # without approval Gemini registers no tool that would ask for one
        lacks = f'Tool "{call.get("name")}" not found.'
        return "refused" if any(each.startswith(lacks) for each in errors) else "failed"
    return "refused" if any(each in _DENIED for each in errors) else "cancelled"


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Return each call once: a message is written again with the same call ids. Repeats in checkpoints are ignored."""
    found: dict[str, SeenCall] = {}
    for record, _ in records(appended):
        for call in Message(record).calls if record is not None else []:
            if (status := _how(call)) is not None:
                id = str(call.get("id", ""))
                found[id or str(len(found))] = SeenCall(
                    str(call.get("name", "")), encode_json(call.get("args", {})), status, id
                )
    return list(found.values())


def compactions(appended: bytes) -> list[Compacted]:
    """A compression replaces all messages (`$set`): Gemini's summary, an answer to it, and what it keeps. Each resume
    writes the same again, so the summary itself is the key."""
    found: list[Compacted] = []
    if _READ.encode() not in appended:
        return found
    for record, _ in records(appended):
        messages = as_objects(as_object((record or {}).get("$set")).get("messages"))
        said = [plain_text(message.get("content")) for message in messages]
        at = next((n for n, text in enumerate(said) if n and text == _READ), 0)
        if at:
            key = hashlib.sha256(said[at - 1].encode("utf-8", "replace")).hexdigest()
            found.append(Compacted(key, said[at - 1], "\n".join(said)))
    return found


def stopped_turn(appended: bytes) -> bool:
    """Gemini's own word for an Esc, behind the user's words."""
    if b"Request cancelled." not in appended:
        return False
    found = [r for r, _ in records(appended) if r is not None and r.get("type") in ("user", "gemini", "info")]
    return bool(found) and (found[-1].get("type"), found[-1].get("content")) == ("info", "Request cancelled.")


def proves_turn(appended: bytes) -> bool:
    """A user's record is written when the SessionStart and BeforeAgent hooks are over, before the model is asked."""
    return any(r is not None and r.get("type") == "user" for r, _ in records(appended))
