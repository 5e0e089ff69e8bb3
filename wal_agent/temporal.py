"""Run an agent as a Temporal activity (extra `temporal`). Each try continues the job of the one before.

The activity lives as long as `wal-agent run`, which ends by itself once it has lost the lease: so a heartbeat says that
this try may act. A worker that dies leaves its run behind; the next try waits for that one's lease, and `--once` runs
nothing where the task is complete already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from wal_agent.paths import PROGRAM
from wal_agent.text import why_it_failed

HEARTBEAT: Final = 5.0  # seconds
MAX_SAID: Final = 64 << 10  # bytes of stderr that are kept, for the message

# An exit code's name, and whether another try may end otherwise (docs/OPERATIONS.md, exit codes).
OURS: Final[Mapping[int, tuple[str, bool]]] = {
    64: ("Usage", False),
    69: ("Unavailable", True),
    70: ("Bug", True),
    73: ("Damaged", False),
    74: ("NotDone", True),
    75: ("NotNow", True),
    76: ("TakenOver", False),
    77: ("Denied", False),
    78: ("Configuration", False),
    79: ("PersonNeeded", False),
    80: ("CrashLoop", False),
    143: ("Drained", True),
}


@dataclass(frozen=True)  # Temporal's own converter knows no other class of data
class AgentTask:
    """`args`: the agent's, with the prompt. `job`: its name, the same for every try. `folder`: the workspace on this
    worker. `options`: further ones of `wal-agent run`, as `--bucket=URL`."""

    agent: str
    args: Sequence[str]
    job: str
    folder: str
    options: Sequence[str] = field(default=())


@activity.defn(name="wal-agent run")
async def run_agent(task: AgentTask) -> None:
    """Return once the task is complete. ApplicationError: it is not; its type is a name of `OURS`, or "AgentFailed",
    with the exit code. A cancelled activity, and a worker that shuts down, drain the run: all is saved."""
    words = ["run", task.agent, "--job", task.job, "--once", "--wait", *task.options, "--", *task.args]
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, *words, cwd=task.folder, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    said = asyncio.create_task(_end_of(process.stderr))
    ended = asyncio.create_task(process.wait())
    leaving = asyncio.create_task(activity.wait_for_worker_shutdown())
    try:
        while not ended.done():
            activity.heartbeat()
            waited = {ended} if leaving.done() else {ended, leaving}
            await asyncio.wait(waited, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
            if leaving in waited and leaving.done() and not ended.done():
                process.terminate()
    except asyncio.CancelledError:
        if not ended.done():
            process.terminate()
        await ended
        raise
    finally:
        leaving.cancel()
    if (code := await ended) != 0:
        raise failure(code, await said)


def failure(code: int, said: str) -> ApplicationError:
    """Return the error for an exit code that is not 0. `said`: the end of stderr. Pure."""
    name, again = OURS.get(code, ("AgentFailed", code < 0))  # by a signal: its machine may be short of memory
    why = "\n".join(why_it_failed(said))
    return ApplicationError(why or f"exit code {code}", code, type=name, non_retryable=not again)


async def _end_of(stream: asyncio.StreamReader | None) -> str:
    """Not by lines: of one that is too long asyncio reads no more, and the run would wait for its reader."""
    end = b""
    while stream is not None and (part := await stream.read(MAX_SAID)):
        end = (end + part)[-MAX_SAID:]
    return end.decode("utf-8", "replace")
