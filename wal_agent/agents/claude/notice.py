"""The recovery prompt as the user's last words in the restored session.

On the command line a leading `/` would be a command of Claude's own, and `@path` add that file. In the session file it
arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from wal_agent.agents.claude.lines import after, dump, entry, leaf, load
from wal_agent.agents.claude.putback import Like


def tell(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once."""
    read = load(main)
    last = next((e for e in reversed(read.entries) if e.uuid), None)
    if last is not None and last.kind == "user" and last.message.get("content") == prompt:
        return main
    name = uuid.uuid5(uuid.NAMESPACE_OID, f"{leaf(read)} {prompt!r}")
    told = Like.of(read, session, workspace).line("user", leaf(read), prompt, str(name), after(read))
    read.entries.append(entry(told))
    return dump(read)
