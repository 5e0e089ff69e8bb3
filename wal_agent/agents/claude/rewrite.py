"""Rewrite a Claude Code session that rests: a compact form for its first turns, or a return to an earlier message.

Append-only, in Claude's own lines, each seen to work on the real program. A compact form is a `compact_boundary` and a
summary behind it, followed by copies of the turns that stay: Claude's own way to name those by reference does not
survive a later rewind. A return is a branch: a line whose parent is an earlier one, and a `last-prompt` that names the
branch as the conversation's end; without it the old end wins.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.agents.claude.resume import LineTemplate
from wal_agent.agents.claude.session import (
    Entry,
    Session,
    content_text,
    conversation_end,
    is_turn,
    load_session,
    one_ms_later,
    time_after,
)
from wal_agent.agents.session_files import Json, as_object, as_text, encode_json, seconds_of

TITLE = "[wal-agent] "


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(entry) for entry in visible(load_session(main)))


def visible(read: Session) -> list[Entry]:
    """Return the lines of the conversation that the model gets, in its order."""
    known = {e.uuid: e for e in read.entries if e.uuid}
    chain = list(_chain(known, conversation_end(read)))[::-1]
    if not chain or not _is_boundary(chain[0]):
        return chain
    kept = as_object(as_object(chain[0].value.get("compactMetadata")).get("preservedMessages"))
    uuids = kept.get("uuids")
    named = [known[id] for id in uuids if isinstance(id, str) and id in known] if isinstance(uuids, list) else []
    anchor = next((i for i, e in enumerate(chain) if e.uuid == kept.get("anchorUuid")), 0)
    return [*chain[1 : anchor + 1], *named, *chain[anchor + 1 :]]


def _chain(known: dict[str, Entry], end: str | None) -> Iterator[Entry]:
    """Yield the lines from the end back to the first, or to a boundary."""
    seen: set[str] = set()
    while end is not None and end in known and end not in seen:
        seen.add(end)
        yield (entry := known[end])
        parent = entry.value.get("parentUuid")
        end = parent if isinstance(parent, str) else None


def _is_boundary(entry: Entry) -> bool:
    return entry.kind == "system" and entry.value.get("subtype") == "compact_boundary"


def _unit(entry: Entry) -> Unit:
    text = content_text(entry.message.get("content"))
    answers = tuple(str(r["tool_use_id"]) for r in entry.results())
    ours = entry.kind == "user" and text.startswith(TITLE)
    summary = text if ours or entry.value.get("isCompactSummary") is True else ""
    begins = is_turn(entry.value) and not answers and not summary
    return Unit(
        key=entry.uuid,
        data=bytes(entry.written) + b"\n",
        prompt=text if begins else "",
        time=seconds_of(entry.time),
        asks=tuple(
            RequestedCall(str(c["id"]), as_text(c.get("name")), encode_json(as_object(c.get("input"))))
            for c in entry.calls()
        ),
        answers=answers,
        failed=tuple(str(r["tool_use_id"]) for r in entry.results() if r.get("is_error") is True),
        summary=summary,
    )


class _Lines:
    """New lines behind a session's. `parent`: what the next one hangs on."""

    def __init__(self, read: Session, session: str, workspace: Path, parent: str | None) -> None:
        self._session = session
        self._like = LineTemplate.of(read, session, workspace)
        self._name = f"rewrite {len(read.entries)}"
        self._time = time_after(read)
        self._values: list[Json] = []
        self.parent = parent

    def add(self, value: Json) -> None:
        self._values.append(value)
        self.parent = as_text(value.get("uuid")) or self.parent

    def user(self, text: str, extra: Json) -> None:
        line = self._like.line("user", self.parent, text, f"{self._name} {len(self._values)}", self._time)
        self._time = one_ms_later(self._time)
        self.add({**line, **extra})

    def boundary(self, end: str | None) -> None:
        line = self._like.line("user", None, "", f"{self._name} boundary", self._time)
        self._time = one_ms_later(self._time)
        about = {"type": "system", "subtype": "compact_boundary", "content": "Conversation compacted", "level": "info"}
        del line["message"]
        self.add({**line, **about, "logicalParentUuid": end, "compactMetadata": {"trigger": "manual", "preTokens": 0}})

    def copy(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            new = uuid.uuid5(uuid.NAMESPACE_OID, f"{self._session} {self._name} {entry.uuid}")
            self.add({**entry.value, "parentUuid": self.parent, "uuid": str(new), "logicalParentUuid": None})

    def done(self, prompt: str) -> bytes:
        end = {"type": "last-prompt", "lastPrompt": prompt[:200], "leafUuid": self.parent, "sessionId": self._session}
        return b"".join(encode_json(value) + b"\n" for value in (*self._values, end))


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    read = load_session(main)
    shown = visible(read)
    return _rebuilt(read, session, workspace, shown[:first], text, shown[last:])


def rewind(main: bytes, session: str, workspace: Path, keep: int, text: str) -> bytes:
    read = load_session(main)
    shown = visible(read)
    end = conversation_end(read)
    known = {e.uuid: e for e in read.entries if e.uuid}
    plain = [e for e in list(_chain(known, end))[::-1] if not _is_boundary(e)] == shown
    if not keep or not plain:  # the line before the branch would bring back what a compaction left out
        return _rebuilt(read, session, workspace, shown[:keep], text, [])
    lines = _Lines(read, session, workspace, shown[keep - 1].uuid)
    lines.user(text, {})
    return lines.done(text)


def _rebuilt(
    read: Session, session: str, workspace: Path, before: Sequence[Entry], text: str, behind: Sequence[Entry]
) -> bytes:
    """Return lines that hold the whole conversation."""
    lines = _Lines(read, session, workspace, None)
    lines.boundary(conversation_end(read))
    lines.copy(before)
    lines.user(text, {"isCompactSummary": True, "isVisibleInTranscriptOnly": True})
    lines.copy(behind)
    return lines.done(text)
