"""What a run is asked for, and where it talks to people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from wal_agent.agents.base import Agent
from wal_agent.bucket.base import Bucket
from wal_agent.config import Settings
from wal_agent.happened import Tell
from wal_agent.supervise.options import ShowWait, show_no_wait
from wal_agent.supervise.pulse import Liveness


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user asked for."""

    agent: Agent
    args: tuple[str, ...]
    settings: Settings
    workspace: Path
    env: dict[str, str]
    fresh: bool = False
    go_on: bool = False
    wait: bool = False
    accept_loss: bool = False  # take the job over although its owner's spool may hold records that nobody else has (R9)
    exit_on_pause: bool = False  # while the job is paused, this process need not stay
    attended: bool = False  # a person typed this at a terminal
    tell: Tell = lambda _: None  # who looks on: metrics, logs, notifications
    metered: Callable[[Bucket], Bucket] = lambda bucket: bucket  # who counts requests puts itself around the bucket
    trace: str = ""  # W3C trace id of this run, for its opening record
    pulse: Liveness = field(default_factory=Liveness)

    @property
    def interactive(self) -> bool:
        """Whether the agent will talk to a person."""
        return self.agent.is_interactive(self.args, sys.stdin.isatty() and sys.stdout.isatty(), self.env)


@dataclass(frozen=True, slots=True)
class Screen:
    """Where people read: `say` begins a message, `rows` are further lines of it. `on` says what is waited for."""

    say: Callable[[str], None]
    rows: Callable[[list[str]], None]
    on: ShowWait = show_no_wait
    said: set[str] = field(default_factory=set)

    def once(self, text: str) -> None:
        """A message that is not repeated when the run is begun again."""
        if text and text not in self.said:
            self.said.add(text)
            self.say(text)
