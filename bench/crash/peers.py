"""What is compared. A peer says how an agent is started, and how it is started again after a crash."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wal_agent.agents.base import Agent
from wal_agent.drill.play import Bare, Subject, WalAgent

GO_ON: Final = "Go on with the task."
HERE: Final = Path(__file__).parent
DURABLE: Final = HERE.parents[1] / ".tools" / "pi-durable" / "bin" / "python"  # with pi-durable-python, as SDK
SDK: Final = HERE.parents[1] / ".tools" / "sdk" / "bin" / "python"  # with claude-agent-sdk, from `make bench-crash`


@dataclass(frozen=True, slots=True)
class Resume:
    """The agent's own way to go on with its newest session: its arguments, and its session files below HOME."""

    args: tuple[str, ...]
    sessions: str


RESUME: Final[Mapping[str, Resume]] = {
    "gemini": Resume(
        ("--yolo", "-m", "gemini-2.5-pro", "--resume", "latest", "--prompt", GO_ON), ".gemini/tmp/*/chats/*"
    ),
    "claude": Resume(("--dangerously-skip-permissions", "--continue", "--print", GO_ON), ".claude/projects/*/*.jsonl"),
    "codex": Resume(
        (
            *("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check"),
            *("resume", "--last", GO_ON),
        ),
        ".codex/sessions/*/*/*/*.jsonl",
    ),
    "copilot": Resume(("--allow-all", "--continue", "--prompt", GO_ON), ".copilot/session-state/*"),
    "kimi": Resume(("--continue", "--prompt", GO_ON), ".kimi-code/sessions/*/*/agents/main/wire.jsonl"),
    "opencode": Resume(("run", "--auto", "--continue", *GO_ON.split()), ".local/share/opencode/opencode.db"),
    "pi": Resume(("--model", "scripted/scripted", "--continue", "-p", GO_ON), ".pi/agent/sessions/*/*.jsonl"),
    "qwen": Resume(("--yolo", "--continue", "--prompt", GO_ON), ".qwen/projects/*/chats/*.jsonl"),
}


@dataclass(frozen=True, slots=True)
class BareResume:
    """A person starts the agent again with its own resume; where there is no session, from the beginning."""

    name: str = "bare resume"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        own = RESUME[agent.name]
        first, again = shlex.join([*program, *args]), shlex.join([*program, *own.args])
        if start == 0:
            return [*program, *args]
        return ["sh", "-c", f'if ls "$HOME"/{own.sessions} >/dev/null 2>&1; then exec {again}; else exec {first}; fi']


@dataclass(frozen=True, slots=True)
class RetryLoop:
    """A loop starts the agent until it exits with 0, at most three times; after a kill the loop starts again."""

    name: str = "retry loop"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return ["sh", "-c", f"for n in 1 2 3; do {shlex.join([*program, *args])} && exit 0; done; exit 1"]


@dataclass(frozen=True, slots=True)
class TmuxLoop:
    """A detached tmux session in which a loop starts the agent, with its own resume from the second start on. Started
    again, it waits for the session that still runs, and makes a new one where none does."""

    name: str = "tmux loop"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        once = shlex.join(BareResume().argv(start, agent, program, args, root))
        again = shlex.join(BareResume().argv(1, agent, program, args, root))
        loop = f"{once} || {again} || {again}"
        tmux = f"tmux -f /dev/null -S {shlex.quote(str(root / 'tmux'))}"
        made = f"{tmux} new-session -d -s drill {shlex.quote(loop)} 2>/dev/null"
        return ["sh", "-c", f"{made}; while {tmux} has-session -t drill 2>/dev/null; do sleep 0.1; done"]


@dataclass(frozen=True, slots=True)
class Sdk:
    """Claude Agent SDK with a SessionStore in a folder that outlives the machine (sdk.py)."""

    flush: str

    @property
    def name(self) -> str:
        return f"sdk {self.flush}"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return [str(SDK), str(HERE / "sdk.py"), self.flush, str(root / "bucket"), *program, args[-1], GO_ON]


@dataclass(frozen=True, slots=True)
class Durable:
    """Pi Durable by its Python port, its storage in a folder that outlives the machine (durable.py)."""

    name: str = "pi durable"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return [str(DURABLE), str(HERE / "durable.py"), str(root / "bucket" / "session.sqlite"), args[-1]]


@dataclass(frozen=True, slots=True)
class Ferrofaction:
    """The way that ferrofaction publishes, written again from its description (ferrofaction.py)."""

    name: str = "ferrofaction"

    def argv(self, start: int, agent: Agent, program: Sequence[str], args: Sequence[str], root: Path) -> Sequence[str]:
        return [sys.executable, str(HERE / "ferrofaction.py"), str(root / "bucket"), *program, *args]


PEERS: Final[tuple[Subject, ...]] = (
    Bare("bare restart"),
    BareResume(),
    RetryLoop(),
    TmuxLoop(),
    Sdk("batched"),
    Sdk("eager"),
    Durable(),
    Ferrofaction(),
    WalAgent(),
)
ONLY: Final[Mapping[str, str]] = {
    "sdk batched": "claude",
    "sdk eager": "claude",
    "ferrofaction": "gemini",
    "pi durable": "pi",
}


def applies(peer: Subject, agent: str) -> bool:
    """Whether the peer knows this agent."""
    return ONLY.get(peer.name, agent) == agent


def missing(peer: Subject) -> str:
    """Return what a peer needs and this machine lacks; "" for nothing."""
    if isinstance(peer, TmuxLoop) and shutil.which("tmux") is None:
        return "tmux"
    if isinstance(peer, Durable) and not DURABLE.exists():
        return "pi-durable-python (make bench-crash)"
    return "claude-agent-sdk (make bench-crash)" if isinstance(peer, Sdk) and not SDK.exists() else ""
