"""Copilot's session: its files, its events, and what appended events report.

The session file holds one event a line, chained by `parentId`. The model sees a call as its request in an
`assistant.message` and the `tool.execution_complete` of the same id; a call whose message is not in the file is not
shown at all, whatever else is stored there. An outcome names its call by id only, and hooks know no ids. The call's
tool and input are further up, often in bytes that were read before; so requests are remembered until their outcome is
reported, or another session begins. Ids are the model's: they may come again, and a subagent's may be its parent's.

Names in the log are paths under the session's folder, `~/.copilot/session-state/<id>`; no other file of `~/.copilot` is
ever named, so no credential can be. Links are not followed. Left out: locks, `session.db` (a live database) and
`rewind-file-snapshots` (by absolute paths of the lost machine, which `/rewind` would write to).
"""

from __future__ import annotations

import re
import threading
from itertools import islice
from pathlib import Path

import msgspec

from wal_agent.agents.base import Compacted, Env, RequestedCall, SeenCall, SessionFile, Status
from wal_agent.agents.copilot.hooks import SESSION, call_arguments, copilot_home, running_shell
from wal_agent.agents.session_files import (
    FileLines,
    Json,
    LineRecord,
    as_object,
    as_objects,
    as_text,
    contains,
    decode_json,
    encode_json,
    is_file,
    name_parts,
    read_start,
    records,
    walk_files,
    well_formed,
    whole_lines,
)
from wal_agent.safefs import Buffer, Pieces

MAIN = "events.jsonl"
_SINGLE = ("workspace.yaml", "plan.md")
_FOLDERS = ("checkpoints", "files", "research")
_MAX_FILES = 10_000  # files of one folder
_HEAD = 1 << 20  # bytes of a first line
_MAX_INPUTS = 64 << 20  # bytes of inputs that are remembered; the oldest go first

_CODES: dict[str, Status] = {
    "denied": "refused",
    "rejected": "refused",
    "interrupted": "cancelled",
    "aborted": "cancelled",
    "cancelled": "cancelled",
}

_SHELL_OVER = ("shell_completed", "shell_detached_completed")
# What the tools that read or stop a shell say of one that has ended.
_STOPPED = re.compile(r"\A\s*<command with id: (?P<id>[^<>\n]*) stopped>")
_READ = re.compile(r"<shellId: (?P<id>[^<>\n]*) completed with exit code (?P<code>-?\d+)>\s*\Z")

_TAGS = re.compile(r"</?summary>")


class Event(LineRecord):
    """One event and its line."""

    __slots__ = ()

    @property
    def kind(self) -> str:
        return str(self.value.get("type"))

    @property
    def data(self) -> Json:
        return as_object(self.value.get("data"))

    @property
    def agent(self) -> str:
        """The subagent that it belongs to, or """ ""
        return str(self.value.get("agentId") or "")


class Request(RequestedCall, frozen=True):
    """`agent`: the subagent that requests it, if any. `message`: the event's own id; some models repeat the ids of
    calls again and again."""

    agent: str
    message: str = ""


class EventLog(msgspec.Struct):
    events: list[Event]
    junk: int
    torn: bool


def load_events(data: Buffer) -> EventLog:
    kept = whole_lines(data)
    read = EventLog([], 0, torn=bool(data[len(kept) :].strip(b"\0 \t\r\n")))
    size = 0
    for value, line in records(kept):
        if value is None or not isinstance(value.get("type"), str):
            read.junk += 1
        else:
            read.events.append(made := Event(value, line))
            size = made.shelve(size)
    return read


def scheduled(main: Buffer) -> tuple[RequestedCall, ...]:
    """Return what `/every`, `/after` (`--experimental`) and the tool manage_schedule have planned. A resume takes all
    of it up again: only from a bucket it does not come (conversation.py)."""
    if not contains(main, b'"session.schedule_created"'):
        return ()
    planned: dict[str, RequestedCall] = {}
    for event in load_events(main).events:
        id = str(event.data.get("id"))
        if event.kind == "session.schedule_created":
            tool = "/after" if event.data.get("recurring") is False else "/every"
            said = {name: event.data[name] for name in ("prompt", "intervalMs", "cron", "at") if name in event.data}
            planned[id] = RequestedCall(id, tool, encode_json(said))
        elif event.kind == "session.schedule_cancelled":
            planned.pop(id, None)
        elif event.kind == "user.message" and (source := as_text(event.data.get("source"))).startswith("schedule-"):
            ran = source.removeprefix("schedule-")
            if ran in planned and planned[ran].tool == "/after":
                del planned[ran]
    return tuple(planned.values())


