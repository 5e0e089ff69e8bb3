"""A child of a restored journal that OpenCode resumes well (DESIGN 7.3). Pure and idempotent.

OpenCode keeps the calls that were open when it was lost, and tells the model of each of them, also of those that had
ended or had never begun, "[Tool execution was interrupted]". The log knows better, so each gets its real outcome.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.opencode.rows import Rows, content_text, dump_rows, load_rows, row_order, tool_parts
from wal_agent.agents.putback import call_input, noted_result, unknown_result
from wal_agent.agents.session_files import Json, decode_json

OPEN = ("pending", "running")
UNLOGGED = "outcome unknown: the machine was lost before the end of this call was saved."
_ID = re.compile(r"[a-z]+_([0-9a-f]{12})")


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    rows = load_rows(main)
    repairs: list[str] = []
    if rows.junk:
        repairs.append(f"{rows.junk} damaged line(s) of the session's journal were left out.")
    if _mend_sessions(rows, session, workspace):
        repairs.append("The session's own row was damaged and was made anew.")
    if dropped := _drop_orphans(rows):
        repairs.append(f"{dropped} part(s) without their message were left out.")
    put = _resolve(rows, session, calls)
    parts = rows.parts()  # those of a message are written behind it
    asked = any(m["data"].get("role") == "user" and m["id"] in parts for m in rows.messages(session))
    return Reconciled(dump_rows(rows), put, len(rows.messages(session)), tuple(repairs), None if asked else ())


def _mend_sessions(rows: Rows, session: str, workspace: Path) -> bool:
    broken = ("session", session) not in rows.found
    if broken:
        times = [m["created"] for m in rows.messages(session)] or [0]
        row: Json = {"slug": "restored", "title": "Restored session", "version": "1", "time_created": times[0]}
        rows.add({"type": "session", "id": session, "row": {**row, "time_updated": times[-1]}})
    for record in rows.of("session"):
        if record["row"].get("directory") != str(workspace):
            rows.add({**record, "row": {**record["row"], "directory": str(workspace)}})
    return broken


def _drop_orphans(rows: Rows) -> int:
    sessions = {r["id"] for r in rows.of("session")}
    messages = {r["id"] for r in rows.of("message") if r["session"] in sessions}
    lost = [k for k, r in rows.found.items() if k[0] == "message" and k[1] not in messages]
    lost += [k for k, r in rows.found.items() if k[0] == "part" and r["message"] not in messages]
    for key in lost:
        del rows.found[key]
    return len(lost)


# ---- calls


def _resolve(rows: Rows, session: str, calls: Sequence[LoggedCall]) -> int:
    """Give each open call its outcome, and add those that are missing; say how many."""
    parts = sorted(tool_parts(rows), key=row_order)
    free = [p for p in parts if p.get("by") != "user"]
    pairs: dict[int, Json] = {}
    used: set[str] = set()
    # A call without an id may be meant by a part only when no other call is.
    for part_key, call_key in ((_part_id, _id_of), (_part_input, _call_input)):
        same: dict[object, list[Json]] = {}
        for part in free:
            same.setdefault(part_key(part), []).append(part)
        for n, call in enumerate(calls):
            key = None if n in pairs else call_key(call)
            found = same.get(key, []) if key is not None else []
            chosen = next((p for p in found if p["id"] not in used and not _earlier(p, call)), None)
            if chosen is not None:
                used.add(chosen["id"])
                pairs[n] = chosen
    put = 0
    for n, part in pairs.items():
        state = part["data"]["state"]
        if state.get("status") in OPEN:
            rows.add({**part, "data": {**part["data"], "state": outcome_state(calls[n], state)}})
            put += 1
    missing = [call for n, call in enumerate(calls) if n not in pairs]
    for part in parts:
        state = rows.found["part", part["id"]]["data"]["state"]
        if state.get("status") in OPEN:
            ended = _state(state, {}, 0) | {"status": "error", "error": UNLOGGED}
            rows.add({**part, "data": {**part["data"], "state": ended}})
    if missing:
        _put_back(rows, session, missing)
    return put + len(missing)


def _id_of(call: LoggedCall) -> str:
    return call.call_id or f"call_wal_{call.call}"


def _part_id(part: Json) -> object:
    return content_text(part["data"].get("callID"))


def _part_input(part: Json) -> object:
    data = part["data"]
    return content_text(data.get("tool")), _canonical(data["state"].get("input"))


def _call_input(call: LoggedCall) -> object:
    return None if call.call_id else (call.tool, _canonical(call_input(call)))


def _earlier(part: Json, call: LoggedCall) -> bool:
    """It ended before the call began: a provider may use its ids again."""
    time = part["data"]["state"].get("time")
    end = time.get("end") if isinstance(time, dict) else None
    return isinstance(end, int | float) and end + 1 < int(call.started * 1000)


def outcome_state(call: LoggedCall, before: Json) -> Json:
    """A part's state by what the log knows."""
    state = _state(before, call_input(call), int(call.started * 1000))
    if call.result is None:
        return state | {"status": "error", "error": unknown_result(call)}
    said = _result(call.result)
    text = noted_result(said["output"], call)
    if call.failed:
        return state | {"status": "error", "error": text}
    metadata = {"output": text, **said["metadata"]} if call.tool == "bash" else said["metadata"]
    return state | {"status": "completed", "output": text, "title": said["title"], "metadata": metadata}


