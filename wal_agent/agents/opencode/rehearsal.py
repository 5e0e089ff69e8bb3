"""OpenCode, or what is built from it, with a scripted model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.agents.opencode.edition import Edition
from wal_agent.rehearsal.dialects import Chat

QUIET = {"DISABLE_MODELS_FETCH": "1", "DISABLE_LSP_DOWNLOAD": "1"}


def home(edition: Edition, home: Path, workspace: Path, url: str) -> dict[str, str]:
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
        "enabled_providers": ["scripted"],  # Kilo's own would be asked for its models
        "model": model,
        "small_model": model,
    }
    folder = home / ".config" / edition.name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / edition.files[1]).write_text(json.dumps({**config, "provider": {"scripted": provider}}, indent=1))
    quiet = edition.variables({**QUIET, **edition.quiet})
    return {**quiet, "npm_config_registry": url}  # which has no package


def rehearsal(edition: Edition) -> Rehearsal:
    return Rehearsal(
        dialect=Chat(),
        home=partial(home, edition),
        args=lambda prompt: ("run", "--auto", *prompt.split(" ")),  # one word with a blank would get quotes
        interactive_args=lambda prompt: ("--auto", f"--prompt={prompt}"),
        shell=lambda command: ("bash", {"command": command, "description": "run it"}),
        write=lambda path, content: ("write", {"filePath": str(path), "content": content}),
    )