def dump_events(events: list[Event]) -> bytes:
    return b"".join(event_pieces(events))


def event_pieces(events: list[Event]) -> Pieces:
    """What `dump_events` joins."""
    return FileLines(events)


def call_requests(event: Event) -> list[Request]:
    """Return the calls that a message of the model requests."""
    asked = event.data.get("toolRequests") if event.kind == "assistant.message" else None
    return [
        Request(
            str(r["toolCallId"]),
            str(r.get("name")),
            call_arguments(well_formed(encode_json(r.get("arguments")))),  # as its hooks spell it
            event.agent,
            str(event.value.get("id")),
        )
        for r in as_objects(asked)
        if r.get("toolCallId")
    ]


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    base = _base(session, env)
    if base is None or not is_file(base / MAIN):
        return []
    return [SessionFile(path.relative_to(base).as_posix(), path) for path in [base / MAIN, *_beside(base)]]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    base = _base(session, env)
    if base is None:
        raise ValueError(f"{session!r} is no session id")
    parts = name_parts(name)
    if name not in (MAIN, *_SINGLE) and (parts[0] not in _FOLDERS or len(parts) < 2):
        raise ValueError(f"{name!r} is no file of a Copilot session")
    return base.joinpath(*parts)


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    base = _base(session, env)
    return [path for path in [base / MAIN, *_beside(base)] if is_file(path)] if base is not None else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    """Return whether the first line is the session's head: else Copilot does not load it."""
    base = _base(session, env)
    try:
        head = decode_json(read_start(base / MAIN, _HEAD, line=True)) if base is not None else None
    except ValueError:
        return False
    return isinstance(head, dict) and head.get("type") == "session.start"


def _base(session: str, env: Env) -> Path | None:
    """Return the session's folder, if this can be a session's id; never one behind a link."""
    if not SESSION.fullmatch(session):
        return None
    base = copilot_home(env) / "session-state" / session
    return None if base.is_symlink() else base


def _beside(base: Path) -> list[Path]:
    found = [base / name for name in _SINGLE if is_file(base / name)]
    for folder in _FOLDERS:
        found += sorted(islice(walk_files(base / folder), _MAX_FILES))
    return found


_Key = tuple[str, str]  # agent, id


