"""Qwen Code with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.rehearsal.model import Call, Dialect
from wal_agent.rehearsal.openai import Chat

SETTINGS = {
    "security": {"auth": {"selectedType": "openai"}},
    "memory": {"enableManagedAutoMemory": False},  # a hidden run of the model would take turns of the script
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "ui": {"theme": "Qwen Dark"},
    "$version": 4,
}


dialect: Dialect = Chat()


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    (home / ".qwen").mkdir(parents=True, exist_ok=True)
    (home / ".qwen" / "settings.json").write_text(json.dumps(SETTINGS, indent=2))
    return {"OPENAI_API_KEY": "fake", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "scripted"}


def args(prompt: str) -> tuple[str, ...]:
    return ("--yolo", "--prompt", prompt)


def interactive_args(prompt: str) -> tuple[str, ...]:
    return ("--yolo", "--prompt-interactive", prompt)


def shell(command: str) -> Call:
    return "run_shell_command", {"command": command, "description": "scripted", "is_background": False}


def write(path: Path, content: str) -> Call:
    return "write_file", {"file_path": str(path), "content": content}
