"""Make a restored Qwen Code session that resumes well (RECOVERY.md): put lost results back, mend it, add the prompt.

Pure and idempotent, proven on the real program. Qwen Code drops calls without a result when it resumes: those that the
log knows get theirs back. The file has a call before its hook fires, and its result when it (on a terminal: its batch)
is over. The hooks' ids are not the file's: a call is known by its tool and input. Also healed, each measured on the
real program: Qwen finds no session whose first record names another folder; a record that is lost in the middle
silently ends the conversation there.

The recovery prompt becomes the user's last message: there it arrives byte for byte, and stays.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.qwen.session import Chat, Record, chat_pieces, load_chat
from wal_agent.agents.session_files import (
    EPOCH,
    LOST_PROMPT,
    Json,
    as_object,
    as_text,
    call_input,
    capped_text,
    encode_json,
    end_time,
    input_digest,
    junk_repair,
    logged_value,
    lost_calls_repair,
    noted_result,
    plain_text,
    unknown_result,
)
from wal_agent.safefs import Buffer, Pieces

NOT_BEGUN = (
    "not known to have begun: the machine was lost, and wal-agent's log holds no start of this call. Look before you "
    "repeat it."
)
# Qwen Code takes shell escapes and blanks at the ends out of these before its hooks see them, in the same object that
# the session file is written from: sometimes before it is written, sometimes after.
_PATHS = ("file_path", "path", "filePath", "notebook_path")


class FileCall(msgspec.Struct):
    """A call of the file, by its `place`: ids may come again. `ended`: when it had its result, None while it has
    none."""

    id: str
    name: str
    key: tuple[str, bytes]
    place: str
    ended: float | None = None
    tail: bool = False  # of the last batch, so that a result can still be put behind it
    taken: bool = False


def put_back(chat: Chat, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> int:
    """Give each of `calls` that has none its result, in the log's order; return how many got one."""
    in_file = _file_calls(chat, {_name(session, call) for call in calls})
    have = {record.uuid for record in chat.records}
    missing = [call for call in calls if _name(session, call) not in have]
    answered = [(call, _match_call(call, in_file)) for call in missing]
    new = [(call, found) for call, found in answered if found is None or found.ended is None]
    writer = _Writer(chat, session, workspace)
    for call, found in new:
        if found is not None:
            writer.result(_name(session, call), found.id, found.name, call_result(call))
    for left in in_file:
        if left.tail and not left.taken and left.ended is None:
            writer.result(_uuid(session, f"not begun {left.place}"), left.id, left.name, {"error": NOT_BEGUN})
    lost = [call for call, found in new if found is None]
    if lost:
        writer.batch(lost)
        for call in lost:
            writer.result(_name(session, call), call_id(call), call.tool, call_result(call))
    return len(new)


def call_id(call: LoggedCall) -> str:
    return f"call_wal_{call.call}"


def _name(session: str, call: LoggedCall) -> str:
    """Return the id of the record of its result, if wal-agent wrote it."""
    return _uuid(session, f"result of {_which(call)}")


def _which(call: LoggedCall) -> str:
    """Identify a call not by its number alone: where another job continues the session, numbers come again."""
    said = hashlib.sha256(b"\0".join((call.tool.encode(), call.input, repr(call.started).encode())))
    return f"call {call.call} {said.hexdigest()}"


