"""Make a restored pi session that resumes well (RECOVERY.md): put lost results back, mend it, add the prompt.

Pure and idempotent. pi writes an answer of the model with all its calls before the first of them starts, and their
results when the whole batch is over; a call without a result is "No result provided" to the model. What it does not
heal, each measured on the real program: a record behind a torn one is lost with it, that of the recovery too; a lost
first line empties the file; a lost record hides all that was said before it; the first line names the folder that pi
works in.

A tool may run other tools (code mode): hooks report those as `<its id>/<n>`, the session has only the tool's own
result. What the log knows of them goes into that one; as calls of their own the model's API would refuse such ids.

The recovery prompt becomes the user's last message: there it arrives byte for byte, and stays.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.pi.hooks import plain_tool_name
from wal_agent.agents.pi.session import Entry, Tree, dump_tree, load_tree, mend_head, tree_pieces
from wal_agent.agents.session_files import (
    HEAD_REPAIR,
    LOST_PROMPT,
    MAX_RESULT,
    Json,
    as_object,
    as_objects,
    as_text,
    call_input,
    canonical_json,
    capped_text,
    contains,
    decode_json,
    encode_json,
    junk_repair,
    lost_calls_repair,
    noted_result,
    plain_text,
    time_of,
    unknown_result,
)
from wal_agent.safefs import Buffer, Pieces

_TEXT = re.compile(rb'"text":"((?:[^"\\\x00-\x1f]|\\(?:u[0-9a-fA-F]{4}|[^u]))*)')
MARK = "wal-agent"
NOTHING = "(no output)"  # pi's own words; an API may refuse an empty text

UNKNOWN = "outcome unknown: the machine was lost while this call ran."
NOT_BEGUN = "not begun, as far as wal-agent's log tells: the machine was lost before it."
_ID = re.compile(r"[a-zA-Z0-9_|-]{1,128}")
_OURS = "wal_call_"  # begins the ids of calls that had none
_CLOSE = 0.001  # seconds: pi's times are whole milliseconds
_TOKENS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
TITLE = "[wal-agent recovery]\n"  # before a prompt that would be dropped from the history


def result_message(logged: LoggedCall, id: str, time: int, nested: Sequence[LoggedCall] = ()) -> Json:
    """Return the log's result as pi's `toolResult` message. `time` in milliseconds; `nested`: the calls that it made,
    which a result of its own tells."""
    if logged.result is None:
        said = [_text(unknown_result(logged)), *_told(nested)]
        return _message(logged.tool, id, said, True, time, result_mark(logged))
    try:
        value = decode_json(logged.result)
    except ValueError:
        value = _cut_off(logged.result)
    content = value.get("content") if isinstance(value, dict) else value
    blocks = _blocks(content)
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    if sum(map(len, texts)) > MAX_RESULT or logged.note or not texts:
        kept = [block for block in blocks if block["type"] != "text"]
        text = noted_result("\n".join(texts) or ("" if kept else NOTHING), logged)
        blocks = [*([_text(text)] if text else []), *kept]
    return _message(logged.tool, id, blocks, logged.failed, time, result_mark(logged))


def _told(nested: Sequence[LoggedCall]) -> list[Json]:
    """Tell the calls that a tool made, one by one."""
    return [_text(_line(logged)) for logged in nested]


def _line(logged: LoggedCall) -> str:
    said = f"It made the call {plain_tool_name(logged.tool)} {capped_text(_spelled(logged.input), logged.call)}"
    content = result_message(logged, "", 0)["content"]
    return f"{said}\nIts {'error' if logged.failed else 'result'}: {plain_text(content)}"


def _spelled(input: bytes) -> str:
    return input.decode(errors="replace")


def result_mark(logged: LoggedCall) -> Json:
    """Return the mark that identifies a result that was put back: ids may repeat. pi keeps it; no model gets it."""
    return {MARK: [logged.call, logged.started]}


def _message(tool: str, id: str, content: list[Json], failed: bool, time: int, details: Json) -> Json:
    return {
        "role": "toolResult",
        "toolCallId": id,
        "toolName": plain_tool_name(tool),
        "content": content,
        "details": details,
        "isError": failed,
        "timestamp": time,
    }


def _cut_off(result: bytes) -> str:
    """Return the rest of a truncated result's texts, and the sentence behind them that reports the cut."""
    text, _, why = result.partition(b"\n")  # JSON has its line ends escaped
    found = _TEXT.findall(text) if text.startswith(b'{"content":') else []
    texts = [str(decode_json(b'"' + each + b'"')) for each in found]
    return "\n".join([*texts, why.decode(errors="replace")]).rstrip() if texts else result.decode(errors="replace")


