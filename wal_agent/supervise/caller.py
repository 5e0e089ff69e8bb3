"""Was this command typed by an agent? It was where a live run is among its own ancestors.

A run is known by the lock that its supervisor holds, whatever the environment says: that can be stripped (`env -i`) or
point elsewhere, and a person's shell may have it too. What leaves the run's processes (another user, another container,
a service manager, cron, a login over the network) is not found.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.errors import PersonNeeded
from wal_agent.flock import flock_state
from wal_agent.supervise.callers import chain_of

_RUN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class OuterRun:
    """A run that this process is below. `supervisor`: its pid."""

    run: str
    supervisor: int

    @property
    def workspace(self) -> Path | None:
        """Where it works; None where that cannot be read."""
        with suppress(OSError):
            return Path(f"/proc/{self.supervisor}/cwd").readlink()
        return None


def outer_runs(pid: int | None = None) -> tuple[OuterRun, ...]:
    """The live runs that `pid` (this process) is below, the innermost first."""
    own = os.getpid() if pid is None else pid
    return tuple(
        OuterRun(run, process.pid)
        for process in chain_of(own, 0)
        if process.pid != own and (run := _run_of(process.pid))
    )


def require_person(command: str) -> None:
    """Raises PersonNeeded where an agent or one of its tools typed it (I8)."""
    if above := outer_runs():
        raise person_needed(command, above[0])


def person_needed(command: str, above: OuterRun) -> PersonNeeded:
    return PersonNeeded(
        f"`{command}` is for a person, and this was typed by the agent of run {above.run} or by a tool of its; nothing "
        "was done.",
        f"A person types it in a terminal of their own: {command}",
    )


def _run_of(supervisor: int) -> str:
    """The run whose lock this process has open, and somebody holds; "" for none."""
    for path in _open_files(supervisor):
        run = path.parent.name
        known = path.name == "lock" and _RUN.fullmatch(run) and path.with_name("hook.sock").exists()
        if known and flock_state(path) == "held":
            return run
    return ""


def _open_files(pid: int) -> Iterator[Path]:
    if sys.platform == "linux":
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    yield link.readlink()
        return
    import psutil

    with suppress(psutil.Error, OSError):
        for file in psutil.Process(pid).open_files():
            yield Path(file.path)
