"""Codex with a scripted model: a provider of its own on loopback, and a model on the plain path (not code mode)."""

from __future__ import annotations

import json
from pathlib import Path

from wal_agent.agents.base import Rehearsal
from wal_agent.rehearsal.dialects import Responses
from wal_agent.rehearsal.model import Call

MODEL = "gpt-5.5"
# Without the second line a first start on a terminal asks whether to change the model.
CONFIG = """model = "{model}"
notice.model_migrations = {{ "gpt-5.5" = "gpt-6-sol" }}
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"

[projects.{workspace}]
trust_level = "trusted"
"""


def home(home: Path, workspace: Path, url: str) -> dict[str, str]:
    config = home / ".codex" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(CONFIG.format(model=MODEL, url=url, workspace=json.dumps(str(workspace))))
    # A user's CODEX_HOME or index must not be the one that is used.
    return {"SCRIPTED_KEY": "fake", "CODEX_HOME": str(config.parent), "CODEX_SQLITE_HOME": str(config.parent)}


def write(path: Path, content: str) -> Call:
    lines = "".join(f"+{line}\n" for line in content.removesuffix("\n").split("\n"))
    return "apply_patch", {"input": f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch"}


rehearsal = Rehearsal(
    dialect=Responses(),
    home=home,
    args=lambda prompt: ("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", prompt),
    interactive_args=lambda prompt: ("--dangerously-bypass-approvals-and-sandbox", prompt),
    shell=lambda command: (
        "exec_command",
        {"cmd": command, "yield_time_ms": 30_000},
    ),  # by default one of 10 s counts as run on
    write=write,
)
