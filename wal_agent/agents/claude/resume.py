"""Make a restored Claude Code session that resumes well (RECOVERY.md): put lost calls back, mend it, add the prompt.

Pure and idempotent, proven on the real program. Claude writes a call when its whole message has arrived, which may be
seconds after the call has run, and never syncs the file; a call without a result is dropped silently at a resume. The
log has both, so they are put back. Also healed, each measured on the real program: Claude does not cut a torn tail but
writes behind it, and loses what it writes; a line that is missing in the middle hides all that was before it.

The recovery prompt becomes the user's last message. On the command line a leading `/` would be a command of Claude's
own, and `@path` add that file; in the session file it arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import ACT_BEGINS, LoggedCall, Reconciled
from wal_agent.agents.claude.session import (
    Entry,
    Session,
    content_text,
    conversation_end,
    has_no_outcome,
    is_turn,
    load_session,
    new_entry,
    one_ms_later,
    session_pieces,
    time_after,
    time_seconds,
)
from wal_agent.agents.session_files import (
    Json,
    as_object,
    as_objects,
    as_text,
    call_input,
    contains,
    input_digest,
    junk_repair,
    logged_value,
    lost_calls_repair,
    noted_result,
    unknown_result,
)
from wal_agent.safefs import Buffer, Pieces

IMAGE = "[an image, which is not kept; look at it again if it is needed]"
MODEL = "claude-unknown"  # where no other line names the model
_KEPT = ("userType", "entrypoint", "version", "gitBranch")

EMPTY = "<system-reminder>Warning: the file exists but the contents are empty.</system-reminder>"
_COMMAND = re.compile(r"<command-name>(/[^<]*)</command-name>.*?<command-args>(.*?)</command-args>", re.DOTALL)
OWN = "<task-notification>"  # what Claude puts into its queue itself


def put_back(read: Session, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> int:
    """Give calls without a result theirs, and add those that are missing, in the log's order; return how many."""
    replaced = _replace_unknown(read, calls)
    like = LineTemplate.of(read, session, workspace)
    time = time_after(read)
    places = _positions(read)
    end = max((i + 1 for i, e in enumerate(read.entries) if e.uuid), default=0)
    added: dict[int, list[Entry]] = {}  # by the line that they go before
    answered = {str(r["tool_use_id"]) for e in read.entries for r in e.results()}
    lacking = [call for call in calls if call_id(call) in places.keys() - answered]
    for call in lacking:
        at, place = places[call_id(call)]
        tail = at >= end
        at_time = time if tail else one_ms_later(place.time)
        value = like.line("user", place.uuid, _result(call), f"result {call_id(call)}", at_time)
        added.setdefault(at, []).append(new_entry({**value, "sourceToolAssistantUUID": place.uuid}))
        time = one_ms_later(time) if tail else time
    count = range(len(read.entries) + 1)
    read.entries = [e for i in count for e in (*added.get(i, ()), *read.entries[i : i + 1])]
    missing = _missing(read, calls)
    for call in missing:
        use = [{"type": "tool_use", "id": call_id(call), "name": call.tool, "input": call_input(call)}]
        said = like.line("assistant", conversation_end(read), use, f"call {call_id(call)}", time)
        read.entries.append(new_entry(said))
        time = one_ms_later(time)
        line = like.line("user", str(said["uuid"]), _result(call), f"result {call_id(call)}", time)
        read.entries.append(new_entry({**line, "sourceToolAssistantUUID": said["uuid"]}))
        time = one_ms_later(time)
    return replaced + len(lacking) + len(missing)


def _replace_unknown(read: Session, calls: Sequence[LoggedCall]) -> int:
    """Give the log's result to each call for which Claude wrote a result of its own without an outcome."""
    logged = {call_id(call): call for call in calls}
    replaced = 0
    for e in read.entries:
        lost = [id for r in e.results() if (id := str(r["tool_use_id"])) in logged and has_no_outcome(e.value, r)]
        if not lost:
            continue
        results = {id: _result(logged[id])[0] for id in lost}
        content = [
            results.get(str(block.get("tool_use_id")), block) if isinstance(block, dict) else block
            for block in e.message["content"]
        ]
        kept = {key: value for key, value in e.value.items() if key not in ("toolUseResult", "toolDenialKind")}
        e.value = {**kept, "message": {**e.message, "content": content}}
        replaced += len(lost)
    return replaced


def call_id(call: LoggedCall) -> str:
    return call.call_id or f"toolu_wal_{call.call}"


def _missing(read: Session, calls: Sequence[LoggedCall]) -> list[LoggedCall]:
    """Return the calls that the file lacks, by id. One without an id in the log is identified by its tool and input, if
    the file's was written after it had started."""
    ids = {str(c["id"]) for e in read.entries for c in e.calls()}
    equal: dict[tuple[str, bytes], list[float]] = {}
    for e in read.entries:
        for c in e.calls():
            equal.setdefault((str(c.get("name")), input_digest(c.get("input"))), []).append(time_seconds(e.time))
    missing: list[LoggedCall] = []
    for call in calls:
        if call_id(call) in ids:
            continue
        key = call.tool, input_digest(call_input(call))
        ended = [t for t in equal.get(key, []) if t + 60 >= call.started]
        if not call.call_id and ended:
            equal[key].remove(min(ended))
        else:
            missing.append(call)
            ids.add(call_id(call))
    return missing


