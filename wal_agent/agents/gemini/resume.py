"""A child of a restored session file that Gemini resumes well (DESIGN 7.3). Pure and idempotent.

Gemini writes the calls of a batch when all of them are over, and drops what is open when it resumes: a crash loses
calls that had ended (S1). The log has them, so they are put back. What else it heals, each measured on the real
program: a resume repeats every old result once more (S6); a prompt that a cancelled first turn, or another extension's
SessionStart hook, glued to a context record is no longer seen (S8, S4); a damaged first line gets the file deleted
(S13).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.gemini.putback import put_back
from wal_agent.agents.gemini.session import Message, Session, dump_session, load_session
from wal_agent.agents.session_files import Json

CONTEXTS = ("<session_context>", "<hook_context>")
EPOCH = "1970-01-01T00:00:00.000Z"


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_session(main)
    repairs: list[str] = []
    if read.junk:
        repairs.append(f"{read.junk} damaged line(s) of the session file were left out.")
    if mend_head(read, session, workspace):
        repairs.append("The session file's first line was damaged and was written anew.")
    if mend_contexts(read, session):
        repairs.append("A prompt that Gemini had merged into a context record stands by itself again.")
    mend_results(read)
    put = put_back(read, session, calls)
    if b"/tool-outputs/session-" in main:
        repairs += moved_outputs(main, session)
    heard = None if any(map(_has_words, read.messages.values())) else ()
    return Reconciled(dump_session(read), put, len(read.said()), tuple(repairs), heard)


def mend_head(read: Session, session: str, workspace: Path) -> bool:
    """S13. The head also names the workspace's hash, which changes with its path."""
    broken = not read.headed
    times = [t for m in read.messages.values() if isinstance(t := m.value.get("timestamp"), str)]
    filled: Json = {"startTime": times[0] if times else EPOCH, "lastUpdated": times[-1] if times else EPOCH}
    must = {"sessionId": session, "projectHash": hashlib.sha256(str(workspace).encode()).hexdigest()}
    read.meta = must | filled | {"kind": "main"} | read.meta | must
    return broken


def mend_contexts(read: Session, session: str) -> int:
    """S8 and S4: cut a user's record after its context; what follows becomes a record of its own."""
    mended: dict[str, Message] = {}
    cut = 0
    for key, message in read.messages.items():
        mended[key] = message
        context, rest = split_context(message)
        if not rest:
            continue
        new = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {key} prompt"))
        mended[key] = Message({**message.value, "content": context})
        mended[new] = Message({**message.value, "id": new, "content": rest})
        cut += 1
    read.messages = mended
    return cut


def split_context(message: Message) -> tuple[list[Any], list[Any]]:
    """The leading context parts of a user's record, and what a person said after them (empty: leave it as it is)."""
    parts = message.parts()
    lead = 0
    while lead < len(parts) and _text(parts[lead]).lstrip().startswith(CONTEXTS):
        lead += 1
    if message.kind != "user" or lead == 0:
        return parts, []
    context, rest = parts[:lead], parts[lead:]
    head, closed, tail = _text(context[-1]).partition("</hook_context>\n\n")
    if closed and head.lstrip().startswith("<hook_context>") and tail.strip():  # S4: both in one text
        context[-1], rest = {"text": head + "</hook_context>"}, [{"text": tail}, *rest]
    return (context, rest) if "".join(_text(part) for part in rest).strip() else (parts, [])


def mend_results(read: Session) -> None:
    """S6: each result once, in its own call; records that only repeat results are dropped."""
    told: set[str] = set()
    for message in read.messages.values():
        calls = message.calls
        ids = {str(c.get("id")) for c in calls}
        told |= {str(c.get("id")) for c in calls if c.get("result")}
        changed = [own_result(call, ids) for call in calls]
        if message.kind == "gemini" and changed != calls:
            message.value = {**message.value, "toolCalls": changed}
            message.line = None
    for key, message in list(read.messages.items()):
        parts = message.parts()
        if message.kind != "user" or not any(_response_id(p) in told for p in parts):
            continue
        left = [p for p in parts if _response_id(p) not in told]
        if left:
            read.messages[key] = Message({**message.value, "content": left})
        else:
            del read.messages[key]


def own_result(call: Json, batch: set[str]) -> Json:
    """A checkpoint gives every call of a batch the results of all, and those of earlier resumes again."""
    result = call.get("result")
    if not isinstance(result, list):
        return call
    kept: list[Any] = []
    for part in result:
        owner = _response_id(part)
        if (owner in batch and owner != str(call.get("id"))) or part in kept:
            continue
        if owner is not None and any(_response_id(p) == owner for p in kept):
            continue
        kept.append(part)
    return call if len(kept) == len(result) else {**call, "result": kept}


def moved_outputs(main: bytes, session: str) -> list[str]:
    return [
        "The session names its stored tool outputs by absolute paths; where this folder is another one, read the "
        f"files under tool-outputs/session-{session} of this machine instead."
    ]


def _has_words(message: Message) -> bool:
    """Whether a person says something in it: contexts and results of tools apart."""
    texts = (_text(part).lstrip() for part in message.parts())
    return message.kind == "user" and any(text and not text.startswith(CONTEXTS) for text in texts)


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else ""


def _response_id(part: Any) -> str | None:
    response = part.get("functionResponse") if isinstance(part, dict) else None
    found = response.get("id") if isinstance(response, dict) else None
    return found if isinstance(found, str) else None
