"""Runs of wal-agent without the second that importing it takes: one process imports everything, and forks for each.

Orders come as JSON lines on stdin; the answers are two lines each: the run's pid, then, once it is gone, its status (an
exit code, or -N: killed by signal N). It has one thread and no open connection, so a fork copies no lock that is held.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import wal_agent.bucket.gcs
import wal_agent.bucket.s3  # noqa: F401 - imported for the runs
from wal_agent import failpoints
from wal_agent.agents import AGENTS
from wal_agent.bucket import check
from wal_agent.config import Settings
from wal_agent.errors import WalAgentError
from wal_agent.supervise import lease_keeper
from wal_agent.supervise.options import RunOptions, Screen
from wal_agent.supervise.run import run
from wal_agent.text import lines, say
from wal_agent.wal import retention
from wal_agent.wal.writer import AckStatus, Ticket


def main() -> None:
    for line in sys.stdin:
        assert len(list(Path("/proc/self/task").iterdir())) == 1, "a fork would copy threads"
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            try:
                code = live(order)
            except BaseException:  # noqa: BLE001 - whatever it is, it must not go on into the loop
                traceback.print_exc()
                code = 70
            os._exit(code)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def live(order: dict[str, Any]) -> int:
    """`wal-agent run` from its parsed command line on. `broken`: the gate does not wait for the bucket (I1)."""
    os.setsid()
    said = os.open(order["said"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for fd, to in ((os.open(os.devnull, os.O_RDONLY), 0), (said, 1), (said, 2)):
        os.dup2(fd, to)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["workspace"])
    importlib.reload(failpoints)  # it reads the environment when it is imported
    lease_keeper.BUCKET_PAUSE = check.PAUSE = 0.05  # these stores do not throttle
    lease_keeper.LOOK = 0.1  # a run is short, and so is its log:
    retention.SnapshotPolicy.due = due  # type: ignore[method-assign]
    if order["broken"]:
        Ticket.wait = acked  # type: ignore[method-assign]
    wish = RunOptions(
        agent=AGENTS["gemini"],
        args=("--prompt", "work"),
        settings=Settings(**order["settings"]),
        workspace=Path(order["workspace"]),
        env=dict(os.environ),
        wait=order["wait"],
        attended=True,  # else five crashes are a crash loop
        take_over=True,  # no machine has a note of what another one began
    )
    try:
        return run(wish, Screen(say, lines)).code
    except WalAgentError as error:
        say(str(error))
        return error.exit_code


def due(self: retention.SnapshotPolicy, segments: int, size: int) -> bool:
    return segments >= 20


def acked(self: Ticket, timeout: float) -> AckStatus:
    return "acked"


if __name__ == "__main__":
    main()
