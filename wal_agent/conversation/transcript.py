"""Read what was said and done from a captured session file, whatever agent wrote it.

All agents keep JSON Lines that only grow; a compaction or a rewind adds lines and leaves the old ones. So the lines,
not the agent's view of them, are the whole conversation. One reader for all formats takes each line's role, time
and words by the names that the formats share; what nobody said (ids, signatures, instructions, reminders, hooks, copies
of requests) is left out. Lines are hostile: depth, number and length are bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import IO, Any, Final, Literal

import msgspec

from wal_agent.agents.session_files import well_formed

Role = Literal["user", "assistant", "tool", "system", ""]
ROLES: Final[tuple[Role, ...]] = ("user", "assistant", "tool", "system")
MAX_TEXT: Final = 20_000  # characters of one line's texts, its beginning and its end
MAX_LINE: Final = 8 << 20  # bytes; a longer line is passed over
_DEPTH: Final = 12
_ROLES: Final[Mapping[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "model": "assistant",
    "gemini": "assistant",
    "reasoning": "assistant",
    "tool": "tool",
    "toolResult": "tool",
    "tool_result": "tool",
    "function_call": "tool",
    "function_call_output": "tool",
    "custom_tool_call": "tool",
    "custom_tool_call_output": "tool",
    "user.message": "user",
    "assistant.message": "assistant",
    "tool.execution_start": "tool",
    "tool.execution_complete": "tool",
    "system.message": "system",
    "tool.call": "tool",
    "tool.result": "tool",
    "content.part": "assistant",
    "bashExecution": "tool",
    "compacted": "system",
    "system": "system",
    "developer": "system",
}
_NO_TALK_WORDS: Final = """
api-request api-request-shape api-request-blob atis-latch tools-used cost-state last-prompt queue-operation
file-history-snapshot session session_meta turn_context world_state model_change thinking_level_change event_msg
token_usage_record system.message agent.message.appended turn.prompt
"""  # types of lines that hold copies, settings or instructions
_NO_TALK: Final = frozenset(_NO_TALK_WORDS.split())
_SAID_WORDS: Final = """
content parts text thinking reasoning summary summaryContent message name tool toolName arguments input output result
toolCalls toolRequests thoughts state error part args
"""  # keys of a message that hold what was said, called or returned
_SAID: Final = frozenset(_SAID_WORDS.split())
_NO_TEXT_WORDS: Final = """
id uuid parentUuid parentId leafUuid logicalParentUuid sessionId session_id sessionID messageID messageId callID
call_id tool_use_id toolCallId type subtype role model modelID providerID timestamp version cwd gitBranch requestId
signature thoughtSignature encrypted_content hash sha256 replacement_history status stop_reason snapshot usage metadata
diffs time title displayName resultDisplay detailedContent toolTitle toolTelemetry turnId interactionId
"""  # keys inside of these that hold no words, or the words once more
_NO_TEXT: Final = frozenset(_NO_TEXT_WORDS.split())
_ASIDE: Final = re.compile(  # where what an agent adds to a message, and nobody said, begins
    r"<(system[-_]reminder|session_context|hook_context|environment_context|skills_instructions|user_instructions"
    r"|current_datetime|reminder|permissions instructions)\b[^>]{0,200}>"
)
_TEXTLIKE: Final = 400  # characters in a row without a blank that are no text: base64, hashes


class Line(msgspec.Struct, frozen=True):
    """A line of a session file. `at` and `end`: where it begins and ends, in bytes; `time`: since 1970, 0 where it says
    none."""

    at: int
    end: int
    role: Role
    time: float
    text: str


def read_lines(file: IO[bytes], start: int = 0) -> Iterator[Line]:
    """The lines with text from byte `start` on, which begins a line; the last one only if it is whole."""
    file.seek(start)
    at, roles = start, dict[str, Role]()
    while data := file.readline(MAX_LINE):
        if not data.endswith(b"\n"):
            if len(data) < MAX_LINE:
                return
            at += len(data)  # the rest of it is read as a line that is no JSON
            continue
        if (line := parse_line(data, at, roles)) is not None:
            yield line
        at += len(data)


def parse_lines(data: bytes) -> list[Line]:
    """As read_lines, of all lines of `data`, the last one too."""
    roles: dict[str, Role] = {}
    return [line for raw in data.splitlines(keepends=True) if (line := parse_line(raw, 0, roles)) is not None]


def parse_line(data: bytes, at: int = 0, roles: dict[str, Role] | None = None) -> Line | None:
    """What one line says; None where it is no text of the conversation. `roles`: of the messages before whose parts are
    lines of their own (OpenCode), by id; it grows."""
    given = _fields(data)
    if given is None or (isinstance(kind := given.get("type"), str) and kind in _NO_TALK):
        return None
    role, content = _said(given, {} if roles is None else roles)
    parts: list[str] = []
    with suppress(_Full):
        _collect(content, parts, [MAX_TEXT], 0)
    text = "\n".join(dict.fromkeys(parts))  # some agents keep a tool's output twice
    return Line(at, at + len(data), role, time_of(given), text) if text.strip() else None


def _said(line: dict[str, Any], roles: dict[str, Role]) -> tuple[Role, Any]:
    """Who speaks in a line, and the part of it that holds the words; None for none."""
    role, inner = role_of(line), _message(line)
    kind, id = inner.get("type"), line.get("message")
    if inner.get("role") == "developer":
        return "system", None
    if isinstance(id, str) and line.get("type") == "part":
        known = roles.get(id, "assistant")  # a message's own line stands before those of its parts
        return "tool" if kind == "tool" else known, _only_said(inner) if kind in ("text", "reasoning", "tool") else None
    if line.get("type") == "message" and isinstance(line.get("id"), str) and inner is line.get("data"):
        roles[line["id"]] = role
        return role, None
    if isinstance(change := line.get("$set"), dict):  # Gemini's history, set anew
        return "system", [_only_said(one) for one in change.get("messages") or () if isinstance(one, dict)]
    if kind == "queued_command":  # typed while Claude Code worked
        return "user", inner.get("prompt")
    if not role:  # a format that is not known, or none of the conversation
        return "", None if {"type", "sessionId"} & line.keys() else line
    return role, _only_said(inner)


def _message(line: dict[str, Any]) -> dict[str, Any]:
    return next(
        (p for key in ("message", "payload", "data", "event", "attachment") if isinstance(p := line.get(key), dict)),
        line,
    )


def _only_said(message: Mapping[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in message.items() if key in _SAID}


def words_of(data: bytes) -> str:
    """The words of one line's message alone, without what else the line says; "" where it has none."""
    given = _fields(data)
    if given is None:
        return ""
    inner = [
        *(part for key in ("message", "payload", "data", "event") if isinstance(part := given.get(key), dict)),
        given,
    ]
    content = next((part for one in inner for key in ("content", "parts", "part") if (part := one.get(key))), None)
    content = [content] if isinstance(content, dict) else content
    if isinstance(content, str):
        return content
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    texts = [b.get("text") for b in blocks if b.get("type", "text") in ("text", "output_text") and not b.get("thought")]
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _fields(data: bytes) -> dict[str, Any] | None:
    """The object of a line, with U+FFFD for halves of a surrogate pair; None where it is none."""
    try:
        given = json.loads(well_formed(data))
    except (ValueError, RecursionError):
        return None
    return given if isinstance(given, dict) else None


