"""The heap that an agent of Node.js would give itself. Started as one process it skips that, and a long session would
die of V8's default limit; so the same argument is given to node here (I6)."""

from __future__ import annotations

from pathlib import Path

import psutil

from wal_agent.agents.base import Env

_HEAP_FLAG = "--max-old-space-size"


def node_command(program: Path, env: Env) -> tuple[str, ...]:
    """What to put before `program`: node and half of the memory as its heap. Nothing where it is no node script, or
    where NODE_OPTIONS say otherwise."""
    if _HEAP_FLAG in env.get("NODE_OPTIONS", "") or not _is_node_script(program):
        return ()
    return ("node", f"{_HEAP_FLAG}={psutil.virtual_memory().total // 2 // (1 << 20)}")


def _is_node_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.readline(200).rstrip() == b"#!/usr/bin/env node"
    except OSError:
        return False