def _positions(read: Session) -> dict[str, tuple[int, Entry]]:
    """Return for each call in the file the index where its result belongs, and the call's line. That is behind the last
    line of its message and the message's results, where Claude itself would have written it: it must not look like the
    conversation's end."""
    places: dict[str, tuple[int, Entry]] = {}
    ends: dict[str, int] = {}  # of the messages, as far as they are looked at
    for at, use in enumerate(read.entries):
        for call in use.calls():
            if call["id"] not in places:
                message = repr(use.message.get("id"))
                if at >= ends.get(message, 0):
                    ends[message] = _end(read, at)
                places[call["id"]] = ends[message], use
    return places


def _end(read: Session, at: int) -> int:
    message = read.entries[at].message.get("id")
    end = at + 1
    for i in range(at + 1, len(read.entries)):
        e = read.entries[i]
        same = e.kind == "assistant" and e.message.get("id") == message
        if same or any(True for _ in e.results()):
            end = i + 1
        elif e.uuid and e.kind in ("user", "assistant"):
            break
    return end


class LineTemplate(msgspec.Struct, frozen=True):
    """The parts of a new line of the chain that it shares with the others: those that describe the program."""

    session: str
    workspace: Path
    kept: Json
    model: str

    @classmethod
    def of(cls, read: Session, session: str, workspace: Path) -> LineTemplate:
        last = next((e.value for e in reversed(read.entries) if e.uuid), {})
        model = next((m for e in reversed(read.entries) if (m := _model(e))), MODEL)
        return cls(session, workspace, {key: last[key] for key in _KEPT if key in last}, model)

    def line(self, kind: str, parent: str | None, content: Any, what: str, time: str) -> Json:
        """Make a line. Its uuid derives from `what`."""
        name = uuid.uuid5(uuid.NAMESPACE_OID, f"{self.session} {what}")
        message: Json = {"role": kind, "content": content}
        if kind == "assistant":
            message = {
                "id": f"msg_wal_{name.hex}",
                "type": "message",
                "role": kind,
                "model": self.model,
                "content": content,
                "stop_reason": "tool_use",
                "stop_sequence": None,
                "usage": {"input_tokens": 0, "output_tokens": 0},
            }
        return {
            "parentUuid": parent,
            "isSidechain": False,
            "type": kind,
            "message": message,
            "uuid": str(name),
            "timestamp": time,
            "cwd": str(self.workspace),
            "sessionId": self.session,
            **self.kept,
        }


def _model(e: Entry) -> str:
    found = e.message.get("model") if e.kind == "assistant" else None
    return found if isinstance(found, str) and found and not found.startswith("<") else ""


def _result(call: LoggedCall) -> list[Json]:
    text = unknown_result(call) if call.result is None else noted_result(result_text(call.result, call.tool), call)
    failed = call.failed or call.result is None
    return [{"type": "tool_result", "tool_use_id": call_id(call), "content": text, "is_error": failed}]


def result_text(result: bytes, tool: str = "") -> str:
    """Return what the model got: a hook's copy has the parts from which Claude writes it."""
    value = logged_value(result)
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _shown_text(value)
    if not isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value.get("error"), str):
        return str(value["error"])
    if isinstance(value.get("stdout"), str):
        kept = value.get("persistedOutputPath")
        stored = f"[the whole output was stored in {kept}]" if isinstance(kept, str) and kept else None
        out = IMAGE if value.get("isImage") is True else value["stdout"]
        said = "\n".join(part for part in (stored, out, value.get("stderr")) if isinstance(part, str) and part)
        return said or f"({tool or 'Bash'} completed with no output)"
    file = value.get("file")
    if isinstance(file, dict):
        if isinstance(file.get("content"), str):
            return _numbered(file)
        if "base64" in file:
            return IMAGE
    if isinstance(path := value.get("filePath"), str) and "userModified" in value:
        return _changed(path, value)
    return _shown_text(value.get("content")) or json.dumps(value, ensure_ascii=False)


def _numbered(file: Json) -> str:
    """Return a file's lines as `Read` shows them."""
    first = file.get("startLine")
    if not file["content"]:
        return EMPTY
    lines = enumerate(str(file["content"]).split("\n"), first if isinstance(first, int) else 1)
    return "\n".join(f"{n}\t{line}" for n, line in lines)


def _changed(path: str, value: Json) -> str:
    """Return what `Write` and `Edit` say, without the words that the file need not be read again: after a recovery it
    may be another one."""
    if value.get("type") == "create":
        return f"File created successfully at: {path}"
    if value.get("replaceAll") is True:
        return f"The file {path} has been updated. All occurrences were successfully replaced."
    return f"The file {path} has been updated successfully."


