"""Gemini CLI with a scripted model."""

from __future__ import annotations

from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.rehearsal.dialects import Gemini

# With statistics on, its end waits for a look-up of the name that they go to, as long as the resolver tries.
SETTINGS = """\
{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false}}
"""
TRUSTS = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    (home / ".gemini").mkdir(parents=True, exist_ok=True)
    (home / ".gemini" / "settings.json").write_text(SETTINGS)
    return {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": url, **TRUSTS}


rehearsal = Rehearsal(
    dialect=Gemini(),
    home=home,
    args=lambda prompt: ("--yolo", "-m", "gemini-2.5-pro", "--prompt", prompt),
    interactive_args=lambda prompt: ("--yolo", "-m", "gemini-2.5-pro", "--prompt-interactive", prompt),
    shell=lambda command: ("run_shell_command", {"command": command}),
    write=lambda path, content: ("write_file", {"file_path": str(path), "content": content}),
    trusts=TRUSTS,
)