def _blocks(content: Any) -> list[Json]:
    """Return the valid texts and images."""
    if isinstance(content, str):
        return [_text(content)] if content else []
    out: list[Json] = []
    for block in as_objects(content):
        kind = block.get("type")
        if kind == "text" and isinstance(block.get("text"), str) and block["text"]:
            out.append(_text(block["text"]))
        elif kind == "image" and all(isinstance(block.get(key), str) for key in ("data", "mimeType")):
            out.append({"type": "image", "data": block["data"], "mimeType": block["mimeType"]})
    return out


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    tree = load_tree(main)
    repairs = junk_repair(tree.junk)
    if tree.orphans:
        repairs.append(f"{tree.orphans} message(s) whose forerunner was lost follow the last one before them.")
    if not tree.headed:
        repairs.append(HEAD_REPAIR)
    repairs += lost_calls_repair(_drop_results(tree))
    mend_head(tree, session, workspace)
    put = _put_back(tree, session, calls)
    asked = any(entry.role == "user" for entry in tree.entries)
    _begin_with_prompt(tree, session)
    messages = sum(entry.role in ("user", "assistant") for entry in tree.entries)
    return Reconciled(tree_pieces(tree), put, messages, tuple(repairs), None if asked else ())


def _begin_with_prompt(tree: Tree, session: str) -> None:
    """See LOST_PROMPT."""
    at, first = next(((n, e) for n, e in enumerate(tree.entries) if e.role and e.id), (0, None))
    if first is None or first.role != "assistant":
        return
    message: Json = {"role": "user", "content": [_text(LOST_PROMPT)], "timestamp": entry_time(tree)}
    tree.entries[at:at] = _entries(tree, first.parent, [message], session)
    first.hang_on(tree.entries[at].id)


def _drop_results(tree: Tree) -> int:
    """Drop the results whose call was lost: pi sends them, and the model's API refuses them. Return how many."""
    waiting: dict[str, set[str]] = {}  # by entry: calls of the answer before it that may still have their result
    instead: dict[str, str | None] = {}  # of each dropped entry: its parent
    kept: list[Entry] = []
    for entry in tree.entries:
        if entry.parent in instead:
            entry.hang_on(instead[entry.parent])
        calls = waiting.get(entry.parent or "", set())
        if entry.role == "assistant":
            calls = {str(call["id"]) for call in entry.calls}
        elif entry.role == "user":
            calls = set()
        elif entry.role == "toolResult":
            id = as_text(entry.message.get("toolCallId"))
            if id not in calls:
                instead[entry.id] = entry.parent
                continue
            calls = calls - {id}
        waiting[entry.id] = calls
        kept.append(entry)
    dropped = len(tree.entries) - len(kept)
    tree.entries = kept
    return dropped


class FileCall(msgspec.Struct, frozen=True):
    """A call of the file. Its input stays there: all of them may be as much as the session."""

    entry: Entry
    id: str
    name: str

    @property
    def key(self) -> tuple[str, bytes]:
        call = next(call for call in self.entry.calls if call["id"] == self.id)
        return self.name, canonical_json(call.get("arguments"))


