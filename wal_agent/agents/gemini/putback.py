"""Calls that the log knows and the session file does not, put back into it (proven on the real program)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.gemini.session import Message, Session
from wal_agent.agents.putback import call_input, capped_text, end_time, noted_result, unknown_result
from wal_agent.agents.session_files import Json, decode_json, well_formed

_MAX_DEPTH = 20  # lists in lists of a result; what is deeper is not told
IGNORED = {"wait_for_previous"}  # scheduling only: not in every spelling of the same call


def put_back(read: Session, session: str, calls: Sequence[LoggedCall]) -> int:
    """Add what is missing, in the log's order, as one batch of the last model message; say how many."""
    missing = calls_to_add(read, calls)
    if not missing:
        return 0
    time = _last_time(read)
    made = [tool_call(call, time) for call in missing]
    said = read.said()
    last = said[-1] if said else None
    if last is not None and last.kind == "gemini" and not last.calls and not _structured(last):
        last.value = {**last.value, "toolCalls": made}
        last.line = None
    else:  # the model's own message was lost with the crash: only its calls are known
        new = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} put back from call {missing[0].call}"))
        value: Json = {"id": new, "timestamp": time, "type": "gemini", "content": "", "thoughts": []}
        read.messages[new] = Message({**value, "toolCalls": made})
    return len(missing)


def calls_to_add(read: Session, calls: Iterable[LoggedCall]) -> list[LoggedCall]:
    """Each call of the file answers for one call of the log: the one put back under its number, else an equal one
    that did not start after the file's had ended."""
    ids: set[str] = set()
    told: dict[tuple[str, bytes], list[float]] = {}
    for message in read.messages.values():
        for call in message.calls:
            ids.add(str(call.get("id")))
            if "__wal_" not in str(call.get("id")):
                key = (str(call.get("name")), _canon(call.get("args")))
                told.setdefault(key, []).append(end_time(call.get("timestamp")))
    missing: list[LoggedCall] = []
    for logged in calls:
        key = (logged.tool, _canon(call_input(logged)))
        ended = [t for t in told.get(key, []) if t + 0.001 >= logged.started]
        if call_id(logged) in ids:
            continue
        if ended:
            told[key].remove(min(ended))
        else:
            missing.append(logged)
    return missing


def call_id(call: LoggedCall) -> str:
    return f"{call.tool}__wal_{call.call}"


def tool_call(call: LoggedCall, time: str) -> Json:
    response = call_result(call)
    function = {"id": call_id(call), "name": call.tool, "response": response}
    return {
        "id": call_id(call),
        "name": call.tool,
        "args": call_input(call),
        "result": [{"functionResponse": function}],
        "status": "error" if "error" in response else "success",
        "timestamp": time,
        "resultDisplay": next(iter(response.values()))[:1000],
        "displayName": call.tool,
        "description": "",
        "renderOutputAsMarkdown": False,
    }


def call_result(call: LoggedCall) -> dict[str, str]:
    if call.result is None:
        return {"error": unknown_result(call)}
    try:
        told = decode_json(call.result)
    except (ValueError, RecursionError):
        told = call.result.decode(errors="replace")
    told = told if isinstance(told, dict) else {"llmContent": told}
    text = noted_result(_said(told.get("llmContent")), call)
    error = told.get("error")
    if not call.failed and error is None:
        return {"output": text}
    message = error.get("message") if isinstance(error, dict) else None
    return {"error": capped_text(message, call.call) if isinstance(message, str) and message else text}


def _said(content: Any, deep: int = _MAX_DEPTH) -> str:
    """The text of what the model was given. Images and the like are in the log, not in the session."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and deep:
        return "\n".join(_said(part, deep - 1) for part in content)
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return str(content["text"])
    return "" if content is None else "[content that is not text: not put back]"


def _structured(message: Message) -> bool:
    """Content that tells calls or thoughts by itself: Gemini then does not look at toolCalls."""
    return any(isinstance(p, dict) and ("functionCall" in p or "thought" in p) for p in message.parts())


def _canon(args: Any) -> bytes:
    known = {k: v for k, v in args.items() if k not in IGNORED} if isinstance(args, dict) else args
    return well_formed(json.dumps(known, sort_keys=True).encode())  # as the hook's was, when it was logged


def _last_time(read: Session) -> str:
    latest = reversed(read.messages.values())
    times = (t for m in latest if isinstance(t := m.value.get("timestamp"), str))
    return next(times, None) or str(read.meta.get("lastUpdated", "1970-01-01T00:00:00.000Z"))