def role_of(line: Mapping[str, Any]) -> Role:
    """Who speaks: by the innermost role that the line names, results of tools before all."""
    inner = [
        line,
        *(part for key in ("message", "payload", "data", "event", "info") if isinstance(part := line.get(key), dict)),
    ]
    for part in reversed(inner):
        content = part.get("content") or part.get("parts")
        blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        if any(block.get("type") == "tool_result" or "functionResponse" in block for block in blocks):
            return "tool"
        for key in ("role", "type"):
            if isinstance(named := part.get(key), str) and named in _ROLES:
                return _ROLES[named]
    return ""


def time_of(line: Mapping[str, Any]) -> float:
    """The line's own time, in RFC 3339 or in milliseconds; 0 for none."""
    inner = line.get("message") if isinstance(line.get("message"), dict) else line
    for stamp in (line.get("timestamp"), line.get("time"), inner.get("timestamp") if isinstance(inner, dict) else None):
        value = stamp.get("created") if isinstance(stamp, dict) else stamp
        if isinstance(value, str):
            with suppress(ValueError):
                return max(0.0, datetime.fromisoformat(value).timestamp())
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e14:
            return value / 1000 if value > 1e11 else float(value)
    return 0.0


class _Full(Exception):
    """No room for more text."""


def _without_asides(text: str) -> str:
    """In one pass, since the text is hostile: a name that nothing closes is looked for once."""
    parts, at, unclosed = list[str](), 0, set[str]()
    for begun in _ASIDE.finditer(text):
        if begun.start() < at or begun[1] in unclosed:
            continue
        end = text.find(f"</{begun[1]}>", begun.end())
        if end < 0:
            unclosed.add(begun[1])
            continue
        parts.append(text[at : begun.start()])
        at = end + len(f"</{begun[1]}>")
    return "".join([*parts, text[at:]])


def _collect(value: Any, parts: list[str], room: list[int], depth: int) -> None:
    if depth > _DEPTH:
        return
    if isinstance(value, str):
        value = _without_asides(value[: MAX_TEXT * 2]) if "</" in value else value
        if is_text(value):
            parts.append(value[: room[0]])
            room[0] -= len(value)
            if room[0] <= 0:
                raise _Full
    elif isinstance(value, dict):
        for key, part in value.items():
            if key not in _NO_TEXT:
                _collect(part, parts, room, depth + 1)
    elif isinstance(value, list):
        for part in value:
            _collect(part, parts, room, depth + 1)


def is_text(value: str) -> bool:
    """Whether a string may be words: no long run without a blank, such as base64."""
    return bool(value.strip()) and (len(value) <= _TEXTLIKE or any(c.isspace() for c in value[:_TEXTLIKE]))
