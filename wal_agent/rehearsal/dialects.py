"""The model APIs that the scripted model speaks.

`Anthropic` (Claude Code): `/v1/messages`, streamed or not, and `count_tokens` beside it. `Gemini` (Gemini CLI):
`/v1beta/models/M:streamGenerateContent?alt=sse`, and `:generateContent` beside it. OpenAI's two: Chat Completions
(`Chat`: Qwen, OpenCode, pi, Copilot) and Responses (`Responses`: Codex). Each refuses a conversation that its API would
refuse (`api_rules`).
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.api_rules import check_anthropic, check_chat, check_gemini, check_responses
from wal_agent.rehearsal.model import Called, HistoryText, Json, Model, Part, Reply, Returned, Turn, json_reply, sse

_anthropic_ids = itertools.count(1)

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}

_FREEFORM = {"apply_patch", "exec"}


class Anthropic:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.endswith("/messages") and bool(body.get("tools"))

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        if turn.status != 200:
            return _anthropic_error(turn.status, "scripted")
        return _anthropic_answer(_anthropic_blocks(turn), body, turn.tokens)

    def refuse(self, path: str, body: Json) -> Reply | None:
        faults = check_anthropic(body) if path.endswith("/messages") else []
        return _anthropic_error(400, faults[0]) if faults else None

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "GET" and plain.endswith("/models"):
            models = [{"id": "scripted", "type": "model", "display_name": "scripted"}]
            return json_reply({"data": models, "has_more": False})
        if method == "POST" and plain.endswith("/count_tokens"):
            return json_reply({"input_tokens": 100})
        if method == "POST" and plain.endswith("/messages"):
            return _anthropic_answer([{"type": "text", "text": "ok"}], body)
        return _anthropic_error(404, "no such endpoint")

    def history(self, body: Json) -> list[Part]:
        history: list[Part] = [HistoryText("system", text) for text in texts(body.get("system"))]
        for message in body.get("messages") or []:
            history += _anthropic_message(message)
        return history

    def last(self, body: Json) -> str:
        message = (body.get("messages") or [{}])[-1]
        return "\n".join(part.text for part in _anthropic_message(message) if not isinstance(part, Called))


def _anthropic_id(prefix: str) -> str:
    return f"{prefix}_{next(_anthropic_ids):04d}{os.urandom(8).hex()}"


def _anthropic_error(status: int, message: str) -> Reply:
    kind = _ERRORS.get(status, "api_error")
    return json_reply({"type": "error", "error": {"type": kind, "message": message}}, status)


def _anthropic_blocks(turn: Turn) -> list[Json]:
    said: list[Json] = [{"type": "text", "text": turn.text}] if turn.text else []
    return said + [
        {"type": "tool_use", "id": _anthropic_id("toolu"), "name": name, "input": args} for name, args in turn.calls
    ]


def _anthropic_answer(blocks: list[Json], body: Json, tokens: int = 100) -> Reply:
    stop = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    message = {
        "id": _anthropic_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model") or "scripted",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens,
            "output_tokens": 10,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }
    return _anthropic_stream(message) if body.get("stream") else json_reply(message)


def _anthropic_stream(message: Json) -> Reply:
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


def _anthropic_message(message: Json) -> list[Part]:
    role = "model" if message.get("role") == "assistant" else str(message.get("role"))
    content = message.get("content") or []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [part for block in blocks for part in _anthropic_block(role, block)]


def _anthropic_block(role: str, block: Json) -> list[Part]:
    if block.get("type") == "tool_use":
        return [Called(block["name"], block.get("input") or {}, block.get("id") or "")]
    if block.get("type") == "tool_result":
        return [Returned(block.get("tool_use_id") or "", "\n".join(texts(block.get("content"))))]
    return [HistoryText(role, block["text"])] if isinstance(block.get("text"), str) else []


class Gemini:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.lower().endswith("generatecontent") and bool(body.get("tools"))

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        if turn.status != 200:
            return _gemini_error(turn.status, "scripted", "X")
        return _gemini_answer(_gemini_parts(turn), path)

    def refuse(self, path: str, body: Json) -> Reply | None:
        faults = check_gemini(body) if path.lower().endswith("generatecontent") else []
        return _gemini_error(400, faults[0], "INVALID_ARGUMENT") if faults else None

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "GET":
            return json_reply({"models": []})
        if plain.endswith("countTokens"):
            return json_reply({"totalTokens": 100})
        if not plain.lower().endswith("generatecontent"):
            return json_reply({})
        return _gemini_answer([{"text": _side_answer(body)}], path)

    def history(self, body: Json) -> list[Part]:
        history: list[Part] = [
            HistoryText("system", text) for text in _gemini_texts(body.get("systemInstruction") or {})
        ]
        for content in body.get("contents") or []:
            for part in content.get("parts") or []:
                history += _gemini_part(str(content.get("role")), part)
        return history

    def last(self, body: Json) -> str:
        return json.dumps((body.get("contents") or [{}])[-1], ensure_ascii=False)


class GeminiModel(Model):
    """A model with this dialect, and what Gemini CLI needs to ask it."""

    def __init__(
        self,
        turns: Sequence[Turn] = (),
        port: int = 0,
        requests: list[Json] | None = None,
        log: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(Gemini(), list(turns), port, [] if requests is None else requests, log, host)

    def __enter__(self) -> GeminiModel:
        self.start()
        return self

    @property
    def env(self) -> dict[str, str]:
        return {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": self.url}


def _gemini_error(code: int, message: str, status: str) -> Reply:
    return json_reply({"error": {"code": code, "message": message, "status": status}}, code)


def _gemini_parts(turn: Turn) -> list[Json]:
    said: list[Json] = [{"text": turn.text}] if turn.text else []
    return said + [{"functionCall": {"name": name, "args": args}} for name, args in turn.calls]


def _gemini_answer(parts: list[Json], path: str) -> Reply:
    answer = {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
        "modelVersion": "scripted",
    }
    if "alt=sse" not in path:
        return json_reply(answer)
    return Reply(b"data: " + json.dumps(answer).encode() + b"\r\n\r\n", "text/event-stream")


def _gemini_texts(content: Json) -> list[str]:
    return [part["text"] for part in content.get("parts") or [] if isinstance(part.get("text"), str)]


def _gemini_part(role: str, part: Json) -> list[Part]:
    if call := part.get("functionCall"):
        return [Called(call["name"], call.get("args") or {}, call.get("id") or "")]
    if response := part.get("functionResponse"):
        return [Returned(response.get("id") or "", json.dumps(response.get("response"), ensure_ascii=False))]
    return [HistoryText(role, part["text"])] if isinstance(part.get("text"), str) else []


def _side_answer(body: Json) -> str:
    config = body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    return json.dumps(_dummy(schema)) if schema else "ok"


def _dummy(schema: Json) -> Any:
    kind = str(schema.get("type", "string")).lower()
    if schema.get("enum"):
        return schema["enum"][0]
    if kind == "object":
        return {k: _dummy(v) for k, v in schema.get("properties", {}).items()}
    return {"array": [], "integer": 1, "number": 1, "boolean": False}.get(kind, "x")


_ids = itertools.count(1)


class Chat:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.endswith("/chat/completions") and bool(body.get("tools"))

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        return _chat_answer(turn, body) if turn.status == 200 else error(turn.status, "scripted")

    def refuse(self, path: str, body: Json) -> Reply | None:
        faults = check_chat(body) if path.endswith("/chat/completions") else []
        return error(400, faults[0]) if faults else None

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "POST" and plain.endswith("/chat/completions"):
            return _chat_answer(Turn(text="ok", tokens=100 + len(json.dumps(body)) // 4), body)
        return beside(method, plain)

    def history(self, body: Json) -> list[Part]:
        return [part for message in body.get("messages") or [] for part in _message(message)]

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


def unanswered(history: list[Part]) -> str:
    """What came after the model's last word. Results of parallel calls are messages of their own here."""
    new: list[str] = []
    for part in reversed(history):
        if isinstance(part, Called) or (isinstance(part, HistoryText) and part.role == "model"):
            break
        if isinstance(part, Returned) or part.role == "user":
            new.insert(0, part.text)
    return "\n".join(new)


