"""Records of a rollout, and a rollout taken apart: which calls it has, and what it tells of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wal_agent.agents.session_files import Json, Line, records, whole_lines

OUTPUTS = ("function_call_output", "custom_tool_call_output")
CALLS = ("function_call", "custom_tool_call")
EXITED = "Process exited with code"
RUNS_ON = "Process running with session ID"  # at the head of a command's output that has yielded
_KILLED = 128 + 9


@dataclass(slots=True)
class Rollout:
    """`calls`: each call of the model by its id, in order; `items`: what is told of ended calls, nested ones too;
    `last_turn`: where the records of the last turn begin."""

    lines: list[Line] = field(default_factory=list)
    headed: bool = False
    junk: int = 0
    ordinal: int = -1
    time: str = ""
    calls: dict[str, tuple[int, Json]] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    items: dict[str, tuple[int, Json]] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)  # of outputs and of people's words
    last_turn: int = 0
    messages: int = 0
    asked: bool = False  # people's words stand in it
    last_said: Json = field(default_factory=dict)


def load_rollout(main: bytes) -> Rollout:
    """Whole lines; a torn tail is cut, junk is counted and left out."""
    read = Rollout()
    good = whole_lines(main)
    for record, line in records(good):
        if record is None or not isinstance(record.get("payload"), dict):
            read.junk += 1
            continue
        _apply(read, record)
        read.lines.append(line)
    if len(main) > len(good) and main[len(good) :].strip(b"\0 \t\r"):
        read.junk += 1
    return read


def _apply(read: Rollout, record: Json) -> None:
    at = len(read.lines)
    payload = record["payload"]
    if isinstance(record.get("ordinal"), int):
        read.ordinal = max(read.ordinal, record["ordinal"])
    read.time = max(read.time, record["timestamp"]) if isinstance(record.get("timestamp"), str) else read.time
    if record.get("type") == "session_meta" and at == 0:
        read.headed = isinstance(payload.get("id"), str)
    if record.get("type") == "event_msg" and payload.get("type") == "task_started":
        read.last_turn = at
    item = completed_item(record)
    if isinstance(item.get("id"), str):
        read.items[item["id"]] = (at, item)
    said = model_payload(record)
    id = said.get("call_id")
    if said.get("type") in CALLS and isinstance(id, str):
        read.calls.setdefault(id, (at, said))
    elif said.get("type") in OUTPUTS and isinstance(id, str):
        read.outputs.setdefault(id, at)
        read.texts.append(output_text(said.get("output")))
    elif said.get("type") == "message":
        read.messages += said.get("role") == "assistant" or is_prompt(said)
        read.asked = read.asked or is_prompt(said)
        if said.get("role") == "user":
            read.texts.append(output_text(said.get("content")))
    if said:
        read.last_said = said


def ended_by_itself(exit_code: int) -> bool:
    """Codex ends a command with its turn; then it writes -1, or the kill's code if it heard of that first."""
    return exit_code >= 0 and exit_code != _KILLED


def model_payload(record: Json) -> Json:
    """What goes to the model; empty for another record."""
    payload = record.get("payload")
    return payload if record.get("type") == "response_item" and isinstance(payload, dict) else {}


def completed_item(record: Json) -> Json:
    """What `item_completed` tells; empty for another record."""
    payload = record.get("payload")
    if record.get("type") != "event_msg" or not isinstance(payload, dict) or payload.get("type") != "item_completed":
        return {}
    item = payload.get("item")
    return item if isinstance(item, dict) else {}


def is_prompt(message: Json) -> bool:
    """A person's words, not the context that Codex puts before them."""
    return message.get("role") == "user" and not output_text(message.get("content")).startswith("<environment_context>")


def output_text(output: Any) -> str:
    """The text of an output or of a message's content: text, or parts."""
    if isinstance(output, list):
        return "\n".join(output_text(part.get("text")) for part in output if isinstance(part, dict))
    return output if isinstance(output, str) else ""
