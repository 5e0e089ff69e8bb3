"""pi with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.rehearsal.anthropic import Anthropic
from wal_agent.rehearsal.model import Call, Dialect

_MODEL = ("--model", "scripted/scripted")


dialect: Dialect = Anthropic()


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    provider = {"baseUrl": url, "api": "anthropic-messages", "apiKey": "fake", "models": [{"id": "scripted"}]}
    (folder / "models.json").write_text(json.dumps({"providers": {"scripted": provider}}) + "\n")
    return {"PI_OFFLINE": "1"}


def args(prompt: str) -> tuple[str, ...]:
    return (*_MODEL, "-p", prompt)


def interactive_args(prompt: str) -> tuple[str, ...]:
    return (*_MODEL, prompt)


def shell(command: str) -> Call:
    return "bash", {"command": command}


def write(path: Path, content: str) -> Call:
    return "write", {"path": str(path), "content": content}
