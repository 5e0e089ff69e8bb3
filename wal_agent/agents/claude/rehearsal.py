"""Claude Code with a scripted model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.rehearsal.dialects import Anthropic
from wal_agent.rehearsal.model import Call
from wal_agent.safefs import real_path

KEY = "sk-ant-scripted-000000000000000000000000"


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    answered = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "bypassPermissionsModeAccepted": True,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(real_path(workspace)): {"hasTrustDialogAccepted": True}},
    }
    place = home / ".claude.json"
    if not place.exists():  # Claude keeps its own state there
        home.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(answered))
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",  # as root, Claude would not approve every tool without it
    }


def write(path: Path, content: str) -> Call:
    if path.exists():  # Write and Edit want it read before, in the same session
        return rehearsal.shell(f"printf %s {shlex.quote(content)} > {shlex.quote(str(path))}")
    return "Write", {"file_path": str(path), "content": content}


rehearsal = Rehearsal(
    dialect=Anthropic(),
    home=home,
    args=lambda prompt: ("--dangerously-skip-permissions", "--print", prompt),
    interactive_args=lambda prompt: ("--dangerously-skip-permissions", prompt),
    shell=lambda command: ("Bash", {"command": command}),
    write=write,
)
