"""Sessions of any size in each agent's own form, for `bench.memory`: rounds of a prompt, an answer, a call, its result.

A round has 4 KB of answer, 2 KB of a call's input and 6 KB of its result, so that whatever a recovery keeps of each of
them shows. Every tenth round begins with a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]

CODEX = "019a0000-0000-7000-8000-000000000000"
PLAIN = "aaaaaaaa-0000-4000-8000-000000000000"
IDS = {"codex": CODEX, "opencode": "ses_bench"}
SAID, INPUT, RESULT = "x" * 4_000, "y" * 2_000, "z" * 6_000
TIME = "2026-01-01T00:00:00.000Z"


def _gemini(n: int, prompt: bool, _: str) -> Iterator[Json]:
    if n == 0:
        yield {"sessionId": PLAIN, "projectHash": "0" * 64, "startTime": TIME, "lastUpdated": TIME, "kind": "main"}
    if prompt:
        yield {"id": f"u{n}", "timestamp": TIME, "type": "user", "content": [{"text": "go on"}]}
    call = {"id": f"c{n}", "name": "run_shell_command", "args": {"command": INPUT}, "status": "success"}
    result = [{"functionResponse": {"id": f"c{n}", "name": "run_shell_command", "response": {"output": RESULT}}}]
    yield {
        "id": f"m{n}",
        "timestamp": TIME,
        "type": "gemini",
        "content": SAID,
        "toolCalls": [call | {"result": result}],
    }


def _claude(n: int, prompt: bool, workspace: str) -> Iterator[Json]:
    about = {"isSidechain": False, "timestamp": TIME, "cwd": workspace, "sessionId": PLAIN}
    before = f"r{n - 1}" if n else None
    if prompt:
        yield {
            "parentUuid": before,
            "type": "user",
            "uuid": f"u{n}",
            "message": {"role": "user", "content": "go"},
            **about,
        }
        before = f"u{n}"
    blocks = [
        {"type": "text", "text": SAID},
        {"type": "tool_use", "id": f"c{n}", "name": "Bash", "input": {"command": INPUT}},
    ]
    said = {"id": f"msg{n}", "role": "assistant", "model": "m", "content": blocks}
    yield {"parentUuid": before, "type": "assistant", "uuid": f"m{n}", "message": said, **about}
    told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": RESULT}]}
    yield {"parentUuid": f"m{n}", "type": "user", "uuid": f"r{n}", "message": told, **about}


def _codex(n: int, prompt: bool, workspace: str) -> Iterator[Json]:
    def item(payload: Json) -> Json:
        return {"timestamp": TIME, "ordinal": n, "type": "response_item", "payload": payload}

    if n == 0:
        about = {"id": CODEX, "session_id": CODEX, "timestamp": TIME, "cwd": workspace, "originator": "codex_exec"}
        yield {"timestamp": TIME, "ordinal": 0, "type": "session_meta", "payload": about}
    if prompt:
        yield item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go on"}]})
    yield item({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SAID}]})
    arguments = json.dumps({"cmd": INPUT})
    yield item({"type": "function_call", "name": "exec_command", "arguments": arguments, "call_id": f"c{n}"})
    ended: Json = {"type": "CommandExecution", "id": f"c{n}", "source": "agent", "command": ["sh", "-c", INPUT]}
    ended |= {"status": "completed", "exit_code": 0, "aggregated_output": RESULT}
    yield {"timestamp": TIME, "ordinal": n, "type": "event_msg", "payload": {"type": "item_completed", "item": ended}}
    yield item({"type": "function_call_output", "call_id": f"c{n}", "output": RESULT})


def _opencode(n: int, prompt: bool, workspace: str) -> Iterator[Json]:
    session = IDS["opencode"]
    of: Json = {"session": session, "created": n}
    if n == 0:
        row = {"slug": "s", "title": "t", "version": "1", "directory": workspace, "time_created": 1, "time_updated": 1}
        yield {"type": "session", "id": session, "row": row}
    if prompt:
        yield {"type": "message", "id": f"msg_{n:012x}u", **of, "data": {"role": "user"}}
        yield {
            "type": "part",
            "id": f"prt_{n:012x}u",
            "message": f"msg_{n:012x}u",
            **of,
            "data": {"type": "text", "text": "go"},
        }
    message = f"msg_{n:012x}v"
    yield {"type": "message", "id": message, **of, "data": {"role": "assistant"}}
    yield {"type": "part", "id": f"prt_{n:012x}v", "message": message, **of, "data": {"type": "text", "text": SAID}}
    state = {"status": "completed", "input": {"command": INPUT}, "output": RESULT, "title": "", "metadata": {}}
    call = {"type": "tool", "tool": "bash", "callID": f"c{n}", "state": state | {"time": {"start": n, "end": n}}}
    yield {"type": "part", "id": f"prt_{n:012x}w", "message": message, **of, "data": call}


def _qwen(n: int, prompt: bool, workspace: str) -> Iterator[Json]:
    about = {"sessionId": PLAIN, "timestamp": TIME, "cwd": workspace, "version": "0.15.10"}
    before = f"r{n - 1}" if n else None
    if prompt:
        told = {"role": "user", "parts": [{"text": "go on"}]}
        yield {"uuid": f"u{n}", "parentUuid": before, "type": "user", "message": told, **about}
        before = f"u{n}"
    call = {"functionCall": {"id": f"c{n}", "name": "run_shell_command", "args": {"command": INPUT}}}
    said = {"role": "model", "parts": [{"text": SAID}, call]}
    yield {"uuid": f"m{n}", "parentUuid": before, "type": "assistant", "message": said, **about}
    part = {"functionResponse": {"id": f"c{n}", "name": "run_shell_command", "response": {"output": RESULT}}}
    result = {"role": "user", "parts": [part]}
    yield {"uuid": f"r{n}", "parentUuid": f"m{n}", "type": "tool_result", "message": result, **about}


def _pi(n: int, prompt: bool, workspace: str) -> Iterator[Json]:
    def entry(id: str, parent: str | None, message: Json) -> Json:
        return {"type": "message", "id": id, "parentId": parent, "timestamp": TIME, "message": message}

    before = f"r{n - 1}" if n else None
    if n == 0:
        yield {"type": "session", "version": 3, "id": PLAIN, "timestamp": TIME, "cwd": workspace}
    if prompt:
        yield entry(f"u{n}", before, {"role": "user", "content": [{"type": "text", "text": "go on"}]})
        before = f"u{n}"
    call = {"type": "toolCall", "id": f"c{n}", "name": "bash", "arguments": {"command": INPUT}}
    said = {"role": "assistant", "content": [{"type": "text", "text": SAID}, call], "stopReason": "toolUse"}
    yield entry(f"m{n}", before, said)
    told = {
        "role": "toolResult",
        "toolCallId": f"c{n}",
        "toolName": "bash",
        "content": [{"type": "text", "text": RESULT}],
    }
    yield entry(f"r{n}", f"m{n}", told)


def _copilot(n: int, prompt: bool, workspace: str) -> Iterator[Json]:
    def event(id: str, kind: str, data: Json) -> Json:
        return {"type": kind, "data": data, "id": id, "timestamp": TIME, "parentId": None}

    if n == 0:
        yield event("head", "session.start", {"sessionId": PLAIN, "version": 1, "context": {"cwd": workspace}})
    if prompt:
        yield event(f"u{n}", "user.message", {"content": "go on"})
    call = {"toolCallId": f"c{n}", "name": "bash", "arguments": {"command": INPUT}, "type": "function"}
    yield event(f"m{n}", "assistant.message", {"messageId": f"m{n}", "content": SAID, "toolRequests": [call]})
    yield event(
        f"r{n}", "tool.execution_complete", {"toolCallId": f"c{n}", "success": True, "result": {"content": RESULT}}
    )


ROUNDS: dict[str, Callable[[int, bool, str], Iterator[Json]]] = {
    "gemini": _gemini,
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "qwen": _qwen,
    "pi": _pi,
    "copilot": _copilot,
}


def session_id(agent: str) -> str:
    return IDS.get(agent, PLAIN)


def write_session(agent: str, path: Path, size: int, workspace: str) -> None:
    """A session of `agent` with at least `size` bytes, made in `workspace`."""
    with path.open("wb") as file:
        n = 0
        while file.tell() < size:
            for record in ROUNDS[agent](n, n % 10 == 0, workspace):
                file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
            n += 1
