"""The recovery prompt as the user's last words in the restored session.

On the command line Codex would read it: `!` at its beginning runs a command, `$skill` brings in that skill's text. In
the session file it arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.codex.head import EPOCH, head
from wal_agent.agents.codex.rollout import load, text_of
from wal_agent.agents.jsonl import Json, encode


def tell(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once. `main` is empty or what `reconcile` made."""
    prompt = prompt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # Codex drops a line with half a pair
    main = main or head(session, workspace, "") + b"\n"
    read = load(main)
    content = [{"type": "input_text", "text": prompt}]
    last = read.last_said
    if last.get("role") == "user" and text_of(last.get("content")) == prompt:
        return main
    message: Json = {"type": "message", "role": "user", "content": content}
    record = {
        "timestamp": read.time or EPOCH,
        "ordinal": read.ordinal + 1,
        "type": "response_item",
        "payload": message,
    }
    return main + encode(record) + b"\n"