def _state(before: Json, input: Json, started: int) -> Json:
    time = before.get("time")
    began = time.get("start") if isinstance(time, dict) else None
    start = began if isinstance(began, int) and not isinstance(began, bool) and began >= 0 else started
    given = before.get("input")
    return {
        "input": given if isinstance(given, dict) and given else input,
        "time": {"start": start, "end": max(start, started)},
    }


def _result(data: bytes) -> Json:
    """What the plugin said of it, or a JSON string with words of ours, or bytes that were cut off."""
    try:
        value = decode_json(data)
    except (ValueError, RecursionError):
        value = data.decode("utf-8", "replace")
    if not isinstance(value, dict):
        return {
            "output": value if isinstance(value, str) else data.decode("utf-8", "replace"),
            "title": "",
            "metadata": {},
        }
    metadata = value.get("metadata")
    return {
        "output": content_text(value.get("output")),
        "title": content_text(value.get("title")),
        "metadata": metadata if isinstance(metadata, dict) else {},
    }


def _put_back(rows: Rows, session: str, missing: Sequence[LoggedCall]) -> None:
    """As one batch of the last message, where that is the model's and asks for tools; else of a new one."""
    messages = rows.messages(session)
    last = messages[-1] if messages else None
    if (
        last is None
        or last["data"].get("role") != "assistant"
        or last["data"].get("finish") not in (None, "tool-calls")
        or last["data"].get("error")  # OpenCode leaves such a message out of what it sends
    ):
        last = _message(session, last, messages, missing[0])
        rows.add(last)
    before = max((p["id"] for p in rows.of("part") if p["message"] == last["id"]), default=last["id"])
    for n, call in enumerate(missing, 1):
        data = {
            "type": "tool",
            "tool": call.tool,
            "callID": _id_of(call),
            "state": outcome_state(call, {}),
        }
        id = _id("prt", before, n, f"{session} {call.call}")
        rows.add(
            {
                "type": "part",
                "id": id,
                "session": session,
                "created": last["created"],
                "message": last["id"],
                "data": data,
            }
        )


def _message(session: str, last: Json | None, messages: Sequence[Json], call: LoggedCall) -> Json:
    """The model's own message was lost: one that holds only its calls."""
    asked: Json = next((m["data"] for m in reversed(messages) if m["data"].get("role") == "user"), {})
    model = asked.get("model")
    model = model if isinstance(model, dict) else {}
    created = last["created"] + 1 if last else int(call.started * 1000)
    agent = content_text(asked.get("agent")) or "build"
    data: Json = {
        "role": "assistant",
        "parentID": last["id"] if last else "msg_" + "0" * 26,
        "mode": agent,
        "agent": agent,
        "path": {"cwd": "/", "root": "/"},
        "cost": 0,
        "tokens": {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}},
        "modelID": content_text(model.get("modelID")) or "unknown",
        "providerID": content_text(model.get("providerID")) or "unknown",
        "time": {"created": created, "completed": created},
        "finish": "tool-calls",
    }
    id = _id("msg", last["id"] if last else "", 1, f"{session} {call.call}")
    return {"type": "message", "id": id, "session": session, "created": created, "data": data}


def _id(kind: str, before: str, step: int, seed: str) -> str:
    """OpenCode's ids sort by time: this one comes behind `before`."""
    found = _ID.match(before)
    number = (int(found[1], 16) if found else 0) + step
    return f"{kind}_{number % (1 << 48):012x}{hashlib.sha256(seed.encode()).hexdigest()[:14]}"


def _canonical(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (UnicodeEncodeError, RecursionError, TypeError):
        return repr(value).encode("utf-8", "backslashreplace")