def _uuid(session: str, words: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {words}"))


def _file_calls(chat: Chat, ours: set[str]) -> list[FileCall]:
    """Return the file's calls, also those of branches that were rewound: they did run. An id may come again: a result
    belongs to the last message before it that has an open call of this id."""
    in_file: list[FileCall] = []
    waiting: dict[str, list[list[FileCall]]] = {}  # id -> of each message, its calls
    tail = _tail(chat)
    same: set[tuple[str, str]] = set()
    for record in chat.records:
        if (record.uuid, record.kind) in same:  # written twice
            continue
        same.add((record.uuid, record.kind))
        if record.kind == "assistant":
            batch = _batch(record, tail is not None and record.uuid == tail.uuid)
            in_file += batch
            for id in dict.fromkeys(each.id for each in batch):
                waiting.setdefault(id, []).append([each for each in batch if each.id == id])
        for response in record.inside("functionResponse"):
            newest_first = reversed(waiting.get(str(response.get("id")), []))
            found = next((each for batch in newest_first for each in batch if each.ended is None), None)
            if found is not None:
                found.ended = end_time(record.value.get("timestamp"))
                found.taken = record.uuid in ours
    return in_file


def _batch(record: Record, tail: bool) -> list[FileCall]:
    found = []
    for n, call in enumerate(record.inside("functionCall")):
        name = str(call.get("name"))
        place = f"{record.uuid} {n}"
        found.append(FileCall(str(call.get("id")), name, _key(*_hooked(name, call.get("args"))), place, tail=tail))
    return found


def _hooked(name: str, args: Any) -> tuple[str, Any]:
    """Return the tool and input that hooks report: since 0.24, `tool_call` runs another tool, whose hooks fire."""
    inner = isinstance(args, dict) and isinstance(args.get("name"), str) and isinstance(args.get("arguments"), dict)
    return (args["name"], args["arguments"]) if name == "tool_call" and inner else (name, args)


def _tail(chat: Chat) -> Record | None:
    """Return the model's last message with calls, if no user spoke since."""
    for record in reversed(chat.live()):
        if record.kind == "assistant":
            return record if record.inside("functionCall") else None
        if record.kind == "user":
            return None
    return None


def _match_call(call: LoggedCall, in_file: list[FileCall]) -> FileCall | None:
    """Return the file's call that this one is: one that ended after it had started, else one of the last batch."""
    key = _key(call.tool, call_input(call))
    same = [t for t in in_file if not t.taken and t.key == key]
    over = [t for t in same if t.ended is not None and t.ended + 0.001 >= call.started]
    over.sort(key=lambda t: t.ended or 0)
    found = next(iter([*over, *(t for t in same if t.tail and t.ended is None)]), None)
    if found is not None:
        found.taken = True
    return found


class _Writer(msgspec.Struct):
    """Appends records to the conversation's end."""

    chat: Chat
    session: str
    workspace: Path

    def add(self, name: str, kind: str, message: Json, **more: Any) -> None:
        chat = self.chat
        value: Json = {
            "uuid": name,
            "parentUuid": chat.records[-1].uuid if chat.records else None,
            "sessionId": self.session,
            "timestamp": chat.last("timestamp") or EPOCH,
            "type": kind,
            "cwd": str(self.workspace),
            "version": chat.last("version"),
            "message": message,
        }
        chat.records.append(Record({**value, **more}))

    def result(self, name: str, id: str, tool: str, response: dict[str, str]) -> None:
        part = {"functionResponse": {"id": id, "name": tool, "response": response}}
        shown = {
            "callId": id,
            "status": "error" if "error" in response else "success",
            "resultDisplay": next(iter(response.values()))[:1000],
        }
        self.add(name, "tool_result", {"role": "user", "parts": [part]}, toolCallResult=shown)

    def batch(self, calls: Sequence[LoggedCall]) -> None:
        """The model's own message was lost with the crash: only its calls are known."""
        parts = [{"functionCall": {"id": call_id(c), "name": c.tool, "args": call_input(c)}} for c in calls]
        name = _uuid(self.session, f"put back from {_which(calls[0])}")
        self.add(name, "assistant", {"role": "model", "parts": parts}, model=self.chat.last("model"))


def call_result(call: LoggedCall) -> dict[str, str]:
    """Return the function response of a call: `output` or `error`."""
    if call.result is None:
        return {"error": unknown_result(call)}
    value = logged_value(call.result)
    value = value if isinstance(value, dict) else {"llmContent": value}
    if isinstance(error := value.get("error"), str) and error:
        return {"error": capped_text(error, call.call)}
    text = noted_result(plain_text(value.get("llmContent")), call)
    return {"error": text} if call.failed else {"output": text}


def _key(tool: str, args: Any) -> tuple[str, bytes]:
    if isinstance(args, dict):
        args = {k: v.replace("\\", "").strip() if k in _PATHS and isinstance(v, str) else v for k, v in args.items()}
    return tool, input_digest(args)


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    chat = load_chat(main)
    repairs = junk_repair(chat.junk)
    repairs += lost_calls_repair(drop_results(chat))
    if mend_links(chat):
        repairs.append("What stood before a lost record of the session is a part of it again.")
    for record in chat.records:
        record.change(sessionId=session, **({"cwd": str(workspace)} if "cwd" in record.value else {}))
    if chat.records:
        chat.records[0].change(cwd=str(workspace))
    put = put_back(chat, session, workspace, calls)
    asked = any(record.kind == "user" for record in chat.live())
    _begin_with_prompt(chat, session, workspace)
    said = sum(record.kind in ("user", "assistant") for record in chat.records)
    return Reconciled(chat_pieces(chat), put, said, tuple(repairs), None if asked else ())


def _begin_with_prompt(chat: Chat, session: str, workspace: Path) -> None:
    """See LOST_PROMPT."""
    first = next((record for record in chat.live() if record.parts()), None)
    if first is None or first.kind != "assistant":
        return
    before = Chat(chat.records[: chat.records.index(first)])
    message = {"role": "user", "parts": [{"text": LOST_PROMPT}]}
    _Writer(before, session, workspace).add(_uuid(session, f"lost prompt {first.uuid}"), "user", message)
    chat.records = [*before.records, *chat.records[len(before.records) - 1 :]]
    first.change(parentUuid=before.records[-1].uuid)


def drop_results(chat: Chat) -> int:
    """Drop the results whose call was lost; return how many."""
    waiting: dict[str, int] = {}  # by id: calls without a result so far
    same: set[tuple[str, str]] = set()  # a record may be written twice
    cut: dict[tuple[str, str], list[Json]] = {}  # parts that are left of a record that lost some
    instead: dict[str, Any] = {}  # of each dropped record: its parent
    kept: list[Record] = []
    dropped = 0
    for record in chat.records:
        if (parent := as_text(record.value.get("parentUuid"))) in instead:
            record.change(parentUuid=instead[parent])
        parts, name = record.parts(), (record.uuid, record.kind)
        if name not in same:
            for call in record.inside("functionCall"):
                waiting[str(call.get("id"))] = waiting.get(str(call.get("id")), 0) + 1
            left = [part for part in parts if _has_call(part, waiting)]
            if len(left) < len(parts):
                cut[name] = left
                dropped += len(parts) - len(left)
            same.add(name)
        left = cut.get(name, parts)
        if parts and not left:
            instead[record.uuid] = record.value.get("parentUuid")
            continue
        if len(left) < len(parts):
            record.value = {**record.value, "message": {**record.value["message"], "parts": left}}
        kept.append(record)
    chat.records = kept
    return dropped


def _has_call(part: Json, waiting: dict[str, int]) -> bool:
    """Return whether it is no result, or that of a call that waits for one, which then does not any more."""
    if "functionResponse" not in part:
        return True
    id = str(as_object(part["functionResponse"]).get("id"))
    found = waiting.get(id, 0)
    waiting[id] = max(0, found - 1)
    return found > 0


def mend_links(chat: Chat) -> int:
    """Let a record whose parent is missing follow the one before it; return how many. A rewind may lead back to any
    record that is present, or to none."""
    known: set[str] = set()
    before: str | None = None
    mended = 0
    for record in chat.records:
        parent = record.value.get("parentUuid")
        if parent is not None and str(parent) not in known:
            record.change(parentUuid=before)
            mended += 1
        before = record.uuid
        known.add(before)
    return mended


def inject_prompt(main: Buffer, session: str, workspace: Path, prompt: str) -> Pieces:
    """Add the prompt at the end, once."""
    chat = load_chat(main)
    last = chat.records[-1] if chat.records else None
    message = {"role": "user", "parts": [{"text": prompt}]}
    if last is not None and last.kind == "user" and last.value.get("message") == message:
        return [main]
    before = last.uuid if last is not None else None
    value = {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {before} {prompt!r}")),
        "parentUuid": before,
        "sessionId": session,
        "timestamp": chat.last("timestamp") or EPOCH,
        "type": "user",
        "cwd": str(workspace),
        "version": chat.last("version"),
        "message": message,
    }
    return [main, encode_json(value), b"\n"]
