"""Run the job of a task, for `wal-agent task`, and read its result from its log (docs/TASKS.md)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from wal_agent.agents import AGENTS
from wal_agent.agents.base import Agent
from wal_agent.bucket.base import Bucket
from wal_agent.clock import SystemClock
from wal_agent.errors import UsageError
from wal_agent.failpoints import failpoint
from wal_agent.paths import MARKER, SOCKET
from wal_agent.records import Checkpoint, TaskOf
from wal_agent.recovery.checkpoint import Occasion, checkpoint_of
from wal_agent.recovery.tasks import AGAIN, CompactForm, Said, compact_form
from wal_agent.recovery.transcript import read_lines
from wal_agent.supervise import hook_server
from wal_agent.supervise.intervene import require_lease, unless_refused
from wal_agent.supervise.rewrite import act_at_rest
from wal_agent.supervise.tasks import VARIABLE, TaskStart, spent_by
from wal_agent.text import say
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

ENDING: Final = 30.0  # seconds for a child that is over its budget to save and stop; then it is killed
MOST_SAID: Final = 1 << 20  # bytes of its stderr that are read


class Place(msgspec.Struct, frozen=True):
    """Where the job of a task is. `options`: of a command for its bucket and key."""

    bucket: Bucket
    job: str
    agent: str
    options: tuple[str, ...]

    def state(self) -> State:
        """As its log says now."""
        return replay(self.bucket, Keys(self.job)).state


def run_child(at: Place, args: tuple[str, ...], start: TaskStart, seconds: float, *, once: bool) -> tuple[int, str]:
    """Run the child, at most for `seconds`; its exit code, and what it said on stderr. `once`:
    unless it is complete."""
    # The caller saves the folder that both work in.
    own = {"WAL_AGENT_WORKSPACE": "off", VARIABLE: msgspec.json.encode(start).decode()}
    words = [sys.executable, "-m", "wal_agent", "run", at.agent, "--job", at.job, *at.options]
    failpoint("task.before_child")
    with tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [*words, *(["--once"] if once else []), "--", *args],
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # its last message is in its session
            stderr=err,
        )
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so an agent ends a tool that takes too long
        try:
            code = child.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            say(f"the task is over its budget of {seconds:.0f} s, and is ended.")
            code = _end(child)
        except BaseException:
            _end(child)
            raise
        failpoint("task.after_child")
        err.seek(0)
        return code, err.read(MOST_SAID).decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> int:
    """End it in good order: what it did is saved, and the same task carries on from there. Never 0."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.wait(ENDING) or 1
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait() or 1


def begin_in_run(env: Mapping[str, str], caller: str, job: str) -> dict[str, Any] | None:
    """Have the run whose tool this is begin its task `job`; its answer. None: there is none that has the job `caller`.
    UsageError: it refuses."""
    path, run = env.get(SOCKET), env.get(MARKER)
    question = {"ask": "begin", "job": job, "caller": caller}
    said = hook_server.ask_socket(Path(path), run, hook_server.TASK, question) if path and run else None
    return unless_refused(said) if said is None or said.get("caller") != "" else None


def start_of(caller: str, said: Mapping[str, Any], depth: int, budget: int) -> TaskStart:
    """Return what the task's run is given. `said`: the answer of the caller's run, or what was done in its place."""
    of = TaskOf(job=caller, epoch=int(said.get("epoch", 0)), checkpoint=int(said["checkpoint"]), depth=depth)
    return TaskStart(of=of, budget=budget, run=str(said.get("run", "")), counted=bool(said.get("counted")))


def begin_at_rest(
    bucket: Bucket, keys: Keys, ttl: float, env: Mapping[str, str], key_id: str, state: State, job: str
) -> dict[str, Any]:
    """Do the same for a person: in the run of the job on this machine, else in the job at rest. LeaseHeld: it runs
    elsewhere."""
    if (known := state.tasks.get(job)) is not None:
        return {"checkpoint": known.checkpoint}
    seen = require_lease(bucket, keys)
    question = {"ask": "begin", "job": job, "caller": keys.job}
    said = (
        hook_server.ask_run(seen.doc.host, seen.doc.run, hook_server.TASK, question)
        if seen.doc.state == "held"
        else None
    )
    if (answer := unless_refused(said)) is not None:
        return {"checkpoint": answer["checkpoint"]}  # no run bounds what a person asked for
    made: list[Checkpoint] = []

    def act(opened: OpenedJob) -> None:
        at, time = opened.writer.acked, SystemClock().now()
        made.append(checkpoint_of(at.state, Occasion(keys.job, seen.doc.agent, at.seq, "manual", time, task=job)))
        opened.writer.append(made[0])

    act_at_rest(bucket, keys, ttl, env, key_id, lambda _: None, act)
    return {"checkpoint": made[0].number}


def read_result(at: Place, said: Said, budget: int) -> CompactForm:
    """The compact form of a task that has ended. `said`: its last message; `budget`: calls, 0 for no limit."""
    state = at.state()
    over = budget > 0 and spent_by(at.bucket, state) > budget
    return compact_form(at.job, at.agent, state, said, budget if over else 0)


def asked_again(state: State) -> bool:
    """Whether the child was asked for its form a second time."""
    prompt = state.prompt.prompt if state.prompt else None
    return prompt is not None and (prompt.data or b"").startswith(AGAIN.encode())


def local_file(agent: Agent, session: str, workspace: Path, env: Mapping[str, str]) -> Path:
    """The main file of a session on this machine. UsageError: there is none."""
    for file in agent.session_files(session, workspace, env) if session else []:
        if file.name == agent.main_file:
            return file.path
    raise UsageError("The caller's conversation is not on this machine, so it is not forked.", "Leave --fork out.")


def last_answer(at: Place) -> str:
    """The last message of the child's conversation, "" where there is none."""
    state = at.state()
    last, file = "", state.files.get(AGENTS[at.agent].main_file)
    if file is None:
        return last
    with tempfile.TemporaryDirectory(prefix="wal-agent-task-") as folder:
        path = Path(folder) / "session"
        write_file(Blobs(at.bucket, Keys(at.job), SystemClock(), random.Random()), file, path)
        if (read := AGENTS[at.agent].capabilities.last_answer) is not None:
            return read(path.read_bytes())
        with path.open("rb") as lines:
            for line in read_lines(lines):
                last = line.text if line.role == "assistant" and line.text.strip() else last
    return last
