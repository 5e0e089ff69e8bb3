"""The recovery prompt as the user's last words in the restored session.

On the command line a leading `/` would be a command of Claude's own, and `@path` add that file. In the session file it
arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from wal_agent.agents.claude.resume import LineTemplate
from wal_agent.agents.claude.session import conversation_end, dump_session, load_session, new_entry, time_after


def inject_prompt(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once."""
    read = load_session(main)
    last = next((e for e in reversed(read.entries) if e.uuid), None)
    if last is not None and last.kind == "user" and last.message.get("content") == prompt:
        return main
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{conversation_end(read)} {prompt!r}")
    told = LineTemplate.of(read, session, workspace).line(
        "user", conversation_end(read), prompt, str(name), time_after(read)
    )
    read.entries.append(new_entry(told))
    return dump_session(read)
