"""The dialect of Qwen Code, OpenCode and others: OpenAI's `/v1/chat/completions`, streamed or not."""

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
