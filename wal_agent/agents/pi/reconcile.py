"""A child of a restored session file that pi resumes well (DESIGN 7.3). Pure and idempotent.

pi writes an answer of the model with all its calls before the first of them starts, and their results when the whole
batch is over; a call without a result is "No result provided" to the model. What it does not heal, each measured on
the real program: a record behind a torn one is lost with it, that of the recovery too; a lost first line empties the
file; a lost record hides all that was said before it; the first line names the folder that pi works in.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.jsonl import Json, decode
from wal_agent.agents.pi import results
from wal_agent.agents.pi.tree import Entry, Tree, dump, load, mend_head

NOT_BEGUN = "not begun, as far as wal-agent's log tells: the machine was lost before it."
_OURS = "wal_call_"  # begins the ids of calls that had none
_TOKENS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    tree = load(main)
    repairs: list[str] = []
    if tree.junk:
        repairs.append(f"{tree.junk} damaged line(s) of the session file were left out.")
    if tree.orphans:
        repairs.append(f"{tree.orphans} message(s) whose forerunner was lost follow the last one before them.")
    if not tree.headed:
        repairs.append("The session file's first line was damaged and was written anew.")
    mend_head(tree, session, workspace)
    put = _put_back(tree, session, calls)
    messages = sum(entry.role in ("user", "assistant") for entry in tree.entries)
    return Reconciled(dump(tree), put, messages, tuple(repairs))


class _Told:
    """The calls that the file tells, and which of them have a result."""

    def __init__(self, tree: Tree) -> None:
        self.made: list[tuple[Entry, Json]] = []
        self.answered: set[int] = set()  # by place in `made`
        self.claimed: set[int] = set()
        self._by_id: dict[str, list[int]] = {}  # some models count their ids anew in each answer
        for entry in tree.entries:
            for call in entry.calls:
                self._by_id.setdefault(call["id"], []).append(len(self.made))
                self.made.append((entry, call))
            if entry.role == "toolResult":
                asked = self._by_id.get(str(entry.message.get("toolCallId")), [])
                self.answered |= set(asked[-1:])

    def claim(self, logged: LoggedCall) -> int | None:
        """The call of the file that is this one; each answers for one."""
        same = [n for n in self._by_id.get(id_of(logged), []) if n not in self.claimed]
        if not same and not logged.call_id:
            same = self._equal(logged)
        before = [n for n in same if not logged.started or _seconds(self.made[n][0]) <= logged.started + 0.001]
        found = max(before or same, default=None)
        if found is not None:
            self.claimed.add(found)
        return found

    def _equal(self, logged: LoggedCall) -> list[int]:
        """For a call without an id: the first that is open, else the first."""
        wanted = (logged.tool, _canon(_input(logged)))
        free = [n for n, (_, c) in enumerate(self.made) if n not in self.claimed and not c["id"].startswith(_OURS)]
        same = [n for n in free if _key(self.made[n][1]) == wanted]
        return ([n for n in same if n not in self.answered] or same)[:1]


def _put_back(tree: Tree, session: str, calls: Sequence[LoggedCall]) -> int:
    told = _Told(tree)
    lacking: list[LoggedCall] = []
    results_of: dict[int, dict[str, Json]] = {}  # entry -> call id -> message
    put = 0
    for logged in calls:
        n = told.claim(logged)
        if n is None:
            lacking.append(logged)
        elif n not in told.answered:
            entry, call = told.made[n]
            results_of.setdefault(id(entry), {})[call["id"]] = results.message(logged, call["id"], entry_time(tree))
            put += 1
    _not_begun(tree, told, results_of)
    for entry in [e for e in tree.entries if id(e) in results_of]:
        made = [results_of[id(entry)][c["id"]] for c in entry.calls if c["id"] in results_of[id(entry)]]
        _insert(tree, entry, made, session)
    for batch in _batches(lacking):
        _append(tree, [_answer(tree, batch)], session)
        _append(tree, [results.message(logged, id_of(logged), entry_time(tree)) for logged in batch], session)
    return put + len(lacking)


def _batches(lacking: Sequence[LoggedCall]) -> list[list[LoggedCall]]:
    """One, but for ids that come again."""
    batches: list[list[LoggedCall]] = []
    for logged in lacking:
        if not batches or any(id_of(logged) == id_of(other) for other in batches[-1]):
            batches.append([])
        batches[-1].append(logged)
    return batches


def _not_begun(tree: Tree, told: _Told, results_of: dict[int, dict[str, Json]]) -> None:
    """Calls of the last answer that nobody knows a start of; older ones are pi's own business."""
    last = next((e for e in reversed(tree.entries) if e.role in ("user", "assistant")), None)
    for n, (entry, call) in enumerate(told.made):
        if entry is last and n not in told.answered and n not in told.claimed:
            made = results.words(call["id"], str(call.get("name", "")), NOT_BEGUN, entry_time(tree))
            results_of.setdefault(id(entry), {})[call["id"]] = made


