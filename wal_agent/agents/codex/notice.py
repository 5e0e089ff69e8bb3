"""The recovery prompt as the user's last words in the restored session.

On the command line Codex would read it: `!` at its beginning runs a command, `$skill` brings in that skill's text. In
the session file it arrives byte for byte, and stays for later resumes.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.codex.head import EPOCH, head_line
from wal_agent.agents.codex.rollout import load_rollout, output_text
from wal_agent.agents.session_files import Json, encode_json


def inject_prompt(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once. `main` is empty or what `reconcile` made."""
    prompt = prompt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # Codex drops a line with half a pair
    main = main or head_line(session, workspace, "") + b"\n"
    read = load_rollout(main)
    content = [{"type": "input_text", "text": prompt}]
    last = read.last_said
    if last.get("role") == "user" and output_text(last.get("content")) == prompt:
        return main
    message: Json = {"type": "message", "role": "user", "content": content}
    record = {
        "timestamp": read.time or EPOCH,
        "ordinal": read.ordinal + 1,
        "type": "response_item",
        "payload": message,
    }
    return main + encode_json(record) + b"\n"
