"""The first line of a rollout, for a session whose own was lost or never saved."""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.session_files import encode_json

EPOCH = "1970-01-01T00:00:00.000Z"


def head_line(session: str, workspace: Path, time: str) -> bytes:
    about = {
        "session_id": session,
        "id": session,
        "timestamp": time or EPOCH,
        "cwd": str(workspace),
        "originator": "codex_exec",
        "cli_version": "0.0.0",
        "source": "exec",
        "model_provider": None,
    }
    return encode_json({"timestamp": time or EPOCH, "ordinal": 0, "type": "session_meta", "payload": about})
