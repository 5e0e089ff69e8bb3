"""The dialect of Codex CLI: OpenAI's `/v1/responses`, streamed.

Codex has freeform tools, whose input is text. A script calls them with `{"input": text}`, and so does the history say.
A tool of a namespace is called `namespace::name`.
"""

from __future__ import annotations

import json
from typing import Any

from wal_agent.loopback.chat import arguments, beside, error, new_id, texts, unanswered
from wal_agent.rehearsal.model import Called, Heard, Json, Reply, Returned, Said, Turn, sse

_FREEFORM = {"apply_patch", "exec"}


class Responses:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.endswith("/responses") and _has_tools(body) and not _is_title(body)

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        return _answer(turn, body) if turn.status == 200 else error(turn.status, "scripted")

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "POST" and plain.endswith("/responses"):
            return _answer(Turn(text="ok"), body)
        return beside(method, plain)

    def history(self, body: Json) -> list[Heard]:
        heard: list[Heard] = [Said("system", text) for text in texts(body.get("instructions"))]
        for item in _items(body):
            heard += _heard(item)
        return heard

    def last(self, body: Json) -> str:
        return unanswered(self.history(body))


def _items(body: Json) -> list[Json]:
    items: str | list[Json] = body.get("input") or []
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def _has_tools(body: Json) -> bool:
    """In code mode they are the first item of the input."""
    items = _items(body)
    return bool(body.get("tools")) or (bool(items) and items[0].get("type") == "additional_tools")


def _is_title(body: Json) -> bool:
    """On a terminal Codex asks for the session's title beside the first turn, in a thread that may only patch."""
    names = {tool.get("name") for tool in body.get("tools") or []}
    return "format" in (body.get("text") or {}) and names <= {"apply_patch"}


def _answer(turn: Turn, body: Json) -> Reply:
    items = [_said(turn.text)] if turn.text else []
    items += [_call(name, args) for name, args in turn.calls]
    response = {"id": new_id("resp_"), "object": "response", "model": body.get("model") or "scripted"}
    events: list[Json] = [{"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}]
    for i, item in enumerate(items):
        events.append({"type": "response.output_item.added", "output_index": i, "item": item})
        if item["type"] == "message":
            place = {"item_id": item["id"], "output_index": i, "content_index": 0}
            events.append({"type": "response.output_text.delta", **place, "delta": turn.text})
        events.append({"type": "response.output_item.done", "output_index": i, "item": item})
    end = {"status": "completed", "output": items, "end_turn": not turn.calls, "usage": _usage()}
    events.append({"type": "response.completed", "response": {**response, **end}})
    return sse([(event["type"], {**event, "sequence_number": n}) for n, event in enumerate(events)])


def _usage() -> Json:
    return {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 110,
    }


def _said(text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message",
        "id": new_id("msg_"),
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def _call(name: str, args: Json) -> Json:
    namespace, _, name = name.rpartition("::")
    call = {"call_id": new_id("call_"), "name": name, "status": "completed"}
    if namespace:
        call["namespace"] = namespace
    if name in _FREEFORM and set(args) == {"input"} and isinstance(args["input"], str):
        return {"type": "custom_tool_call", "id": new_id("ctc_"), **call, "input": args["input"]}
    return {"type": "function_call", "id": new_id("fc_"), **call, "arguments": json.dumps(args)}


def _heard(item: Json) -> list[Heard]:
    match item.get("type", "message"):
        case "message":
            role = str(item.get("role"))
            word = {"assistant": "model", "developer": "system"}.get(role, role)
            return [Said(word, text) for text in texts(item.get("content"))]
        case "agent_message":  # from another agent; its payload is for the API alone
            return [Said("user", text) for text in texts(item.get("content"))]
        case "function_call":
            return [Called(item["name"], arguments(item.get("arguments") or ""), item.get("call_id") or "")]
        case "custom_tool_call":
            return [Called(item["name"], {"input": item.get("input") or ""}, item.get("call_id") or "")]
        case "function_call_output" | "custom_tool_call_output":
            return [Returned(item.get("call_id") or "", _output(item.get("output")))]
    return []


def _output(output: Any) -> str:
    """Text, parts of content, or an object around either."""
    return "\n".join(texts(output.get("content") if isinstance(output, dict) else output))