class _FileCalls:
    """The calls of the file, and which of them have a result."""

    def __init__(self, tree: Tree) -> None:
        self.made: list[FileCall] = []
        self.answered: dict[int, Entry] = {}  # by place in `made`
        self.claimed: set[int] = set()
        self._by_id: dict[str, list[int]] = {}  # some models count their ids anew in each answer
        self._put: dict[int, Any] = {}  # marks of results that were put back, by place in `made`
        self._last: Entry | None = None
        for entry in tree.entries:
            for call in entry.calls:
                self._by_id.setdefault(call["id"], []).append(len(self.made))
                self.made.append(FileCall(entry, call["id"], str(call.get("name", ""))))
            if entry.role == "assistant":
                self._last = entry
            if entry.role == "toolResult":
                asked = self._by_id.get(str(entry.message.get("toolCallId")), [])
                self.answered |= dict.fromkeys(asked[-1:], entry)

        for n, entry in self.answered.items():
            details = entry.message.get("details")
            if isinstance(details, dict) and MARK in details:
                self._put[n] = details

    def claim(self, calls: Sequence[LoggedCall]) -> list[int | None]:
        """Return for each the index of its call in the file, each of which matches one. The sure ones match first."""
        found: dict[int, int] = {}
        for matches in (self._marked, self._equal, self._alike):
            for at, logged in enumerate(calls):
                free = [n for n in matches(logged) if n not in self.claimed] if at not in found else []
                if free:
                    found[at] = free[0]
                    self.claimed.add(free[0])
        return [found.get(at) for at in range(len(calls))]

    def _marked(self, logged: LoggedCall) -> list[int]:
        """Return the calls that were put back for this one before."""
        wanted = result_mark(logged)
        return [n for n, found in self._put.items() if found == wanted]

    def _equal(self, logged: LoggedCall) -> list[int]:
        """Return those of the same tool and input: by the id the last possible one first, else an open one, the
        first."""
        wanted = (plain_tool_name(logged.tool), canonical_json(call_input(logged)))
        ids = self._by_id.get(logged.call_id, []) if logged.call_id else range(len(self.made))
        same = [n for n in ids if self.made[n].key == wanted and not self._over(n, logged)]
        if not logged.call_id:
            return sorted(same, key=lambda n: (n in self.answered, n))
        return sorted(same, key=lambda n: (_later(self.made[n].entry, logged), -n))

    def _alike(self, logged: LoggedCall) -> list[int]:
        """Return those of the same id and tool: pi mends some inputs, and extensions may rewrite any, before the hook
        fires. An id may come again, so the time must allow it."""
        ids = self._by_id.get(logged.call_id, []) if logged.call_id else []
        same = [n for n in ids if self.made[n].name == plain_tool_name(logged.tool)]
        return [n for n in reversed(same) if self._may_be(n, logged)]

    def _may_be(self, n: int, logged: LoggedCall) -> bool:
        entry = self.answered.get(n)
        if entry is None:
            return self.made[n].entry is self._last and not _later(self.made[n].entry, logged)
        return not self._over(n, logged) and _seconds(entry) > 0

    def _over(self, n: int, logged: LoggedCall) -> bool:
        """Return whether the file's call ended before this one began."""
        ended = _seconds(self.answered[n]) if n in self.answered else 0.0
        return 0 < ended < logged.started - _CLOSE


def _put_back(tree: Tree, session: str, calls: Sequence[LoggedCall]) -> int:
    file = _FileCalls(tree)
    plain, nested = _part_nested(file, calls)
    lacking: list[LoggedCall] = []
    results_of: dict[int, dict[str, Json]] = {}  # entry -> call id -> message
    put = 0
    for logged, n in zip(plain, file.claim(plain), strict=True):
        if n is None:
            lacking.append(logged)
        elif n not in file.answered:
            call = file.made[n]
            made = result_message(logged, call.id, entry_time(tree), nested.get(call.id, ()))
            results_of.setdefault(id(call.entry), {})[call.id] = made
            put += 1 + len(nested.get(call.id, ()))
    _not_begun(tree, file, results_of, nested)
    for entry in [e for e in tree.entries if id(e) in results_of]:
        results = [results_of[id(entry)][c["id"]] for c in entry.calls if c["id"] in results_of[id(entry)]]
        _insert(tree, entry, results, session)
    for batch in _batches(lacking):
        _append(tree, [_answer(tree, batch)], session)
        results = [
            result_message(logged, call_id(logged), entry_time(tree), nested.get(logged.call_id, ()))
            for logged in batch
        ]
        _append(tree, results, session)
        put += sum(1 + len(nested.get(logged.call_id, ())) for logged in batch)
    return put


def _part_nested(file: _FileCalls, calls: Sequence[LoggedCall]) -> tuple[list[LoggedCall], dict[str, list[LoggedCall]]]:
    """Part the calls from those that tools made, by the id of the tool's call. What nobody made is one of the first."""
    known = {logged.call_id for logged in calls} | {call.id for call in file.made}
    plain: list[LoggedCall] = []
    nested: dict[str, list[LoggedCall]] = {}
    for logged in calls:
        maker = logged.call_id.partition("/")[0]
        if maker != logged.call_id and maker in known:
            nested.setdefault(maker, []).append(logged)
        else:
            plain.append(logged)
    return plain, nested


def _batches(lacking: Sequence[LoggedCall]) -> list[list[LoggedCall]]:
    """Split into batches without repeated ids; mostly one."""
    batches: list[list[LoggedCall]] = []
    for logged in lacking:
        if not batches or any(call_id(logged) == call_id(other) for other in batches[-1]):
            batches.append([])
        batches[-1].append(logged)
    return batches


