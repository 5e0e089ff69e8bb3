"""Claude Code's session: its files, their lines, and what appended lines report.

The session file is JSON Lines; each line names the one before it by `parentUuid`. There is one line for each block of a
message: a call and its result are lines of their own. Lines of other types hold titles, modes and queues; they are kept
as they are.

Names in the log: `session.jsonl`, `subagents/...`, `tool-results/...`, `tasks/...`, `file-history/...`. No other file
of Claude's folder is ever named, so no credential can be. Links are not followed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import Compacted, Env, RequestedCall, SeenCall, SessionFile, Status, TurnFailed
from wal_agent.agents.claude.cli import SESSION
from wal_agent.agents.claude.hooks import TIME_LIMIT, claude_home, failed_turn
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
    files_below,
    is_file,
    name_parts,
    records,
    time_of,
)
from wal_agent.safefs import Buffer, Pieces, open_plain

_YEAR_9999 = 253_402_300_800_000  # milliseconds since 1970
CHAIN = ("user", "assistant", "attachment", "system")

_PIECE = 1 << 16  # bytes that are read at a time
_LIMIT = 1 << 23  # bytes at the beginning of a session file
MAIN = "session.jsonl"
OTHERS = ("subagents/any.jsonl",)  # a name in the folder of the session's other files with calls
_BESIDE = ("subagents", "tool-results")  # in a folder of the session's name beside its main file
_OWN = ("tasks", "file-history")  # in a folder of the session's name in theirs
_LONGEST = 200  # characters of a folder's name for a project, before the hash

# Claude's messages for calls that a user or a rule refused. Those that Esc interrupted have the message of a refusal at
# the dialog.
_CANCELLED = ("The user doesn't want to proceed with this tool use", "The user doesn't want to take this action")
_REFUSED = ("Claude requested permissions to ", "Permission to use ", "Permission for this action ")
_HOOK = re.compile(r"PreToolUse:\S+ hook error: ")  # a hook refused it; up to 2.1.197 only one that exited with 2
# At a resume, 2.1.330 writes a result of its own for each call that has none: the outcome is unknown, so it resolves
# nothing (I8), and the log's result replaces it. A fork does the same for calls that the copied session had open.
_NO_OUTCOME = ("[Tool call interrupted", "[Tool call result not in this copy")

_TASK = re.compile(r"<task-id>([\w.-]{1,100})</task-id>")
_TASK_STATUS = re.compile(r"<status>(\w+)</status>")
_TASK_ENDS: dict[str, Status] = {"completed": "done", "failed": "failed", "killed": "cancelled", "stopped": "cancelled"}

# Claude Code's own sentences around a summary: nothing of the conversation.
_FRAME = re.compile(
    r"\AThis session is being continued from [^\n]*\s*(?:<system-reminder>.*?</system-reminder>\s*)?(?:Summary:)?"
    r"|\s*If you need specific details from before compaction.*\Z",
    re.DOTALL,
)

_STOPPED = "[Request interrupted by user"


class Entry(LineRecord):
    """One line. A line that is not touched keeps its bytes."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return str(self.value.get("type", ""))

    @property
    def uuid(self) -> str:
        """Of a line in the conversation's chain; empty for any other."""
        found = self.value.get("uuid")
        main = self.kind in CHAIN and not self.value.get("isSidechain")
        return found if main and isinstance(found, str) else ""

    @property
    def time(self) -> str:
        return as_text(self.value.get("timestamp"))

    @property
    def message(self) -> Json:
        return as_object(self.value.get("message"))

    def blocks(self, kind: str) -> Iterator[Json]:
        return (block for block in as_objects(self.message.get("content")) if block.get("type") == kind)

    def calls(self) -> Iterator[Json]:
        if self.kind == "assistant" and self.uuid:
            yield from (b for b in self.blocks("tool_use") if isinstance(b.get("id"), str))

    def results(self) -> Iterator[Json]:
        if self.kind == "user" and self.uuid:
            yield from (b for b in self.blocks("tool_result") if isinstance(b.get("tool_use_id"), str))


def new_entry(value: Json) -> Entry:
    return Entry(value, encode_json(value))


