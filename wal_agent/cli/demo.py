"""`wal-agent demo`."""

from __future__ import annotations

import os
import sys

import typer


def demo() -> None:
    """Watch the crash story: a real Gemini CLI loses its machine three times, at last with the folder, and goes on.

    Needs `gemini` on PATH (or WAL_AGENT_GEMINI) and git; no key, no network. Exits 1 if anything did not hold.
    """
    from wal_agent.agents import AGENTS
    from wal_agent.demo import run_demo

    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    AGENTS["gemini"].locate(os.environ)
    raise typer.Exit(run_demo(os.environ, show))
