"""Calls that the log knows and the session file does not, put back into it (proven on the real program)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.claude.lines import Entry, Session, after, entry, later, leaf, seconds
from wal_agent.agents.claude.seen import text_of
from wal_agent.agents.jsonl import Json, decode
from wal_agent.agents.putback import noted, unknown

MODEL = "claude-unknown"  # of a message that no other line tells the model of
_KEPT = ("userType", "entrypoint", "version", "gitBranch")


def put_back(read: Session, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> int:
    """Give calls without a result theirs, and add those that are missing, in the log's order; say how many."""
    added = 0
    time = after(read)
    for call in _lacking_results(read, calls):
        at, place = _place(read, id_of(call))
        tail = not any(e.uuid for e in read.entries[at:])
        at_time = time if tail else later(place.time)
        value = line(read, session, workspace, "user", place.uuid, _result(call), f"result {id_of(call)}", at_time)
        read.entries.insert(at, entry({**value, "sourceToolAssistantUUID": place.uuid}))
        time = later(time) if tail else time
        added += 1
    for call in _missing(read, calls):
        use = [{"type": "tool_use", "id": id_of(call), "name": call.tool, "input": _input(call)}]
        said = line(read, session, workspace, "assistant", leaf(read), use, f"call {id_of(call)}", time)
        read.entries.append(entry(said))
        time = later(time)
        told = line(read, session, workspace, "user", str(said["uuid"]), _result(call), f"result {id_of(call)}", time)
        read.entries.append(entry({**told, "sourceToolAssistantUUID": said["uuid"]}))
        time = later(time)
        added += 1
    return added


def id_of(call: LoggedCall) -> str:
    return call.call_id or f"toolu_wal_{call.call}"


def _lacking_results(read: Session, calls: Sequence[LoggedCall]) -> list[LoggedCall]:
    told = {str(r["tool_use_id"]) for e in read.entries for r in e.results()}
    begun = {str(c["id"]) for e in read.entries for c in e.calls()}
    return [call for call in calls if id_of(call) in begun - told]


def _missing(read: Session, calls: Sequence[LoggedCall]) -> list[LoggedCall]:
    """By id. One without an id in the log is known by its tool and input, if it was told after it had started."""
    ids = {str(c["id"]) for e in read.entries for c in e.calls()}
    equal: dict[tuple[str, str], list[float]] = {}
    for e in read.entries:
        for c in e.calls():
            equal.setdefault((str(c.get("name")), _canon(c.get("input"))), []).append(seconds(e.time))
    missing: list[LoggedCall] = []
    for call in calls:
        if id_of(call) in ids:
            continue
        ended = [t for t in equal.get((call.tool, _canon(_input(call))), []) if t + 60 >= call.started]
        if not call.call_id and ended:
            equal[call.tool, _canon(_input(call))].remove(min(ended))
        else:
            missing.append(call)
            ids.add(id_of(call))
    return missing


def _place(read: Session, id: str) -> tuple[int, Entry]:
    """Where the result of a call in the file goes, and the call's line: behind the last line of its message and its
    message's results, where Claude itself would have written it: it must not look like the conversation's end."""
    at, use = next((i, e) for i, e in enumerate(read.entries) if any(c["id"] == id for c in e.calls()))
    message = use.message.get("id")
    end = at + 1
    for i, e in enumerate(read.entries[at + 1 :], at + 1):
        same = e.kind == "assistant" and e.message.get("id") == message
        if same or any(True for _ in e.results()):
            end = i + 1
        elif e.uuid and e.kind in ("user", "assistant"):
            break
    return end, use


def line(
    read: Session, session: str, workspace: Path, kind: str, parent: str | None, content: Any, what: str, time: str
) -> Json:
    """A new line of the chain, like the others in what tells of the program. `what` makes its uuid."""
    like = next((e.value for e in reversed(read.entries) if e.uuid), {})
    model = next((m for e in reversed(read.entries) if (m := _model(e))), MODEL)
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {what}")
    message: Json = {"role": kind, "content": content}
    if kind == "assistant":
        message = {
            "id": f"msg_wal_{name.hex}",
            "type": "message",
            "role": kind,
            "model": model,
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
        "cwd": str(workspace),
        "sessionId": session,
        **{key: like[key] for key in _KEPT if key in like},
    }


def _model(e: Entry) -> str:
    found = e.message.get("model") if e.kind == "assistant" else None
    return found if isinstance(found, str) and found and not found.startswith("<") else ""


def _result(call: LoggedCall) -> list[Json]:
    text = unknown(call) if call.result is None else noted(result_text(call.result), call)
    failed = call.failed or call.result is None
    return [{"type": "tool_result", "tool_use_id": id_of(call), "content": text, "is_error": failed}]


def result_text(result: bytes) -> str:
    """What the model would have been told, as near as a hook's copy of it allows."""
    try:
        told = decode(result)
    except (ValueError, RecursionError):
        return result.decode(errors="replace")
    if isinstance(told, str):
        return told
    if isinstance(told, list):
        return text_of(told)
    if not isinstance(told, dict):
        return json.dumps(told)
    if isinstance(told.get("error"), str):
        return str(told["error"])
    if isinstance(told.get("stdout"), str):
        return "\n".join(part for part in (told["stdout"], told.get("stderr")) if isinstance(part, str) and part)
    file = told.get("file")
    if isinstance(file, dict) and isinstance(file.get("content"), str):
        return str(file["content"])
    return text_of(told.get("content")) or json.dumps(told, ensure_ascii=False)


def _input(call: LoggedCall) -> Json:
    try:
        value = decode(call.input)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _canon(input: Any) -> str:
    return json.dumps(input, sort_keys=True)