class Session(msgspec.Struct):
    entries: list[Entry] = msgspec.field(default_factory=list)
    junk: int = 0  # lines that are not JSON objects


def due(result: bytes) -> float:
    """When what ScheduleWakeup or CronCreate has scheduled comes, in seconds since 1970; inf: again and again."""
    try:
        value = as_object(decode_json(result))
    except ValueError:  # the log has its beginning alone
        return math.inf
    time = value.get("scheduledFor", value.get("nextFireAt"))
    return time / 1000 if isinstance(time, int) and time < _YEAR_9999 and not value.get("recurring") else math.inf


def load_session(data: Buffer) -> Session:
    session, size = Session(), 0
    for record, line in records(data):
        if record is None:
            session.junk += 1
        else:
            session.entries.append(made := Entry(record, line))
            size = made.shelve(size)
    return session


def dump_session(session: Session) -> bytes:
    return b"".join(session_pieces(session))


def session_pieces(session: Session) -> Pieces:
    """What `dump_session` joins."""
    return FileLines(session.entries)


def conversation_end(session: Session) -> str | None:
    """Return the line that the conversation continues: the last of the chain, or where the user rewound to after it."""
    rewound: str | None = None
    for e in reversed(session.entries):
        if e.uuid:
            return rewound or e.uuid
        to = e.value.get("leafUuid")
        if e.kind == "last-prompt" and e.value.get("explicit") is True and isinstance(to, str):
            rewound = rewound or to
    return rewound


def time_after(session: Session) -> str:
    """Return a time later than every line's: of several ends of a chain, Claude takes the latest (seen in its
    program)."""
    latest = max((at for e in session.entries if e.uuid and (at := _parsed(e.time)) is not None), default=None)
    return EPOCH if latest is None else one_ms_later(_spelled(latest))


def one_ms_later(time: str) -> str:
    at = _parsed(time)
    return EPOCH if at is None else _spelled(at + timedelta(milliseconds=1))


def time_seconds(time: str) -> float:
    """Return seconds since 1970; unknown counts as late enough."""
    at = _parsed(time)
    return float("inf") if at is None else at.timestamp()


def _parsed(time: str) -> datetime | None:
    try:
        at = found.astimezone(UTC) if (found := time_of(time)) else None
    except OverflowError:
        return None
    return at if at and at.year < 9999 else None


