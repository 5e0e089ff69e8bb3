"""The recovery prompt as the user's last words in the restored session: there it arrives byte for byte, and stays."""

from __future__ import annotations

import uuid
from pathlib import Path

from wal_agent.agents.qwen.chat import load_chat
from wal_agent.agents.qwen.resume import EPOCH
from wal_agent.agents.session_files import encode_json


def inject_prompt(main: bytes, session: str, workspace: Path, prompt: str) -> bytes:
    """Add it at the end, once."""
    chat = load_chat(main)
    last = chat.records[-1] if chat.records else None
    message = {"role": "user", "parts": [{"text": prompt}]}
    if last is not None and last.kind == "user" and last.value.get("message") == message:
        return main
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
    return main + encode_json(value) + b"\n"
