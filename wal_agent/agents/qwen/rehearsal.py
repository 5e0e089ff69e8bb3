"""Qwen Code with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.rehearsal.dialects import Chat

SETTINGS = {
    "security": {"auth": {"selectedType": "openai"}},
    "memory": {"enableManagedAutoMemory": False},  # a hidden run of the model would take turns of the script
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "ui": {"theme": "Qwen Dark"},
    "$version": 4,
}


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    (home / ".qwen").mkdir(parents=True, exist_ok=True)
    (home / ".qwen" / "settings.json").write_text(json.dumps(SETTINGS, indent=2))
    return {"OPENAI_API_KEY": "fake", "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "scripted"}


rehearsal = Rehearsal(
    dialect=Chat(),
    home=home,
    args=lambda prompt: ("--yolo", "--prompt", prompt),
    interactive_args=lambda prompt: ("--yolo", "--prompt-interactive", prompt),
    shell=lambda command: (
        "run_shell_command",
        {"command": command, "description": "scripted", "is_background": False},
    ),
    write=lambda path, content: ("write_file", {"file_path": str(path), "content": content}),
)