def _not_begun(
    tree: Tree,
    file: _FileCalls,
    results_of: dict[int, dict[str, Json]],
    nested: Mapping[str, Sequence[LoggedCall]],
) -> None:
    """Answer calls of the last answer without a known start; pi itself handles older ones."""
    last = next((e for e in reversed(tree.entries) if e.role in ("user", "assistant")), None)
    for n, call in enumerate(file.made):
        if call.entry is last and n not in file.answered and n not in file.claimed:
            said = [_text(NOT_BEGUN)] if call.id not in nested else [_text(UNKNOWN), *_told(nested[call.id])]
            made = _message(call.name, call.id, said, True, entry_time(tree), {})
            results_of.setdefault(id(call.entry), {})[call.id] = made


def _insert(tree: Tree, entry: Entry, made: Sequence[Json], session: str) -> None:
    """Insert results behind those that the answer has; what followed them follows these."""
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
    """Make an id of eight hexadecimal digits, as pi's own."""
    while (made := uuid.uuid5(uuid.NAMESPACE_OID, name).hex[:8]) in known:
        name += "+"
    return made


def _answer(tree: Tree, lacking: Sequence[LoggedCall]) -> Json:
    """Return an answer with only its calls, where the model's own was lost. It counts as many tokens as the one before,
    and costs nothing."""
    before: Json = next((e.message for e in reversed(tree.entries) if e.role == "assistant"), {})
    chosen = next((e.value for e in reversed(tree.entries) if e.value.get("type") == "model_change"), {})
    usage = as_object(before.get("usage"))
    tokens = {name: n if isinstance(n := usage.get(name), int) else 0 for name in _TOKENS}
    return {
        "role": "assistant",
        "content": [
            {"type": "toolCall", "id": call_id(c), "name": plain_tool_name(c.tool), "arguments": call_input(c)}
            for c in lacking
        ],
        "api": str(before.get("api", "unknown")),
        "provider": str(before.get("provider") or chosen.get("provider") or "unknown"),
        "model": str(before.get("model") or chosen.get("modelId") or "unknown"),
        "usage": {**tokens, "cost": {name.replace("totalTokens", "total"): 0 for name in _TOKENS}},
        "stopReason": "toolUse",
        "timestamp": entry_time(tree),
    }


def call_id(logged: LoggedCall) -> str:
    """Return an id that every API takes. OpenAI's Responses have two in one, with a bar between them."""
    return logged.call_id if _ID.fullmatch(logged.call_id) else f"{_OURS}{logged.call}"


def entry_time(tree: Tree) -> int:
    """Return milliseconds."""
    at = time_of(tree.time)
    return round(at.timestamp() * 1000) if at is not None else 0


def _seconds(entry: Entry) -> float:
    """Return when it was written; 0: unknown."""
    at = time_of(entry.value.get("timestamp"))
    return at.timestamp() if at is not None else 0.0


def _later(entry: Entry, logged: LoggedCall) -> bool:
    return 0 < logged.started < _seconds(entry) - _CLOSE


def inject_prompt(main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
    """Add the prompt at the end, once. `main` is empty or made by `reconcile`: only its end is read, and one line
    added."""
    main = main or _head_of(session, workspace)
    last = _last_entry(main)
    text = prompt if prompt.strip() else TITLE + prompt
    content = [{"type": "text", "text": text}]
    if last.role == "user" and last.message.get("content") == content:
        return [main]
    beside = Tree(entries=[last])
    parent = last.id if last.value.get("type") != "session" else ""
    name = f"{session} {parent} {text!r}"
    while contains(main, f'"{(new := free_id((), name))}"'.encode()):
        name += "+"
    message = {"role": "user", "content": content, "timestamp": entry_time(beside)}
    return [main, encode_json(new_entry(new, parent or None, beside.time, message).value), b"\n"]


def _head_of(session: str, workspace: Path) -> bytes:
    tree = load_tree(b"")
    mend_head(tree, session, workspace)
    return dump_tree(tree)


def _last_entry(main: Buffer) -> Entry:
    """Return the last entry with an id, else the head, of a file whose every line is a record."""
    end = len(main)
    while end > 0:
        begin = main.rfind(b"\n", 0, end - 1) + 1
        entry = Entry(decode_json(main[begin:end]))
        if entry.id or begin == 0:
            return entry
        end = begin
    return Entry({})