def _shown_text(content: Any) -> str:
    shown = [IMAGE for part in as_objects(content) if part.get("type") == "image"]
    return "\n".join(filter(None, [content_text(content), *shown]))


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_session(main)
    repairs = junk_repair(read.junk)
    repairs += lost_calls_repair(drop_results(read))
    if linked := mend_chain(read):
        repairs.append(f"{linked} line(s) whose predecessor was lost follow the one before them again.")
    put = put_back(read, session, workspace, calls)
    if contains(main, f"/{session}/tool-results/".encode()):
        repairs.append(
            "The session names its stored tool outputs by absolute paths; where this folder is another one, read the "
            f"files under {session}/tool-results of this machine instead."
        )
    queued = take_queued(read)
    asked = _asked(read)
    answers = {str(e.message.get("id")) for e in read.entries if e.kind == "assistant" and e.uuid}
    return Reconciled(
        session_pieces(read), put, asked + len(answers), tuple(repairs), tuple(_prompts(read)), queued, _timers(read)
    )


def _prompts(read: Session) -> Iterator[str]:
    """Yield what a person typed: prompts, slash commands as typed, and what was queued and then read or taken back."""
    for e in read.entries:
        match e.kind:
            case "user" if e.value.get("isMeta") is not True:
                text = content_text(e.message.get("content"))
                if command := _COMMAND.search(text):
                    text = f"{command[1]} {command[2]}".strip()
            case "attachment":
                text = content_text(as_object(e.value.get("attachment")).get("prompt"))
            case "queue-operation":
                text = as_text(e.value.get("content"))
            case _:
                continue
        if text:
            yield text


def _timers(read: Session) -> tuple[str, ...]:
    """Return the ids of the jobs of CronCreate, which Claude runs again once it has resumed a session with them."""
    results = (as_object(e.value.get("toolUseResult")) for e in read.entries if e.kind == "user")
    return tuple(id for each in results if (id := as_text(each.get("id"))))


def take_queued(read: Session) -> tuple[str, ...]:
    """Take out the prompts that were typed while a tool ran and that Claude had not read yet: it keeps them in memory,
    and notes each in the file. Return them in their order."""
    waiting: list[Entry] = []
    for e in read.entries:
        word = e.value.get("operation") if e.kind == "queue-operation" else ""
        if word == "enqueue":
            waiting.append(e)
        elif word == "popAll":
            waiting.clear()
        elif word:
            same = [w for w in waiting if w.value.get("content") == e.value.get("content")]
            waiting = [w for w in waiting if w is not next(iter(same or waiting))]
    left = {id(e) for e in waiting}
    read.entries = [e for e in read.entries if id(e) not in left]
    texts = [text for e in waiting if isinstance(text := e.value.get("content"), str)]
    return tuple(text for text in texts if not text.startswith((OWN, ACT_BEGINS)))


def drop_results(read: Session) -> int:
    """Drop the results whose call was lost: they are refused by the model's API. Return how many."""
    asked: set[str] = set()
    instead: dict[str, Any] = {}  # of each dropped line: its parent
    kept: list[Entry] = []
    dropped = 0
    for e in read.entries:
        if e.uuid and (parent := as_text(e.value.get("parentUuid"))) in instead:
            e.change(parentUuid=instead[parent])
        asked |= {str(call["id"]) for call in e.calls()}
        lost = [r for r in e.results() if str(r["tool_use_id"]) not in asked]
        if not lost:
            kept.append(e)
            continue
        dropped += len(lost)
        left = [block for block in e.message["content"] if block not in lost]
        if left:
            e.value = {**e.value, "message": {**e.message, "content": left}}
            kept.append(e)
        else:
            instead[e.uuid] = e.value.get("parentUuid")
    read.entries = kept
    return dropped


def mend_chain(read: Session) -> int:
    """Let a line whose parent is missing follow the one before it; return how many. Lines that Claude removed on
    purpose and lost ones look alike; either way the rest is one conversation."""
    known = {str(e.value.get("uuid")) for e in read.entries}
    before: str | None = None
    mended = 0
    for e in read.entries:
        if not e.uuid:
            continue
        parent = e.value.get("parentUuid")
        if parent is not None and str(parent) not in known and before is not None:
            e.change(parentUuid=before)
            mended += 1
        before = e.uuid
    return mended


def _asked(read: Session) -> int:
    """Count user messages, without results of tools."""
    return sum(is_turn(e.value) and not any(True for _ in e.results()) for e in read.entries)


def inject_prompt(main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
    """Add the prompt at the end, once."""
    read = load_session(main)
    last = next((e for e in reversed(read.entries) if e.uuid), None)
    if last is not None and last.kind == "user" and last.message.get("content") == prompt:
        return [main]
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{conversation_end(read)} {prompt!r}")
    line = LineTemplate.of(read, session, workspace).line(
        "user", conversation_end(read), prompt, str(name), time_after(read)
    )
    read.entries.append(new_entry(line))
    return session_pieces(read)