class OpenCalls:
    """Requested calls whose outcome is not reported yet.

    A command of more than 30 s goes on in the background. When it ends, Copilot itself, and not the model, requests
    `read_bash` for its output, in a message right behind the notification. No hook fires for that call, which only
    reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[_Key, Request] = {}
        self._answers: dict[_Key, Status] = {}  # of a person who was asked: what a call was then, if it was cut short
        self._size = 0
        self._notified = ""  # the id of the newest notification that a shell has ended

    def seen_calls(self, appended: bytes) -> list[SeenCall]:
        with self._lock:
            return [seen for event in load_events(appended).events for seen in self._outcomes(event)]

    def _outcomes(self, event: Event) -> list[SeenCall]:
        over: list[SeenCall] = []
        if event.kind == "system.notification" and as_object(event.data.get("kind")).get("type") in _SHELL_OVER:
            self._notified = str(event.value.get("id"))
            over = ended_shells(event)
        by_copilot = bool(self._notified) and event.value.get("parentId") == self._notified
        for request in call_requests(event):
            if not (by_copilot and request.tool == "read_bash"):
                self._remember(request)
        if event.kind == "session.start" and not event.agent:
            self._asked, self._answers, self._size = {}, {}, 0
        if event.kind in ("permission.requested", "permission.completed"):
            # Until it is granted it is a No: an Esc at the question is written in front of its answer.
            granted = as_text(as_object(event.data.get("result")).get("kind")).startswith("approved")
            asked_about = self._key(event, as_object(event.data.get("permissionRequest")) or event.data)
            if asked_about in self._asked:
                self._answers[asked_about] = "stopped" if granted else "refused"
        if event.kind == "abort":  # what this agent had running gets no outcome of its own
            aborted = [key for key in self._asked if key[0] == event.agent]
            return [seen for key in aborted for seen in self._end([key], self._answers.get(key, "cancelled"))]
        if event.kind != "tool.execution_complete":
            return over
        key = self._key(event, event.data)
        asked = self._asked.get(key)
        if asked is not None and (shell := running_shell(asked.tool, result_text(event))):
            return self._end([key], "runs_on", shell)
        status = call_status(event)
        status = self._answers.get(key, status) if status in ("refused", "cancelled") else status
        return [*stopped_shells(event, asked), *self._end([key], status)]

    def _key(self, event: Event, data: Json) -> _Key:
        key = event.agent, str(data.get("toolCallId"))
        return key if key in self._asked else next((k for k in reversed(self._asked) if k[1] == key[1]), ("", key[1]))

    def _end(self, keys: list[_Key], how: Status, task: str = "") -> list[SeenCall]:
        ended = filter(None, map(self._forget, keys))
        return [SeenCall(r.tool, r.input, how, f"{r.message} {r.id}", task=task) for r in ended]

    def _remember(self, request: Request) -> None:
        key = request.agent, request.id
        self._forget(key)
        self._asked[key] = request
        self._size += len(request.input)
        while self._size > _MAX_INPUTS and len(self._asked) > 1:
            self._forget(next(iter(self._asked)))

    def _forget(self, key: _Key) -> Request | None:
        request = self._asked.pop(key, None)
        self._answers.pop(key, None)
        self._size -= len(request.input) if request else 0
        return request


seen_calls = OpenCalls().seen_calls  # of this process; all else here is stateless


def call_status(event: Event) -> Status:
    if event.data.get("success") is True:
        return "done"
    return _CODES.get(str(as_object(event.data.get("error")).get("code")), "failed")


def ended_shells(event: Event) -> list[SeenCall]:
    """Return what a notification says of a command that ran on: that it has ended, and how."""
    kind = as_object(event.data.get("kind"))
    return [_ended_shell(as_text(kind.get("shellId")), "done" if kind.get("exitCode") == 0 else "failed")]


def stopped_shells(event: Event, request: Request | None) -> list[SeenCall]:
    """Return what the result of a call about an earlier command's shell says of that command."""
    tool = request.tool if request is not None else ""
    if not tool.startswith(("read_", "stop_", "write_")):
        return []
    text = result_text(event)
    if tool.startswith("stop_"):
        found = _STOPPED.search(text)
        return [_ended_shell(found["id"], "cancelled")] if found else []
    found = _READ.search(text)
    return [_ended_shell(found["id"], "done" if found["code"] == "0" else "failed")] if found else []


def result_text(event: Event) -> str:
    return as_text(as_object(event.data.get("result")).get("content"))


def _ended_shell(shell: str, status: Status) -> SeenCall:
    return SeenCall("bash", b"{}", status, task=shell)


def compactions(appended: bytes) -> list[Compacted]:
    """Read the events behind a compaction; one that failed or was cancelled left the conversation as it was."""
    found: list[Compacted] = []
    if b"session.compaction_complete" not in appended:
        return found
    for event in load_events(appended).events:
        if event.kind != "session.compaction_complete" or event.agent or event.data.get("success") is not True:
            continue
        summary, tokens = as_text(event.data.get("summaryContent")), event.data.get("preCompactionTokens")
        plain = _TAGS.sub("", summary).strip()
        key = as_text(event.data.get("compactionAttemptId")) or as_text(event.value.get("id"))
        found.append(Compacted(key, plain, summary, tokens if isinstance(tokens, int) else 0))
    return found


def stopped_turn(appended: bytes) -> bool:
    """An `abort` that no turn follows."""
    if b'"abort"' not in appended:
        return False
    kinds = ("abort", "user.message", "assistant.turn_start")
    found = [e.kind for e in load_events(appended).events if e.kind in kinds and not e.agent]
    return found[-1:] == ["abort"]


def proves_turn(appended: bytes) -> bool:
    """A prompt is written when the hooks of the session's start are over."""
    return any(e.kind == "user.message" and not e.agent for e in load_events(appended).events)
