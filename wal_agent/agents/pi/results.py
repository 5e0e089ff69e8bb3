"""The log's word on a call as pi's `toolResult` message."""

from __future__ import annotations

from typing import Any

from wal_agent.agents.base import LoggedCall
from wal_agent.agents.jsonl import Json, decode
from wal_agent.agents.putback import MOST, noted, unknown

NOTHING = "(no output)"  # pi's own words; an API may refuse an empty text


def message(logged: LoggedCall, id: str, time: int) -> Json:
    """`time` in milliseconds."""
    if logged.result is None:
        return words(id, logged.tool, unknown(logged), time)
    try:
        told = decode(logged.result)
    except (ValueError, RecursionError):
        told = logged.result.decode(errors="replace")
    content = told.get("content") if isinstance(told, dict) else told
    blocks = _blocks(content)
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if sum(map(len, texts)) > MOST or logged.note or not texts:
        kept = [block for block in blocks if block["type"] != "text"]
        text = noted("\n".join(texts) or ("" if kept else NOTHING), logged)
        blocks = [*([_text(text)] if text else []), *kept]
    return _message(id, logged.tool, blocks, logged.failed, time)


def words(id: str, tool: str, text: str, time: int) -> Json:
    """An error in words of ours."""
    return _message(id, tool, [_text(text)], True, time)


def _message(id: str, tool: str, content: list[Json], failed: bool, time: int) -> Json:
    return {
        "role": "toolResult",
        "toolCallId": id,
        "toolName": tool,
        "content": content,
        "details": {},
        "isError": failed,
        "timestamp": time,
    }


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
