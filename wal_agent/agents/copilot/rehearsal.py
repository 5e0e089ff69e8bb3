"""Copilot with a scripted model."""

from __future__ import annotations

import json
import os
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.agents.copilot.hooks import program_cache
from wal_agent.rehearsal.dialects import Anthropic
from wal_agent.safefs import real_path


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    """The program's own unpacked files are the user's: unpacking them takes 10 seconds and 235 MB. And so is the
    choice of its version; offline it fetches none."""
    place = home / ".copilot" / "config.json"
    if not place.exists():  # Copilot keeps its own state there
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"trustedFolders": [str(real_path(workspace))]}))
    return {
        "COPILOT_OFFLINE": "true",
        "COPILOT_PROVIDER_TYPE": "anthropic",
        "COPILOT_PROVIDER_BASE_URL": url,
        "COPILOT_PROVIDER_API_KEY": "scripted",
        "COPILOT_MODEL": "claude-sonnet-4.5",
        "COPILOT_AUTO_UPDATE": os.environ.get("COPILOT_AUTO_UPDATE", ""),
        "COPILOT_PKG_CACHE_HOME": str(program_cache(os.environ)),
    }


rehearsal = Rehearsal(
    dialect=Anthropic(),
    home=home,
    args=lambda prompt: ("--allow-all", "--prompt", prompt),
    interactive_args=lambda prompt: ("--allow-all", "--interactive", prompt),
    shell=lambda command: ("bash", {"command": command, "description": "run"}),
    write=lambda path, content: ("create", {"path": str(path), "file_text": content}),
)
