"""The log's word on a call as pi's `toolResult` message."""

from __future__ import annotations

import re
from typing import Any

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.pi.hooks import plain_tool_name
from wal_agent.agents.putback import MAX_RESULT, noted_result, unknown_result
from wal_agent.agents.session_files import Json, decode_json

_TEXT = re.compile(rb'"text":"((?:[^"\\\x00-\x1f]|\\(?:u[0-9a-fA-F]{4}|[^u]))*)')
MARK = "wal-agent"
NOTHING = "(no output)"  # pi's own words; an API may refuse an empty text


def result_message(logged: LoggedCall, id: str, time: int) -> Json:
    """`time` in milliseconds."""
    if logged.result is None:
        return _message(logged.tool, id, [_text(unknown_result(logged))], True, time, result_mark(logged))
    try:
        told = decode_json(logged.result)
    except ValueError:
        told = _cut_off(logged.result)
    content = told.get("content") if isinstance(told, dict) else told
    blocks = _blocks(content)
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if sum(map(len, texts)) > MAX_RESULT or logged.note or not texts:
        kept = [block for block in blocks if block["type"] != "text"]
        text = noted_result("\n".join(texts) or ("" if kept else NOTHING), logged)
        blocks = [*([_text(text)] if text else []), *kept]
    return _message(logged.tool, id, blocks, logged.failed, time, result_mark(logged))


def error_message(id: str, tool: str, text: str, time: int) -> Json:
    """An error in words of ours."""
    return _message(tool, id, [_text(text)], True, time, {})


def result_mark(logged: LoggedCall) -> Json:
    """By this a result that was put back is known again: ids may repeat. pi keeps it, and tells no model of it."""
    return {MARK: [logged.call, logged.started]}


def _message(tool: str, id: str, content: list[Json], failed: bool, time: int, details: Json) -> Json:
    return {
        "role": "toolResult",
        "toolCallId": id,
        "toolName": plain_tool_name(tool),
        "content": content,
        "details": details,
        "isError": failed,
        "timestamp": time,
    }


def _cut_off(result: bytes) -> str:
    """What is left of a result's texts, and the sentence behind them that says so."""
    told, _, why = result.partition(b"\n")  # JSON has its line ends escaped
    texts = (
        [str(decode_json(b'"' + text + b'"')) for text in _TEXT.findall(told)]
        if told.startswith(b'{"content":')
        else []
    )
    return "\n".join([*texts, why.decode(errors="replace")]).rstrip() if texts else result.decode(errors="replace")


def _blocks(content: Any) -> list[Json]:
    """Text and images, as far as they are sound."""
    if isinstance(content, str):
        return [_text(content)] if content else []
    out: list[Json] = []
    for block in content if isinstance(content, list) else []:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str) and block["text"]:
            out.append(_text(block["text"]))
        elif kind == "image" and all(isinstance(block.get(key), str) for key in ("data", "mimeType")):
            out.append({"type": "image", "data": block["data"], "mimeType": block["mimeType"]})
    return out


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
