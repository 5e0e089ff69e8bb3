"""A child of a restored session file that Copilot resumes well (DESIGN 7.3). Pure and idempotent.

Copilot writes its session up to a second late, a person's words too, and at a resume it tells the model of each call
without an outcome that it was interrupted, whatever became of it; a call whose message was lost is not told at all. The
log has them, so they are put back. A file without its first line is refused by Copilot as corrupted: it gets one.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.copilot.log import EPOCH, Event, dump_events, load_events
from wal_agent.agents.copilot.resume import put_back

_SAID = ("user.message", "assistant.message")


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_events(main)
    repairs: list[str] = []
    if read.torn:
        repairs.append("The session file's last line was torn and was cut.")
    if read.junk:
        repairs.append(f"{read.junk} damaged line(s) of the session file were left out.")
    if mend_head(read.events, session, workspace):
        repairs.append("The session file's first line was damaged and was written anew.")
    put = put_back(read.events, session, calls)
    messages = sum(e.kind in _SAID and not e.inner for e in read.events)
    heard = tuple(str(e.data.get("content", "")) for e in read.events if e.kind == "user.message" and not e.inner)
    return Reconciled(dump_events(read.events), put, messages, tuple(repairs), heard)


def mend_head(events: list[Event], session: str, workspace: Path) -> bool:
    first = events[0] if events else None
    if first is not None and first.kind == "session.start" and first.data.get("sessionId") == session:
        return False
    time = next((t for e in events if isinstance(t := e.value.get("timestamp"), str)), EPOCH)
    head = {
        "type": "session.start",
        "data": {
            "sessionId": session,
            "version": 1,
            "producer": "copilot-agent",
            "copilotVersion": "",
            "startTime": time,
            "context": {"cwd": str(workspace)},
        },
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} head")),
        "timestamp": time,
        "parentId": None,
    }
    events[:] = [Event(head), *(e for e in events if e.kind != "session.start")]
    return True
