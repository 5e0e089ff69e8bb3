"""pi with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.rehearsal.dialects import Anthropic

_MODEL = ("--model", "scripted/scripted")


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "fake", "models": [{"id": "scripted"}]}
    (folder / "models.json").write_text(json.dumps({"providers": {"scripted": provider}}) + "\n")
    return {"PI_OFFLINE": "1"}


rehearsal = Rehearsal(
    dialect=Anthropic(),
    home=home,
    args=lambda prompt: (*_MODEL, "-p", prompt),
    interactive_args=lambda prompt: (*_MODEL, prompt),
    shell=lambda command: ("bash", {"command": command}),
    write=lambda path, content: ("write", {"path": str(path), "content": content}),
)
