"""A child of a restored session file that Claude Code resumes well (DESIGN 7.3). Pure and idempotent.

Claude writes a call when its whole message has arrived, which may be seconds after the call has run, and never syncs
the file; what has no result when it resumes it drops without a word. The log has both, so they are put back. What else
it heals, each measured on the real program: Claude does not cut a torn tail but writes behind it, and loses what it
writes; a line that is missing in the middle hides all that was before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal_agent.agents.base import LoggedCall, Reconciled
from wal_agent.agents.claude.resume import put_back
from wal_agent.agents.claude.session import Session, dump_session, is_turn, load_session


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    read = load_session(main)
    repairs: list[str] = []
    if read.junk:
        repairs.append(f"{read.junk} damaged line(s) of the session file were left out.")
    if linked := mend_chain(read):
        repairs.append(f"{linked} line(s) whose predecessor was lost follow the one before them again.")
    put = put_back(read, session, workspace, calls)
    if f"/{session}/tool-results/".encode() in main:
        repairs.append(
            "The session names its stored tool outputs by absolute paths; where this folder is another one, read the "
            f"files under {session}/tool-results of this machine instead."
        )
    asked = _asked(read)
    return Reconciled(dump_session(read), put, asked + _answers(read), tuple(repairs), None if asked else ())


def mend_chain(read: Session) -> int:
    """A line that follows none in the file follows the one before it. Which lines Claude took back on purpose cannot
    be told from those that were lost; either way what is left is one conversation."""
    known = {str(e.value.get("uuid")) for e in read.entries}
    before: str | None = None
    mended = 0
    for e in read.entries:
        if not e.uuid:
            continue
        parent = e.value.get("parentUuid")
        if parent is not None and str(parent) not in known and before is not None:
            e.change({**e.value, "parentUuid": before})
            mended += 1
        before = e.uuid
    return mended


def _asked(read: Session) -> int:
    """How often people speak: results of tools apart."""
    return sum(is_turn(e.value) and not any(True for _ in e.results()) for e in read.entries)


def _answers(read: Session) -> int:
    return len({str(e.message.get("id")) for e in read.entries if e.kind == "assistant" and e.uuid})
