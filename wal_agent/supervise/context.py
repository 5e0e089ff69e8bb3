"""Hold what is fixed while agents run under one epoch, and what the parts of a running agent ask of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from wal_agent.agents.base import Agent, Command, Deny, Env
from wal_agent.clock import Clock
from wal_agent.config import Settings
from wal_agent.errors import WalAgentError
from wal_agent.events import Emit
from wal_agent.supervise.phases import Action
from wal_agent.wal.job import OpenedJob


@dataclass(frozen=True, slots=True)
class RunContext:
    """The job that a run owns, and what it works with. `env`: what the agent gets; `emit`: takes each event."""

    job: OpenedJob
    agent: Agent
    settings: Settings
    workspace: Path
    env: Env
    clock: Clock
    emit: Emit = lambda _: None


@dataclass(frozen=True, slots=True)
class Launch:
    """How the agent starts: its command, and the session that it is to work in."""

    command: Command
    session: str
    resumed: bool = False
    notice: str = ""  # the recovery's words, with which its first turn begins
    turn_open: bool = False  # the session has a turn that is not completed
    interactive: bool = True  # a person sits before it
    args: tuple[str, ...] = ()  # the user's own


class Supervisor(Protocol):
    """What the parts of a running agent ask of the whole (live.py). From any thread. Only
    `may_begin_turn` and `answer_command` wait for anything."""

    def stop(self, error: WalAgentError) -> None:
        """End the agent's whole tree, for this reason."""

    def fail(self, error: BaseException) -> None:
        """Report a failure of ours. Fenced and damage end the run."""

    def request_save(self) -> None:
        """Capture the session soon."""

    def mark_boundary(self, call: int) -> None:
        """Calls numbered up to this are all in the session file from now on, if they come there at all."""

    def switch_session(self, session: str) -> None:
        """The agent began another session."""

    def may_begin_turn(self, session: str) -> Deny | None:
        """Wait until a turn of `session` may begin; the refusal where it may not."""

    def on_phase(self, actions: Sequence[Action]) -> None:
        """Do what the table of phases asks for on an event."""

    def answer_command(self, event: str, question: dict[str, Any], by_agent: bool) -> dict[str, Any]:
        """Answer a command of a person on this machine, or of a tool of the agent's (`by_agent`). Waits for the bucket
        at most for an acknowledgement. LookupError: there is no such command; KeyError, TypeError, ValueError."""

    def check_handshake(self, appended: bytes) -> None:
        """Look at what was appended to the session file (I5): a turn that began without a handshake has no hooks."""
