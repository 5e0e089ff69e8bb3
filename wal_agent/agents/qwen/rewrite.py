"""Rewrite a Qwen Code session that rests: a compact form for its first turns, or a return to an earlier message.

Append-only, as one `chat_compression` record, which Qwen Code itself writes behind a compression: at a resume its
`compressedHistory` is the whole conversation in front of it. The keys and times of the messages that stay are beside
it, where Qwen does not look, so that they are the same messages in each version.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.agents.qwen.session import Chat, load_chat
from wal_agent.agents.session_files import EPOCH, Json, as_object, as_objects, as_text, encode_json, seconds_of

KEPT = "walAgentKept"
OURS = "wal-agent "  # begins the keys of what wal-agent says
_READ = "I have read it."
_KINDS = ("user", "assistant", "tool_result")
_APART = ("realtime_message", "notification", "mid_turn_user_message")  # subtypes that begin no turn


class _Message(msgspec.Struct, frozen=True):
    """A message as the model gets it, in Qwen's form of one (`content`)."""

    key: str
    time: str
    content: Json
    begins: bool  # where it is a user's own words, they begin a turn


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(message) for message in visible(load_chat(main)))


def visible(chat: Chat) -> list[_Message]:
    """Return what the model gets, in its order."""
    found: list[_Message] = []
    for record in chat.live():
        value = record.value
        if value.get("subtype") == "chat_compression":
            history = as_object(value.get("systemPayload")).get("compressedHistory")
            found = _compressed(record.uuid, value) if isinstance(history, list) else found
        elif record.kind in _KINDS and value.get("subtype") != "realtime_message" and (said := value.get("message")):
            begins = record.kind == "user" and value.get("subtype") not in _APART
            found.append(_Message(record.uuid, as_text(value.get("timestamp")), as_object(said), begins))
    return found


def _compressed(name: str, value: Json) -> list[_Message]:
    payload = as_object(value.get("systemPayload"))
    history, kept = as_objects(payload.get("compressedHistory")), as_objects(payload.get(KEPT))
    if len(kept) == len(history):
        known = [(as_text(k.get("key")), as_text(k.get("time")), k.get("begins") is True) for k in kept]
        return [
            _Message(key, time, content, begins) for (key, time, begins), content in zip(known, history, strict=True)
        ]
    time = as_text(value.get("timestamp"))  # Qwen's own: what is in front of its summary, and that, begin no turn
    summary = next((n for n, content in enumerate(history) if "<state_snapshot>" in _text(content)), 0)
    return [_Message(f"{name} {n}", time, content, n > summary) for n, content in enumerate(history)]


def _text(content: Json) -> str:
    return "\n".join(p["text"] for p in as_objects(content.get("parts")) if isinstance(p.get("text"), str))


def _inside(content: Json, key: str) -> list[Json]:
    return [found for part in as_objects(content.get("parts")) if (found := as_object(part.get(key)))]


def _unit(message: _Message) -> Unit:
    content, text = message.content, _text(message.content)
    answers, said = _inside(content, "functionResponse"), content.get("role") != "model"
    ours = message.key.startswith(OURS) or "<state_snapshot>" in text
    kind = "assistant" if not said else "tool_result" if answers else "user"
    line = {"uuid": message.key, "timestamp": message.time, "type": kind, "message": content}
    return Unit(
        key=message.key,
        data=encode_json(line) + b"\n",
        prompt=text if said and message.begins and not answers else "",
        time=seconds_of(message.time),
        asks=tuple(
            RequestedCall(as_text(c.get("id")), as_text(c.get("name")), encode_json(as_object(c.get("args"))))
            for c in _inside(content, "functionCall")
        ),
        answers=tuple(as_text(a.get("id")) for a in answers),
        failed=tuple(as_text(a.get("id")) for a in answers if "error" in as_object(a.get("response"))),
        summary=text if said and ours else "",
    )


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    chat = load_chat(main)
    shown = visible(chat)
    parent, time = chat.records[-1].uuid, chat.last("timestamp") or EPOCH
    name = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {parent} {text!r}"))
    said: Json = {"role": "user", "parts": [{"text": text}]}
    read: Json = {"role": "model", "parts": [{"text": _READ}]}
    form = [_Message(f"{OURS}{name}", time, said, False), _Message(f"read {name}", time, read, False)]
    messages = [*shown[:first], *form, *shown[last:]]
    was, now = (sum(len(encode_json(m.content)) for m in each) // 4 for each in (shown, messages))
    tokens = {"originalTokenCount": was, "newTokenCount": now, "newTokenCountIsEstimated": True, "compressionStatus": 1}
    payload = {
        "info": tokens,
        "compressedHistory": [m.content for m in messages],
        KEPT: [{"key": m.key, "time": m.time, "begins": m.begins} for m in messages],
    }
    value = {
        "uuid": name,
        "parentUuid": parent,
        "sessionId": session,
        "timestamp": time,
        "type": "system",
        "subtype": "chat_compression",
        "cwd": str(workspace),
        "version": chat.last("version"),
        "systemPayload": payload,
    }
    return encode_json(value) + b"\n"
