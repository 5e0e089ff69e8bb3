"""A child of a restored session file that Qwen Code resumes well (DESIGN 7.3). Pure and idempotent.

Qwen Code drops calls without a result when it resumes: those that the log knows get theirs back (`putback.py`). What
else is healed, each measured on the real program: it finds no session whose first record names another folder; a record
that is lost in the middle silently ends the conversation there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.qwen.chat import Chat, dump_chat, load_chat
from wal_agent.agents.qwen.resume import put_back


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    chat = load_chat(main)
    repairs: list[str] = []
    if chat.junk:
        repairs.append(f"{chat.junk} damaged line(s) of the session file were left out.")
    if mend_links(chat):
        repairs.append("What stood before a lost record of the session is a part of it again.")
    for record in chat.records:
        record.change(sessionId=session, **({"cwd": str(workspace)} if "cwd" in record.value else {}))
    if chat.records:
        chat.records[0].change(cwd=str(workspace))
    put = put_back(chat, session, workspace, calls)
    said = sum(record.kind in ("user", "assistant") for record in chat.records)
    asked = any(record.kind == "user" for record in chat.live())
    return Reconciled(dump_chat(chat), put, said, tuple(repairs), None if asked else ())


def mend_links(chat: Chat) -> int:
    """A record whose parent is not there follows the one before it. A rewind may lead back to any that is there, or to
    none."""
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
