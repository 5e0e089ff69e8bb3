"""What the models' APIs refuse in a conversation: ids, roles, names, and the pairs of calls and results.

One pure checker for each API, over a request's body; each returns what the API would say with its 400, in its own
words, nothing for a valid one. A conversation is refused again with each later request, so a restored session with such
a fault never works again. The scripted models refuse by these rules, and a reconciled session is held against them.

Sources: the APIs' references (docs.anthropic.com/en/api/messages, and "tool use" there; platform.openai.com/docs
/api-reference/chat and /responses; ai.google.dev/api/generate-content, and "function calling" there) and the words of
their 400s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
Check = Callable[[Json], list[str]]

ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
OPENAI_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
CHAT_ID = 40  # characters
RESPONSES_ID = 64
_CALLS = {"function_call": "function call", "custom_tool_call": "custom tool call"}
_OUTPUTS = {f"{kind}_output": kind for kind in _CALLS}


def check_anthropic(body: Json) -> list[str]:
    """Messages. Neighbours of one role count as one message."""
    messages = _joined(_objects(body.get("messages")))
    faults: list[str] = []
    if messages and messages[0][0] != "user":
        faults.append('messages: first message must use the "user" role')
    asked: list[str] = []
    seen: set[str] = set()
    for n, (role, blocks) in enumerate(messages):
        at = f"messages.{n}"
        if role not in ("user", "assistant", "system"):
            faults.append(f"{at}.role: Input should be 'user' or 'assistant'")
        if role == "system":  # instructions and settings between the turns: they part no call from its result
            continue
        if not blocks and n + 1 < len(messages):
            faults.append(f"{at}: all messages must have non-empty content except for the optional final one")
        faults += _anthropic_blocks(at, blocks)
        faults += _anthropic_results(at, blocks, asked)
        asked = [str(b.get("id")) for b in blocks if b.get("type") == "tool_use"]
        if role == "user" and asked:
            faults.append(f"{at}: `tool_use` blocks can only be in `assistant` messages")
        faults += [f"{at}: `tool_use` ids must be unique: {id}" for id in asked if id in seen]
        seen |= {*asked}
    if asked and messages[-1][0] == "assistant":
        faults.append(_unanswered(f"messages.{len(messages) - 1}", asked))
    return faults


def _joined(messages: list[Json]) -> list[tuple[str, list[Json]]]:
    joined: list[tuple[str, list[Json]]] = []
    for message in messages:
        role, content = str(message.get("role")), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _objects(content)
        if joined and joined[-1][0] == role:
            joined[-1][1].extend(blocks)
        else:
            joined.append((role, [*blocks]))
    return joined


def _anthropic_blocks(at: str, blocks: list[Json]) -> Iterator[str]:
    for i, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "text" and not str(block.get("text") or ""):
            yield f"{at}: text content blocks must be non-empty"
        key = {"tool_use": "id", "tool_result": "tool_use_id"}.get(str(kind))
        if key and not ANTHROPIC_ID.fullmatch(str(block.get(key) or "")):
            yield f"{at}.content.{i}.{kind}.{key}: String should match pattern '^[a-zA-Z0-9_-]+$'"
        if kind == "tool_use" and not isinstance(block.get("input"), dict):
            yield f"{at}.content.{i}.tool_use.input: Input should be a valid dictionary"
        if kind == "tool_use" and not 0 < len(str(block.get("name") or "")) <= 200:
            yield f"{at}.content.{i}.tool_use.name: String should have 1 to 200 characters"


def _anthropic_results(at: str, blocks: list[Json], asked: list[str]) -> Iterator[str]:
    results = [str(b.get("tool_use_id")) for b in blocks if b.get("type") == "tool_result"]
    if missing := [id for id in asked if id not in results]:
        yield _unanswered(at, missing)
    for id in dict.fromkeys(results):
        if id not in asked:
            yield (
                f"{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must "
                "have a corresponding `tool_use` block in the previous message."
            )
        elif results.count(id) > 1:
            yield f"{at}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
    kinds = [b.get("type") == "tool_result" for b in blocks]
    if asked and sorted(kinds, reverse=True) != kinds:
        yield _unanswered(at, asked)  # results come first in their message


def _unanswered(at: str, ids: list[str]) -> str:
    return (
        f"{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(ids)}. Each "
        "`tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def check_chat(body: Json) -> list[str]:
    """OpenAI's Chat Completions."""
    faults: list[str] = []
    waiting: list[str] = []
    for n, message in enumerate(_objects(body.get("messages"))):
        at, role = f"messages[{n}]", message.get("role")
        if role == "tool":
            id = str(message.get("tool_call_id") or "")
            if id not in waiting:
                faults.append(
                    f"Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    f"'tool_calls'. ({at}, {id})"
                )
            else:
                waiting.remove(id)
            continue
        if waiting:
            faults.append(_unanswered_chat(waiting))
        waiting = []
        if role not in ("system", "developer", "user", "assistant"):
            faults.append(f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', ... ({at})")
        calls = _objects(message.get("tool_calls"))
        if "tool_calls" in message and not calls and message["tool_calls"] is not None:
            faults.append(f"Invalid '{at}.tool_calls': empty array. Expected an array with minimum length 1.")
        if message.get("content") is None and not calls:
            faults.append(f"Invalid value for 'content': expected a string, got null. ({at})")
        for i, call in enumerate(calls):
            waiting.append(id := str(call.get("id") or ""))
            faults += _openai_id(f"{at}.tool_calls[{i}].id", id, CHAT_ID)
            faults += _openai_call(f"{at}.tool_calls[{i}].function", _object(call.get("function")))
        if len({*waiting}) < len(waiting):
            faults.append(f"Duplicate value for 'tool_call_id' in {at}.")
    return [*faults, _unanswered_chat(waiting)] if waiting else faults


def _unanswered_chat(ids: list[str]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(ids)}"
    )


