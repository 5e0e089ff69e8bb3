"""The recovery prompt as the user's last words in the restored session.

Given on the command line, Gemini would rewrite it: `@path` is replaced by the file, `/` and `?` start commands; a
hook's context gets its `<` and `>` escaped. In the session file it arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from wal_agent.agents.gemini.jsonl import Message, dump, load
from wal_agent.agents.gemini.reconcile import EPOCH, mend_head

TITLE = "[wal-agent recovery]"


def tell(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once. A prompt that Gemini would drop from the history gets a title of its own before it."""
    read = load(main)
    mend_head(read, session, workspace)
    dropped = not prompt.strip() or prompt.lstrip().startswith(("/", "?", "<session_context>", "<hook_context>"))
    content = [{"text": TITLE + "\n"}, {"text": prompt}] if dropped else [{"text": prompt}]
    said = read.said()
    if not said or said[-1].kind != "user" or said[-1].value.get("content") != content:
        new = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{session} {len(read.messages)} {prompt!r}"))
        time = said[-1].value.get("timestamp", EPOCH) if said else EPOCH
        read.messages[new] = Message({"id": new, "timestamp": time, "type": "user", "content": content})
    return dump(read)
