"""A real Gemini CLI in a box, started with its own words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract import agent_box
from tests.contract.agent_box import Tty, done, popen, wait_until
from wal_agent.agents import gemini as GEMINI
from wal_agent.rehearsal.model import Model

__all__ = ["GEMINI", "Box", "Run", "Tty", "done", "history", "wait_until"]


class Box(agent_box.Box):
    def __init__(self, base: Path, gemini: Path) -> None:
        super().__init__(base, gemini, GEMINI)

    def begin(self, model: Model, args: Sequence[str]) -> subprocess.Popen[str]:
        """Gemini as the user starts it, without us."""
        return popen((str(self.program), *args), self.env(model), self.ws)


@dataclass
class Run(agent_box.Run):
    def go(self, model: Model, args: Sequence[str], resume: str | None = None) -> subprocess.Popen[str]:
        made = self.command(model, [*args, "-m", "gemini-2.5-pro"], resume, tty=False)
        return self.popen(made)

    def talk(self, model: Model, args: Sequence[str], resume: str | None = None) -> Tty:
        return self.on_tty(model, [*args, "-m", "gemini-2.5-pro"], resume)


def history(request: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What the model was sent, part by part, with the role; without what Gemini adds for its own bookkeeping."""
    return [
        (content["role"], {k: v for k, v in part.items() if k != "thoughtSignature"})
        for content in request["contents"]
        for part in content["parts"]
        if not part.get("text", "").startswith("<session_context>")
    ]