def _spelled(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def has_messages(path: Path) -> bool:
    """Return whether a regular file begins a conversation. Only its beginning is read (I9)."""
    torn: list[bytes] = []  # pieces of a line whose end is not read yet
    size = 0
    with suppress(OSError), open_plain(path) as f:
        while size < _LIMIT and (piece := f.read(_PIECE)):
            size += len(piece)
            lines, end, rest = piece.rpartition(b"\n")
            if end and _has_turn(b"".join([*torn, lines])):
                return True
            torn = [rest] if end else [*torn, piece]
    return _has_turn(b"".join(torn))


def _has_turn(lines: bytes) -> bool:
    return b'"user"' in lines and any(is_turn(r) for r, _ in records(lines))


def is_turn(record: Json | None) -> bool:
    """Return whether the line begins a turn: a user's own words. Claude marks its own additions as meta."""
    if record is None or record.get("type") != "user" or record.get("isMeta") or record.get("isSidechain"):
        return False
    return isinstance(record.get("message"), dict)


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    main = next(iter(existing_files(session, workspace, env)), None) or _moved(session, env)
    if main is None:
        return []
    found = [SessionFile(MAIN, main)]
    for kind in (*_BESIDE, *_OWN):
        base = main.with_suffix("") / kind if kind in _BESIDE else _base(kind, session, workspace, env)
        if base.parent.is_symlink() and kind in _BESIDE:  # `walk_files` follows none below
            continue
        found += (file for file in files_below(kind, base) if file.path.name != ".lock")
    return found


def _moved(session: str, env: Env) -> Path | None:
    """Return the session's main file in another project's folder: Claude moves it there when the session enters a
    worktree. An id is one session's only."""
    if not SESSION.fullmatch(session):
        return None
    projects = claude_home(env) / "projects"
    with suppress(OSError):
        places = [each for each in projects.iterdir() if not each.is_symlink()]
        found = (place / f"{session}.jsonl" for place in places)
        return max(filter(is_file, found), key=lambda path: path.stat().st_mtime_ns, default=None)
    return None


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if not SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    if name == MAIN:
        return project_folder(workspace, env) / f"{session}.jsonl"
    kind, *parts = name_parts(name)
    if kind not in (*_BESIDE, *_OWN) or not parts:
        raise ValueError(f"{name!r} is no file of a Claude Code session")
    return _base(kind, session, workspace, env).joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    """Return the session's main file. Claude looks for it under the workspace's name only."""
    if not SESSION.fullmatch(session):
        return []
    path = project_folder(workspace, env) / f"{session}.jsonl"
    return [path] if is_file(path) else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Claude refuses both to resume a session without a message and to start another of its id."""
    return any(has_messages(path) for path in existing_files(session, workspace, env))


def project_folder(workspace: Path, env: Env) -> Path:
    """Return the folder of a workspace's sessions."""
    return claude_home(env) / "projects" / project_slug(str(workspace))


def project_slug(path: str) -> str:
    """Apply Claude's own rule, so that a restore meets its lookup: JavaScript's, which counts a character beyond U+FFFF
    as two. It has no inverse: /a/b and /a-b give the same."""
    data = path.encode("utf-16-le", "surrogatepass")
    units = [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]
    name = "".join(chr(u) if u < 128 and chr(u).isalnum() else "-" for u in units)
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{_hash(units)}"


def _hash(units: list[int]) -> str:
    value = 0
    for unit in units:
        value = ((value << 5) - value + unit) & 0xFFFFFFFF
    value = abs(value - (1 << 32) if value >= 1 << 31 else value)
    digits = ""
    while value:
        value, digit = divmod(value, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def _base(kind: str, session: str, workspace: Path, env: Env) -> Path:
    if kind in _BESIDE:
        return project_folder(workspace, env) / session / kind
    return claude_home(env) / kind / session


def seen_calls(appended: bytes) -> list[SeenCall]:
    """Return the results. A result names its call by id; where the call itself is not in these bytes, its tool is
    empty. Subagents' own files have the same form. The uuid identifies a line: some models count calls anew in each
    answer."""
    calls: dict[str, Json] = {}
    found: list[SeenCall] = []
    for record, line in records(appended):
        if record is None:
            continue
        e = Entry(record, line)
        uuid = record.get("uuid")
        if not isinstance(uuid, str) or not uuid:
            continue
        found += _ended_tasks(record)
        if e.kind == "assistant":
            calls |= {str(block["id"]): block for block in e.blocks("tool_use") if isinstance(block.get("id"), str)}
        for result in e.blocks("tool_result") if e.kind == "user" else ():
            if not isinstance(id := result.get("tool_use_id"), str):
                continue
            if has_no_outcome(record, result):
                continue
            call = calls.get(id, {})
            name, input = str(call.get("name", "")), _spelled_input(call)
            report = as_object(record.get("toolUseResult"))
            watching = "timeoutMs" in report and "persistent" in report  # Monitor's; other tools name tasks too
            task = as_text(report.get("backgroundTaskId") or (report.get("taskId") if watching else ""))
            status: Status = "runs_on" if task else _status(record, result)
            found.append(SeenCall(name, input, status, f"{uuid}/{id}", id, task))
    return found


def _ended_tasks(record: Json) -> list[SeenCall]:
    """Read Claude's word that a background task has ended: a turn's first line, or an attachment in the middle of one.
    Each names its own origin, which no prompt of a person has."""
    attached = as_object(record.get("attachment"))
    if as_text(attached.get("commandMode")) == "task-notification":
        text = content_text(attached.get("prompt"))
    elif as_text(as_object(record.get("origin")).get("kind")) == "task-notification":
        text = content_text(as_object(record.get("message")).get("content"))
    else:
        return []
    task, status = _TASK.search(text), _TASK_STATUS.search(text)
    if task is None or status is None:
        return []
    how = _TASK_ENDS.get(status[1])
    return [SeenCall("", b"{}", how, task=task[1])] if how is not None else []


def turn_failure(end: bytes) -> TurnFailed | None:
    """Return the failure with which the file ends. Claude writes it in front of its StopFailure hook, which a Claude
    under load does not wait for."""
    for record, line in reversed(list(records(end))):
        if record is None or record.get("type") not in ("user", "assistant") or record.get("isSidechain"):
            continue
        if record.get("isApiErrorMessage") is not True:
            return None
        entry = Entry(record, line)
        text = content_text(entry.message.get("content"))
        return failed_turn(as_text(record.get("sessionId")), as_text(record.get("error")), text)
    return None


def _spelled_input(call: Json) -> bytes:
    return encode_json(as_object(call.get("input")))


def requested_calls(appended: bytes) -> dict[str, RequestedCall]:
    """Return the calls in these bytes, by id."""
    found: dict[str, RequestedCall] = {}
    for record, line in records(appended):
        if record is not None and record.get("type") == "assistant":
            for block in Entry(record, line).blocks("tool_use"):
                if isinstance(id := block.get("id"), str):
                    found[id] = RequestedCall(id, str(block.get("name", "")), _spelled_input(block))
    return found


def has_no_outcome(record: Json, result: Json) -> bool:
    """Return whether Claude wrote this result itself, for a call whose result it never got."""
    if result.get("is_error") is not True:
        return False
    return record.get("toolDenialKind") == "interrupted" or content_text(result.get("content")).startswith(_NO_OUTCOME)


def _status(record: Json, result: Json) -> Status:
    if result.get("is_error") is not True:
        return "cancelled" if as_object(record.get("toolUseResult")).get("interrupted") is True else "done"
    text = content_text(result.get("content"))
    if text.startswith(_CANCELLED):  # 2.1.330 says beside the words whether it had begun
        if record.get("toolDenialBeforeRun") is True:
            return "refused"
        return "stopped" if "toolDenialKind" in record else "cancelled"
    decided = as_object(record.get("permissionDecision"))  # 2.1.330: by its settings and mode, in many words
    by_rule = (decided.get("decision"), decided.get("source")) == ("reject", "config")
    if text.startswith(_REFUSED) or _HOOK.match(text) or (by_rule and record.get("toolDenialAfterRun") is not True):
        return "refused"
    if TIME_LIMIT.search(text):
        return "stopped"
    kind = record.get("toolDenialKind")  # 2.1.330: its auto mode refuses in other words
    before = isinstance(kind, str) and kind.startswith("automode-") and record.get("toolDenialAfterRun") is not True
    return "refused" if before else "failed"


def content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in as_objects(content) if isinstance(part.get("text"), str))


def compactions(appended: bytes) -> list[Compacted]:
    """Read `compact_boundary` and the summary behind it; what is kept word for word is only named there."""
    found: list[Compacted] = []
    tokens = 0
    if b"compact_boundary" not in appended and b"isCompactSummary" not in appended:
        return found
    for record, _ in records(appended):
        if record is not None and record.get("subtype") == "compact_boundary":
            before = as_object(record.get("compactMetadata")).get("preTokens")
            tokens = before if isinstance(before, int) else 0
        elif record is not None and record.get("isCompactSummary") is True:
            text = content_text(as_object(record.get("message")).get("content"))
            found.append(Compacted(as_text(record.get("uuid")), _FRAME.sub("", text).strip(), text, tokens))
    return found


def stopped_turn(appended: bytes) -> bool:
    """Claude writes a message of the user's for an Esc."""
    if _STOPPED.encode() not in appended:
        return False
    said = [r for r, _ in records(appended) if r is not None and r.get("type") in ("user", "assistant")]
    newest = next((r for r in reversed(said) if not r.get("isSidechain")), {})
    return content_text(as_object(newest.get("message")).get("content")).startswith(_STOPPED)


def proves_turn(appended: bytes) -> bool:
    """A user's line is written when the SessionStart and UserPromptSubmit hooks are over."""
    return any(is_turn(r) for r, _ in records(appended))
