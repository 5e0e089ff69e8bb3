"""Rewrite an OpenCode session that rests: a compact form for its first turns, or a return to an earlier message.

The lines appended to the journal say that rows are gone, as OpenCode's own clean-up behind a `revert` deletes them, and
add one message of the user's. So the session then holds no row that the model does not get, also none that a compaction
of OpenCode's own had left there. The import before the next start brings that into the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.agents.opencode.database import Row, Rows, journal_lines, load_rows, row_order
from wal_agent.agents.opencode.resume import OPEN, make_id
from wal_agent.agents.session_files import Json, as_object, as_text, decode_json, encode_json

TITLE = "[wal-agent] "
_TALK = ("text", "reasoning", "tool", "file", "subtask", "agent")  # parts with words that the model may get


class _Message(msgspec.Struct, frozen=True):
    """A message as the model gets it, with its parts. A summary of OpenCode's own has the request for it before it."""

    rows: list[Row]
    parts: list[Row]


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(message) for message in visible(load_rows(main)))


def visible(rows: Rows) -> list[_Message]:
    """Return what the model gets, in its order."""
    session, parts = _root(rows), rows.parts()
    messages = _messages(rows)
    revert = _revert(session)
    ids = [m.id for m in messages]
    if revert.get("messageID") in ids:  # what a person has undone goes with the next prompt
        at, part = ids.index(revert["messageID"]), as_text(revert.get("partID"))
        messages = messages[: at + bool(part)]
        if part:
            parts[ids[at]] = [p for p in parts.get(ids[at], []) if p.id < part]
    found: list[_Message] = []
    for message in _uncompacted(messages, parts):
        mine, before = parts.get(message.id, []), found[-1] if found else _Message([], [])
        asked = _request(before.parts) is not None and before.rows[0].id == message.data.get("parentID")
        if asked and _is_summary(message):
            found[-1] = _Message([*before.rows, message], [*before.parts, *mine])
        else:
            found.append(_Message([message], mine))
    return found


def _root(rows: Rows) -> Row | None:
    """Return the session of which all others are subagents'."""
    known = {r.id for r in rows.of("session")}
    return next((r for r in rows.of("session") if as_text(r.row.get("parent_id")) not in known), None)


def _messages(rows: Rows) -> list[Row]:
    root = _root(rows)
    return rows.messages(root.id if root is not None else "")


def _revert(session: Row | None) -> Json:
    try:
        return as_object(decode_json(as_text(session.row.get("revert") if session is not None else "").encode()))
    except ValueError:
        return {}


def _is_summary(message: Row) -> bool:
    data = message.data
    return (
        data.get("role") == "assistant" and bool(data.get("summary") and data.get("finish")) and not data.get("error")
    )


def _request(parts: Sequence[Row]) -> Json | None:
    """Return the part that asks for a compaction, if there is one."""
    return next((p.data for p in parts if p.data.get("type") == "compaction"), None)


def _uncompacted(messages: Sequence[Row], parts: dict[str, list[Row]]) -> list[Row]:
    """Leave out what a compaction of OpenCode's own did: all before it but a tail, which then comes behind it."""
    done = {as_text(m.data.get("parentID")): n for n, m in enumerate(messages) if _is_summary(m)}
    for at, message in reversed([*enumerate(messages)]):
        asked, end = _request(parts.get(message.id, [])), done.get(message.id, 0) + 1
        if asked is None or end <= at or message.role != "user":
            continue
        ids = [m.id for m in messages[: at + 1]]
        tail = at if (first := asked.get("tail_start_id")) is None else ids.index(first) if first in ids else None
        return [*messages[at:end], *messages[tail:at], *messages[end:]] if tail is not None else list(messages)
    return list(messages)


def _unit(message: _Message) -> Unit:
    said, parts = message.rows[-1], message.parts
    role, created = said.role, said.created
    texts = [p.data for p in parts if p.data.get("type") == "text" and not p.data.get("ignored")]
    typed = _joined([t for t in texts if not t.get("synthetic")]) if role == "user" else ""
    ours = typed.startswith(TITLE)
    states = [(p.data, as_object(p.data.get("state"))) for p in parts if p.data.get("type") == "tool"]
    answers = [(as_text(call.get("callID")), state.get("status")) for call, state in states]
    return Unit(
        key=said.id,
        data=b"".join(_line(p, role, created) for p in parts if p.data.get("type") in _TALK),
        prompt="" if ours else typed,
        time=created / 1000,
        asks=tuple(
            RequestedCall(as_text(c.get("callID")), as_text(c.get("tool")), encode_json(as_object(state.get("input"))))
            for c, state in states
        ),
        answers=tuple(id for id, status in answers if status not in OPEN),
        failed=tuple(id for id, status in answers if status == "error"),
        summary=typed if ours else _joined(texts) if len(message.rows) > 1 else "",
    )


def _joined(texts: Sequence[Json]) -> str:
    return "\n\n".join(as_text(t.get("text")) for t in texts)


def _line(part: Row, role: str, created: int) -> bytes:
    """Return a part as one line that says who speaks, and when."""
    said = {"role": "tool" if part.data.get("type") == "tool" else role, "content": [part.data]}
    return encode_json({"type": "part", "id": part.id, "time": {"created": created}, "data": said}) + b"\n"


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    """Return the lines that delete all rows of the session's messages but those that stay, and add a message."""
    rows = load_rows(main)
    shown, own, root = visible(rows), _messages(rows), _root(rows)
    before, behind = shown[:first], shown[last:]
    ids = {m.id for m in own}
    mine = [*own, *(p for p in rows.of("part") if p.message in ids)]
    kept = {r.key for m in (*before, *behind) for r in (*m.rows, *m.parts)}
    lines: list[Json] = [{"type": r.kind, "id": r.id, "gone": True} for r in mine if r.key not in kept]
    if root is not None and "revert" in root.row:
        lines.append({**root.value, "row": {name: value for name, value in root.row.items() if name != "revert"}})
    return journal_lines([*lines, *_form(own, before, behind, f"{session} {len(own)} {text}", text)])


def _form(
    own: Sequence[Row], before: Sequence[_Message], behind: Sequence[_Message], seed: str, text: str
) -> list[Json]:
    """Return the rows of the new message. OpenCode sorts by time, then by id, which begins with a number."""
    rows = [row for message in before for row in message.rows]
    at, step = (max(rows, key=row_order), 1) if rows else (min(own, key=row_order), -1)
    created = at.created + (0 if rows and behind else step)
    asked: Json = next((m.data for m in reversed(own) if m.role == "user"), {})
    unknown = {"providerID": "unknown", "modelID": "unknown"}
    data = {
        "role": "user",
        "time": {"created": created},
        "agent": as_text(asked.get("agent")) or "build",
        "model": as_object(asked.get("model")) or unknown,
    }
    same = {"session": at.session, "created": created}
    id = make_id("msg", at.id, step, seed)
    part = {"type": "part", "id": make_id("prt", at.id, step, seed), "message": id, **same}
    return [{"type": "message", "id": id, **same, "data": data}, {**part, "data": {"type": "text", "text": text}}]
