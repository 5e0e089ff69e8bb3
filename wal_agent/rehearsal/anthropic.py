"""The dialect of Claude Code: Anthropic's `/v1/messages`, streamed or not, and `count_tokens` beside it."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

from wal_agent.rehearsal.model import Called, Heard, Json, Reply, Returned, Said, Turn, json_reply, sse

_ids = itertools.count(1)

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Anthropic:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.endswith("/messages") and bool(body.get("tools"))

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        if turn.status != 200:
            return _error(turn.status, "scripted")
        return _answer(_blocks(turn), body)

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "GET" and plain.endswith("/models"):
            models = [{"id": "scripted", "type": "model", "display_name": "scripted"}]
            return json_reply({"data": models, "has_more": False})
        if method == "POST" and plain.endswith("/count_tokens"):
            return json_reply({"input_tokens": 100})
        if method == "POST" and plain.endswith("/messages"):
            return _answer([{"type": "text", "text": "ok"}], body)
        return _error(404, "no such endpoint")

    def history(self, body: Json) -> list[Heard]:
        heard: list[Heard] = [Said("system", text) for text in _texts(body.get("system"))]
        for message in body.get("messages") or []:
            heard += _message(message)
        return heard

    def last(self, body: Json) -> str:
        message = (body.get("messages") or [{}])[-1]
        return "\n".join(heard.text for heard in _message(message) if not isinstance(heard, Called))


def _id(prefix: str) -> str:
    return f"{prefix}_{next(_ids):04d}{os.urandom(8).hex()}"


def _error(status: int, message: str) -> Reply:
    kind = _ERRORS.get(status, "api_error")
    return json_reply({"type": "error", "error": {"type": kind, "message": message}}, status)


def _blocks(turn: Turn) -> list[Json]:
    said: list[Json] = [{"type": "text", "text": turn.text}] if turn.text else []
    return said + [{"type": "tool_use", "id": _id("toolu"), "name": name, "input": args} for name, args in turn.calls]


def _answer(blocks: list[Json], body: Json) -> Reply:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    message = {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model") or "scripted",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 100,
            "output_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }
    return _stream(message) if body.get("stream") else json_reply(message)


def _stream(message: Json) -> Reply:
    events: list[Json] = [{"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}]
    for i, block in enumerate(message["content"]):
        if block["type"] == "text":
            start, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": i, "content_block": start},
            {"type": "content_block_delta", "index": i, "delta": delta},
            {"type": "content_block_stop", "index": i},
        ]
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    return sse([(event["type"], event) for event in events])


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or [] if isinstance(block.get("text"), str)]


def _message(message: Json) -> list[Heard]:
    role = "model" if message.get("role") == "assistant" else str(message.get("role"))
    content = message.get("content") or []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [heard for block in blocks for heard in _heard(role, block)]


def _heard(role: str, block: Json) -> list[Heard]:
    if block.get("type") == "tool_use":
        return [Called(block["name"], block.get("input") or {}, block.get("id") or "")]
    if block.get("type") == "tool_result":
        return [Returned(block.get("tool_use_id") or "", "\n".join(_texts(block.get("content"))))]
    return [Said(role, block["text"])] if isinstance(block.get("text"), str) else []
