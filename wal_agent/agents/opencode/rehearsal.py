"""OpenCode with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.rehearsal.dialects import Chat


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # comes with OpenCode
        "name": "scripted",
        "options": {"baseURL": f"{url}/v1", "apiKey": "fake"},
        "models": {"scripted": {"name": "scripted"}},
    }
    model = "scripted/scripted"
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": model,
        "small_model": model,
    }
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "opencode.json").write_text(json.dumps({**config, "provider": {"scripted": provider}}, indent=1))
    quiet = dict.fromkeys(("OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD"), "1")
    return {**quiet, "npm_config_registry": url}  # which has no package


rehearsal = Rehearsal(
    dialect=Chat(),
    home=home,
    args=lambda prompt: ("run", "--auto", *prompt.split(" ")),  # one word with a blank would get quotes
    interactive_args=lambda prompt: ("--auto", f"--prompt={prompt}"),
    shell=lambda command: ("bash", {"command": command, "description": "run it"}),
    write=lambda path, content: ("write", {"filePath": str(path), "content": content}),
)
