"""Rewrite a pi session that rests: a compact form for its first turns, or a return to an earlier message.

Append-only, in pi's own entries, seen to work on the real program: a `compaction` names the first entry that the model
still gets; a `branch_summary` hangs on an earlier entry, and the conversation goes on behind it.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.base import RequestedCall, Unit
from wal_agent.agents.pi.resume import free_id
from wal_agent.agents.pi.session import Entry, Tree, load_tree
from wal_agent.agents.session_files import Json, as_object, as_text, encode_json, plain_text, seconds_of

_SUMMARIES = ("compaction", "branch_summary")


def units(main: bytes) -> tuple[Unit, ...]:
    return tuple(_unit(entry) for entry in visible(load_tree(main)))


def path_of(tree: Tree) -> list[Entry]:
    """Return the entries from the first to the one that the conversation continues."""
    known = {e.id: e for e in tree.entries if e.id}
    at = next((e.id for e in reversed(tree.entries) if e.id), None)
    path: list[Entry] = []
    while at is not None and at in known:
        path.append(known.pop(at))
        at = path[-1].parent
    return path[::-1]


def visible(tree: Tree) -> list[Entry]:
    """Return the entries with words that the model gets, in its order."""
    path = path_of(tree)
    said = [e for e in path if e.message or e.value.get("type") in _SUMMARIES]
    compacted = next((e for e in reversed(said) if e.value.get("type") == "compaction"), None)
    if compacted is None:
        return said
    ids = [e.id for e in path]
    first = as_text(compacted.value.get("firstKeptEntryId"))
    since = ids.index(first) if first in ids else ids.index(compacted.id)
    kept = {*ids[since:]} - {e.id for e in said if e.value.get("type") == "compaction"}
    return [compacted, *(e for e in said if e.id in kept)]


def _unit(entry: Entry) -> Unit:
    text = plain_text(entry.message.get("content"))
    answer = as_text(entry.message.get("toolCallId")) if entry.role == "toolResult" else ""
    return Unit(
        key=entry.id,
        data=bytes(entry.written) + b"\n",
        prompt=text if entry.role == "user" else "",
        time=seconds_of(entry.value.get("timestamp")),
        asks=tuple(
            RequestedCall(call["id"], as_text(call.get("name")), encode_json(as_object(call.get("arguments"))))
            for call in entry.calls
        ),
        answers=(answer,) if answer else (),
        failed=(answer,) if answer and entry.message.get("isError") is True else (),
        summary=as_text(entry.value.get("summary")) if entry.value.get("type") in _SUMMARIES else "",
    )


def compact(main: bytes, session: str, workspace: Path, first: int, last: int, text: str) -> bytes:
    tree = load_tree(main)
    shown = visible(tree)
    kept = shown[last].id if last < len(shown) else ""
    about = {"summary": text, "firstKeptEntryId": kept, "tokensBefore": 0, "fromHook": True}
    return _entry(tree, "compaction", path_of(tree)[-1].id, about)


def rewind(main: bytes, session: str, workspace: Path, keep: int, text: str) -> bytes:
    tree = load_tree(main)
    shown = visible(tree)
    path = path_of(tree)
    left = {"fromId": path[-1].id, "summary": text, "fromHook": True}
    parent = shown[keep - 1].id if keep else shown[0].parent
    compacted = shown[0] if shown[0].value.get("type") == "compaction" else None
    ids = [e.id for e in path]
    if keep and compacted is not None and ids.index(parent or "") <= ids.index(compacted.id):
        # The compaction names entries in front of it: behind one of those it has to be said again.
        kept = as_text(compacted.value.get("firstKeptEntryId")) if keep > 1 else ""
        again = {**compacted.value, "firstKeptEntryId": kept, "parentId": parent}
        again["id"] = free_id(tree.ids, f"again {len(tree.entries)} {parent}")
        tree.entries.append(Entry(again))
        return encode_json(again) + b"\n" + _entry(tree, "branch_summary", again["id"], left)
    return _entry(tree, "branch_summary", parent, left)


def _entry(tree: Tree, kind: str, parent: str | None, about: Json) -> bytes:
    new = free_id(tree.ids, f"{kind} {len(tree.entries)} {parent}")
    return encode_json({"type": kind, "id": new, "parentId": parent, "timestamp": tree.time, **about}) + b"\n"