def _chat_answer(turn: Turn, body: Json) -> Reply:
    base = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": body.get("model") or "scripted"}
    usage = {"prompt_tokens": turn.tokens, "completion_tokens": 10, "total_tokens": turn.tokens + 10}
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


def _message(message: Json) -> list[Part]:
    role = str(message.get("role"))
    said = texts(message.get("content"))
    if role == "tool":
        return [Returned(message.get("tool_call_id") or "", "\n".join(said))]
    word = {"assistant": "model", "developer": "system"}.get(role, role)
    history: list[Part] = [HistoryText(word, text) for text in said if text]
    for call in message.get("tool_calls") or []:
        function = call["function"]
        history.append(Called(function["name"], arguments(function.get("arguments") or ""), call.get("id") or ""))
    return history


class Responses:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.endswith("/responses") and _has_tools(body) and not _is_title(body)

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        return _answer(turn, body) if turn.status == 200 else error(turn.status, "scripted")

    def refuse(self, path: str, body: Json) -> Reply | None:
        faults = check_responses(body) if path.endswith("/responses") else []
        return error(400, faults[0]) if faults else None

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "POST" and plain.endswith("/responses"):
            return _answer(Turn(text="ok"), body)
        return beside(method, plain)

    def history(self, body: Json) -> list[Part]:
        history: list[Part] = [HistoryText("system", text) for text in texts(body.get("instructions"))]
        for item in _items(body):
            history += _response_item(item)
        return history

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
    end = {"status": "completed", "output": items, "end_turn": not turn.calls, "usage": _usage(turn.tokens)}
    events.append({"type": "response.completed", "response": {**response, **end}})
    return sse([(event["type"], {**event, "sequence_number": n}) for n, event in enumerate(events)])


def _usage(tokens: int) -> Json:
    return {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + 10,
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


def _response_item(item: Json) -> list[Part]:
    match item.get("type", "message"):
        case "message":
            role = str(item.get("role"))
            word = {"assistant": "model", "developer": "system"}.get(role, role)
            return [HistoryText(word, text) for text in texts(item.get("content"))]
        case "agent_message":  # from another agent; its payload is for the API alone
            return [HistoryText("user", text) for text in texts(item.get("content"))]
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
