"""Rewrite a Codex rollout that rests: a compact form for its first turns, or a return to an earlier message.

Append-only: a `compacted` record, as Codex itself writes it, holds the whole history that the model gets from then on.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.agents.codex.session import CALLS, EXITED, OUTPUTS, is_prompt, load_rollout, model_payload, output_text
from wal_agent.agents.session_files import (
    EPOCH,
    Json,
    as_object,
    as_objects,
    as_text,
    encode_json,
    records,
    seconds_of,
    well_formed,
)

TITLE = "[wal-agent] "
_EXIT_CODE = re.compile(re.escape(EXITED) + r" (-?\d+)")
_NOT_TYPED = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md", TITLE)


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(item, time) for item, time in _history(main))


def _history(main: bytes) -> list[tuple[Json, str]]:
    """Return the items that the model gets, each with the time of its record."""
    shown: list[tuple[Json, str]] = []
    for record, _ in records(main):
        if record is None:
            continue
        time = as_text(record.get("timestamp"))
        if item := model_payload(record):
            shown.append((item, time))
        elif record.get("type") == "compacted":
            times = {_key(item): at for item, at in shown}
            given = as_objects(as_object(record.get("payload")).get("replacement_history"))
            shown = [(item, times.get(_key(item), time)) for item in given]
    return shown


def _key(item: Json) -> str:
    return as_text(item.get("id")) or hashlib.sha256(encode_json(item)).hexdigest()


def _unit(item: Json, time: str) -> Unit:
    kind, call = item.get("type"), as_text(item.get("call_id"))
    text = output_text(item.get("content")) if kind == "message" else ""
    ours = text.startswith(TITLE) and item.get("role") == "user"
    begins = kind == "message" and is_prompt(item) and not text.lstrip().startswith(_NOT_TYPED)
    return Unit(
        key=_key(item),
        data=encode_json({"timestamp": time, "type": "response_item", "payload": item}) + b"\n",
        prompt=text if begins else "",
        time=seconds_of(time),
        asks=(RequestedCall(call, as_text(item.get("name")), _input(item)),) if kind in CALLS else (),
        answers=(call,) if kind in OUTPUTS else (),
        failed=(call,) if kind in OUTPUTS and _failed(output_text(item.get("output"))) else (),
        summary=text if ours else "",
    )


def _input(item: Json) -> bytes:
    """Return a call's arguments, as one object: a custom tool has plain text."""
    arguments = item.get("arguments")
    return arguments.encode() if isinstance(arguments, str) else encode_json({"input": as_text(item.get("input"))})


def _failed(output: str) -> bool:
    code = _EXIT_CODE.search(output[:400])
    return code is not None and code[1] != "0"


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    shown, read = [item for item, _ in _history(main)], load_rollout(main)
    form: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    payload = {"message": text, "replacement_history": [*shown[:first], form, *shown[last:]]}
    record = {
        "timestamp": read.time or EPOCH,
        "ordinal": read.ordinal + 1,
        "type": "compacted",
        "payload": payload,
    }
    return well_formed(encode_json(record)) + b"\n"
