"""The dialect of Gemini CLI: `/v1beta/models/M:streamGenerateContent?alt=sse`, and `:generateContent` beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.rehearsal.model import Called, Heard, Json, Model, Reply, Returned, Said, Turn, json_reply


class Gemini:
    def is_turn(self, path: str, body: Json) -> bool:
        return path.lower().endswith("generatecontent") and bool(body.get("tools"))

    def turn(self, turn: Turn, path: str, body: Json) -> Reply:
        if turn.status != 200:
            return json_reply({"error": {"code": turn.status, "message": "scripted", "status": "X"}}, turn.status)
        return _answer(_parts(turn), path)

    def other(self, method: str, path: str, body: Json) -> Reply:
        plain = path.partition("?")[0]
        if method == "GET":
            return json_reply({"models": []})
        if plain.endswith("countTokens"):
            return json_reply({"totalTokens": 100})
        if not plain.lower().endswith("generatecontent"):
            return json_reply({})
        return _answer([{"text": _side_answer(body)}], path)

    def history(self, body: Json) -> list[Heard]:
        heard: list[Heard] = [Said("system", text) for text in _texts(body.get("systemInstruction") or {})]
        for content in body.get("contents") or []:
            for part in content.get("parts") or []:
                heard += _heard(str(content.get("role")), part)
        return heard

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


def _parts(turn: Turn) -> list[Json]:
    said: list[Json] = [{"text": turn.text}] if turn.text else []
    return said + [{"functionCall": {"name": name, "args": args}} for name, args in turn.calls]


def _answer(parts: list[Json], path: str) -> Reply:
    answer = {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110},
        "modelVersion": "scripted",
    }
    if "alt=sse" not in path:
        return json_reply(answer)
    return Reply(b"data: " + json.dumps(answer).encode() + b"\r\n\r\n", "text/event-stream")


def _texts(content: Json) -> list[str]:
    return [part["text"] for part in content.get("parts") or [] if isinstance(part.get("text"), str)]


def _heard(role: str, part: Json) -> list[Heard]:
    if call := part.get("functionCall"):
        return [Called(call["name"], call.get("args") or {}, call.get("id") or "")]
    if response := part.get("functionResponse"):
        return [Returned(response.get("id") or "", json.dumps(response.get("response"), ensure_ascii=False))]
    return [Said(role, part["text"])] if isinstance(part.get("text"), str) else []


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