def _insert(tree: Tree, entry: Entry, made: Sequence[Json], session: str) -> None:
    """Behind the results that the answer has; what followed them follows these."""
    at = next(n for n, e in enumerate(tree.entries) if e is entry)
    last = entry
    for n in range(at + 1, len(tree.entries) if entry.id else 0):
        if tree.entries[n].parent == last.id and tree.entries[n].role == "toolResult":
            at, last = n, tree.entries[n]
    at += 1
    after = [e for e in tree.entries[at:] if last.id and e.parent == last.id]
    new = _entries(tree, last.id or None, made, session)
    tree.entries[at:at] = new
    for e in after:
        e.hang_on(new[-1].id)


def _append(tree: Tree, made: Sequence[Json], session: str) -> None:
    tree.entries += _entries(tree, next((e.id for e in reversed(tree.entries) if e.id), None), made, session)


def _entries(tree: Tree, parent: str | None, made: Sequence[Json], session: str) -> list[Entry]:
    out: list[Entry] = []
    known = tree.ids
    for message in made:
        new = free_id(known, f"{session} {parent} {json.dumps(message, sort_keys=True)}")
        known.add(new)
        out.append(new_entry(new, parent, tree.time, message))
        parent = new
    return out


def new_entry(id: str, parent: str | None, time: str, message: Json) -> Entry:
    return Entry({"type": "message", "id": id, "parentId": parent, "timestamp": time, "message": message})


def free_id(known: Collection[str], name: str) -> str:
    """Eight hexadecimal digits, as pi's own."""
    while (made := uuid.uuid5(uuid.NAMESPACE_OID, name).hex[:8]) in known:
        name += "+"
    return made


def _answer(tree: Tree, lacking: Sequence[LoggedCall]) -> Json:
    """The model's own words were lost with the crash: only its calls are known. It counts as big as the one before, and
    costs nothing."""
    before: Json = next((e.message for e in reversed(tree.entries) if e.role == "assistant"), {})
    chosen = next((e.value for e in reversed(tree.entries) if e.value.get("type") == "model_change"), {})
    told = before.get("usage")
    usage = told if isinstance(told, dict) else {}
    tokens = {name: n if isinstance(n := usage.get(name), int) else 0 for name in _TOKENS}
    return {
        "role": "assistant",
        "content": [
            {"type": "toolCall", "id": id_of(logged), "name": logged.tool, "arguments": _input(logged)}
            for logged in lacking
        ],
        "api": str(before.get("api", "unknown")),
        "provider": str(before.get("provider") or chosen.get("provider") or "unknown"),
        "model": str(before.get("model") or chosen.get("modelId") or "unknown"),
        "usage": {**tokens, "cost": {name.replace("totalTokens", "total"): 0 for name in _TOKENS}},
        "stopReason": "toolUse",
        "timestamp": entry_time(tree),
    }


def id_of(logged: LoggedCall) -> str:
    return logged.call_id or f"{_OURS}{logged.call}"


def entry_time(tree: Tree) -> int:
    """Milliseconds."""
    at = _parsed(tree.time)
    return round(at * 1000) if at is not None else 0


def _seconds(entry: Entry) -> float:
    """When it was written; unknown counts as early enough."""
    return _parsed(entry.value.get("timestamp")) or 0.0


def _parsed(timestamp: Any) -> float | None:
    try:
        at = datetime.fromisoformat(str(timestamp))
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _input(call: LoggedCall) -> Json:
    try:
        value = decode(call.input)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def _key(call: Json) -> tuple[str, str]:
    return str(call.get("name")), _canon(call.get("arguments"))


def _canon(args: Any) -> str:
    return json.dumps(args, sort_keys=True)
