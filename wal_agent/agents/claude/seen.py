"""What bytes appended to a session file tell: calls with an outcome, and that a turn began."""

from __future__ import annotations

import re
from typing import Any, Literal

from wal_agent.agents.base import RequestedCall, SeenCall
from wal_agent.agents.claude.session import Entry, is_turn
from wal_agent.agents.session_files import Json, encode_json, records

# Claude's words for calls that a person or a rule refused. Those that Esc cut off are told as if they had not begun,
# in the words of a refusal at the dialog: they may have.
_CANCELLED = ("The user doesn't want to proceed with this tool use", "The user doesn't want to take this action")
_REFUSED = ("Claude requested permissions to ", "Permission to use ", "Permission for this action ")
_HOOK = re.compile(r"PreToolUse:\S+ hook error: ")  # a hook refused it; up to 2.1.197 only one that exited with 2
# At a resume, 2.1.330 writes a result of its own for each call that has none: the outcome is unknown, so it settles
# nothing (I8), and what the log knows replaces it. A fork does the same for calls that the copied session had open.
_NO_OUTCOME = ("[Tool call interrupted", "[Tool call result not in this copy")


def seen_calls(appended: bytes) -> list[SeenCall]:
    """A result names its call by id; where the call itself is not in these bytes, its tool is not told. Subagents' own
    files have the same form. A line is known by its uuid: some models count their calls anew in each answer."""
    calls: dict[str, Json] = {}
    found: list[SeenCall] = []
    for record, line in records(appended):
        if record is None:
            continue
        e = Entry(record, line)
        uuid = record.get("uuid")
        if not isinstance(uuid, str) or not uuid:
            continue
        if e.kind == "assistant":
            calls |= {str(block["id"]): block for block in e.blocks("tool_use") if isinstance(block.get("id"), str)}
        for result in e.blocks("tool_result") if e.kind == "user" else ():
            if not isinstance(id := result.get("tool_use_id"), str):
                continue
            if has_no_outcome(record, result):
                continue
            call = calls.get(id, {})
            input = call.get("input")
            spelled = encode_json(input if isinstance(input, dict) else {})
            found.append(SeenCall(str(call.get("name", "")), spelled, _status(record, result), f"{uuid}/{id}", id))
    return found


def requested_calls(appended: bytes) -> dict[str, RequestedCall]:
    """The calls in these bytes, by id."""
    found: dict[str, RequestedCall] = {}
    for record, line in records(appended):
        if record is not None and record.get("type") == "assistant":
            for block in Entry(record, line).blocks("tool_use"):
                if isinstance(id := block.get("id"), str):
                    input = block.get("input")
                    found[id] = RequestedCall(
                        str(block.get("name", "")), encode_json(input if isinstance(input, dict) else {})
                    )
    return found


def has_no_outcome(record: Json, result: Json) -> bool:
    """Is this result Claude's own word for a call whose result it never got?"""
    if result.get("is_error") is not True:
        return False
    return record.get("toolDenialKind") == "interrupted" or content_text(result.get("content")).startswith(_NO_OUTCOME)


def _status(record: Json, result: Json) -> Literal["done", "failed", "refused", "cancelled"]:
    if result.get("is_error") is not True:
        return "done"
    text = content_text(result.get("content"))
    if text.startswith(_CANCELLED):
        return "cancelled"
    if text.startswith(_REFUSED) or _HOOK.match(text):
        return "refused"
    kind = record.get("toolDenialKind")  # 2.1.330: its auto mode refuses in other words
    before = isinstance(kind, str) and kind.startswith("automode-") and record.get("toolDenialAfterRun") is not True
    return "refused" if before else "failed"


def content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(p["text"]) for p in parts if isinstance(p, dict) and isinstance(p.get("text"), str))


def proves_turn(appended: bytes) -> bool:
    """A user's line is written when the SessionStart and UserPromptSubmit hooks are over."""
    return any(is_turn(r) for r, _ in records(appended))
