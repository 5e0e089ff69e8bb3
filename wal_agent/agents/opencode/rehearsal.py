"""OpenCode with a scripted model."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.rehearsal.model import Call, Dialect
from wal_agent.rehearsal.openai import Chat

dialect: Dialect = Chat()


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


def args(prompt: str) -> tuple[str, ...]:
    return ("run", "--auto", *prompt.split(" "))  # one word with a blank would get quotes


def interactive_args(prompt: str) -> tuple[str, ...]:
    return ("--auto", f"--prompt={prompt}")


def shell(command: str) -> Call:
    return "bash", {"command": command, "description": "run it"}


def write(path: Path, content: str) -> Call:
    return "write", {"filePath": str(path), "content": content}
