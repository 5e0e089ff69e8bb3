"""OpenAI's two dialects: Chat Completions (`Chat`: Qwen, OpenCode, pi, Copilot) and Responses (`Responses`: Codex)."""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any

from wal_agent.rehearsal.model import Called, Heard, Json, Reply, Returned, Said, Turn, json_reply, sse

_ids = itertools.count(1)


class Chat:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.endswith("/chat/completions") and bool(body.get("tools"))

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        return _chat_answer(turn, body) if turn.status == 200 else error(turn.status, "scripted")

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "POST" and plain.endswith("/chat/completions"):
            return _chat_answer(Turn(text="ok"), body)
        return beside(method, plain)

    def history(self, body: Json) -> list[Heard]:
        return [heard for message in body.get("messages") or [] for heard in _message(message)]

    def last(self, body: Json) -> str:
        return unanswered(self.history(body))


def new_id(prefix: str) -> str:
    return f"{prefix}{next(_ids):04d}{os.urandom(8).hex()}"


def error(status: int, message: str) -> Reply:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return json_reply({"error": {"message": message, "type": kind, "param": None, "code": None}}, status)


def beside(method: str, path: str) -> Reply:
    """What OpenAI's APIs answer beside the model's words."""
    if method == "GET" and path.endswith("/models"):
        return json_reply({"object": "list", "data": [{"id": "scripted", "object": "model"}], "models": []})
    return error(404, "no such endpoint")


def texts(content: Any) -> list[str]:
    """Of a content that is a string or a list of parts."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if isinstance(part.get("text"), str)]


def arguments(text: str) -> Json:
    """A call's input; `{"arguments": text}` where that is no JSON object."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def unanswered(history: list[Heard]) -> str:
    """What came after the model's last word. Results of parallel calls are messages of their own here."""
    new: list[str] = []
    for heard in reversed(history):
        if isinstance(heard, Called) or (isinstance(heard, Said) and heard.role == "model"):
            break
        if isinstance(heard, Returned) or heard.role == "user":
            new.insert(0, heard.text)
    return "\n".join(new)


def _chat_answer(turn: Turn, body: Json) -> Reply:
    base = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": body.get("model") or "scripted"}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    calls = [_chat_call(name, args) for name, args in turn.calls]
    finish = "tool_calls" if calls else "stop"
    if not body.get("stream"):
        message: Json = {"role": "assistant", "content": turn.text or None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return json_reply({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[Json] = [{"role": "assistant", "content": turn.text}]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(calls)]
    choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    chunks: list[Json] = [{"choices": [choice]} for choice in choices]
    chunks.append({"choices": [], "usage": usage})
    stream = sse([("", {**base, "object": "chat.completion.chunk", **chunk}) for chunk in chunks])
    return Reply(stream.data + b"data: [DONE]\n\n", stream.kind)


def _chat_call(name: str, args: Json) -> Json:
    return {"id": new_id("call_"), "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}


def _message(message: Json) -> list[Heard]:
    role = str(message.get("role"))
    said = texts(message.get("content"))
    if role == "tool":
        return [Returned(message.get("tool_call_id") or "", "\n".join(said))]
    word = {"assistant": "model", "developer": "system"}.get(role, role)
    heard: list[Heard] = [Said(word, text) for text in said if text]
    for call in message.get("tool_calls") or []:
        function = call["function"]
        heard.append(Called(function["name"], arguments(function.get("arguments") or ""), call.get("id") or ""))
    return heard


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