def _openai_id(at: str, id: str, most: int) -> Iterator[str]:
    if not id:
        yield f"Invalid '{at}': empty string. Expected a string with minimum length 1, but got an empty string instead."
    if len(id) > most:
        yield (
            f"Invalid '{at}': string too long. Expected a string with maximum length {most}, but got a string with "
            f"length {len(id)} instead."
        )


def _openai_call(at: str, call: Json) -> Iterator[str]:
    if not OPENAI_NAME.fullmatch(str(call.get("name") or "")):
        yield (
            f"Invalid '{at}.name': string does not match pattern. Expected a string that matches the pattern "
            "'^[a-zA-Z0-9_-]+$'."
        )
    if not isinstance(call.get("arguments"), str):
        yield f"Invalid type for '{at}.arguments': expected a string."


def check_responses(body: Json) -> list[str]:
    """OpenAI's Responses, without a stored response in front: every pair is in the input."""
    items = body.get("input")
    faults: list[str] = []
    asked: dict[str, str] = {}
    answered: set[str] = set()
    for n, item in enumerate(_objects(items)):
        at, kind = f"input[{n}]", str(item.get("type", "message"))
        id = str(item.get("call_id") or "")
        if kind == "message" and item.get("role") not in ("system", "developer", "user", "assistant"):
            faults.append(f"Invalid value: '{item.get('role')}'. ({at}.role)")
        if kind in _CALLS:
            faults += _openai_id(f"{at}.call_id", id, RESPONSES_ID)
            if kind == "function_call":
                faults += _openai_call(at, item)
            if id in asked:
                faults.append(f"Duplicate item found with call_id {id}.")
            asked[id] = kind
        elif kind in _OUTPUTS:
            if asked.get(id) != _OUTPUTS[kind]:
                faults.append(f"No tool call found for {_CALLS[_OUTPUTS[kind]]} output with call_id {id}.")
            if id in answered:
                faults.append(f"Duplicate item found with call_id {id}.")
            answered.add(id)
    return faults + [
        f"No tool output found for {_CALLS[kind]} {id}." for id, kind in asked.items() if id not in answered
    ]


def check_gemini(body: Json) -> list[str]:
    """Gemini's generateContent. Neighbours of one role count as one turn."""
    turns: list[tuple[str, list[Json]]] = []
    faults: list[str] = []
    for n, content in enumerate(_objects(body.get("contents"))):
        role, parts = str(content.get("role", "user")), _objects(content.get("parts"))
        if role not in ("user", "model", "function"):
            faults.append(f"Please use a valid role: user, model. (contents[{n}])")
        if not parts:
            faults.append(f"* GenerateContentRequest.contents[{n}].parts: contents.parts must not be empty.")
        role = "model" if role == "model" else "user"
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(parts)
        else:
            turns.append((role, [*parts]))
    asked: list[Json] = []
    for n, (role, parts) in enumerate(turns):
        calls = [_object(p["functionCall"]) for p in parts if "functionCall" in p]
        results = [_object(p["functionResponse"]) for p in parts if "functionResponse" in p]
        if results and not asked:
            faults.append(
                "Please ensure that function response turn comes immediately after a function call turn. "
                f"({_names(results)})"
            )
        elif len(asked) != len(results):
            faults.append(
                "Please ensure that the number of function response parts is equal to the number of function call "
                f"parts of the function call turn. ({_names(asked)}; {_names(results)})"
            )
        elif sorted(str(c.get("name")) for c in asked) != sorted(str(r.get("name")) for r in results):
            faults.append(f"Function response names do not match the function call names. ({_names(asked)})")
        if calls and (n == 0 or role != "model"):
            faults.append(
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                f"response turn. ({_names(calls)})"
            )
        faults += [
            f"Invalid function name: {json.dumps(one.get('name'))}. Must start with a letter or an underscore."
            for one in (*calls, *results)
            if not GEMINI_NAME.fullmatch(str(one.get("name") or ""))
        ]
        faults += _gemini_ids(asked, results)
        asked = calls
    if asked:
        faults.append(f"Please ensure that function call turn is followed by function responses. ({_names(asked)})")
    return faults


def _gemini_ids(asked: list[Json], results: list[Json]) -> Iterator[str]:
    """Ids are optional; where both have them they match."""
    known = [c["id"] for c in asked if c.get("id")]
    if len(known) == len(asked) and known:
        for id in (r["id"] for r in results if r.get("id")):
            if id not in known:
                yield f"Function response id {id} does not match any function call id."


def _names(parts: list[Json]) -> str:
    return ", ".join(str(p.get("id") or p.get("name")) for p in parts) or "none"


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
