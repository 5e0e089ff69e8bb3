"""`wal-agent demo`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer


def demo(
    agent: Annotated[
        str,
        typer.Option("--agent", help="Whose CLI: claude, codex, gemini ... (see: wal-agent agents).", metavar="NAME"),
    ] = "gemini",
) -> None:
    """Watch the crash story: a real CLI loses its machine three times, at last with the folder, and goes on.

    Needs the agent's program on PATH (or in WAL_AGENT_<NAME>) and git; no key, no network. Exits 1 if anything did not
    hold.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.errors import UsageError
    from wal_agent.rehearsal.demo import run_demo

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if agent not in AGENTS:
        raise UsageError(f"{agent!r} is not an agent that wal-agent knows.", f"Known: {', '.join(sorted(AGENTS))}.")
    AGENTS[agent].locate(os.environ)
    raise typer.Exit(run_demo(AGENTS[agent], os.environ, show))
