"""What is compared. A peer says how an agent is started, and how it is started again after a crash."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wal_agent.agents.base import Agent
from wal_agent.drill.play import Bare, Subject, WalAgent

GO_ON: Final = "Go on with the task."
RESUME: Final[Mapping[str, tuple[str, ...]]] = {  # the agents' own way to go on with their newest session
    "gemini": ("--yolo", "-m", "gemini-2.5-pro", "--resume", "latest", "--prompt", GO_ON),
    "claude": ("--dangerously-skip-permissions", "--continue", "--print", GO_ON),
}


@dataclass(frozen=True, slots=True)
class BareResume:
    """A person starts the agent again with its own resume; where there is no session, from the beginning."""

    name: str = "bare resume"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        first, again = shlex.join([*program, *args]), shlex.join([*program, *RESUME[agent.name]])
        if start == 0:
            return [*program, *args]
        sessions = {"gemini": ".gemini/tmp/*/chats/*", "claude": ".claude/projects/*/*.jsonl"}[agent.name]
        return ["sh", "-c", f'if ls "$HOME"/{sessions} >/dev/null 2>&1; then exec {again}; else exec {first}; fi']


@dataclass(frozen=True, slots=True)
class RetryLoop:
    """A loop starts the agent until it exits with 0, at most three times; after a kill the loop starts again."""

    name: str = "retry loop"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return ["sh", "-c", f"for n in 1 2 3; do {shlex.join([*program, *args])} && exit 0; done; exit 1"]


@dataclass(frozen=True, slots=True)
class ResumeLoop:
    """The same with the agent's own resume from the second start on, as in tmux-based tools."""

    name: str = "resume loop"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        once = shlex.join(BareResume().argv(start, agent, program, args, root))
        again = shlex.join(BareResume().argv(1, agent, program, args, root))
        return ["sh", "-c", f"{once} && exit 0; for n in 1 2; do {again} && exit 0; done; exit 1"]


PEERS: Final[tuple[Subject, ...]] = (Bare("bare restart"), BareResume(), RetryLoop(), ResumeLoop(), WalAgent())
