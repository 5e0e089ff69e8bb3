"""Ask a live run on this machine, over the socket of its hooks (hook_server.py): its status, a person's decision on a
call, a pause. Each question is one of the events below."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wal_agent.agents import hook_line
from wal_agent.errors import ConfigError, PersonNeeded, Unavailable, UsageError, WalAgentError
from wal_agent.paths import MARKER, SOCKET
from wal_agent.records import Host
from wal_agent.text import printable

_PIECE = 1 << 18

CONTROL_PREFIX = "wal-agent."
STATUS = CONTROL_PREFIX + "status"
ACK = CONTROL_PREFIX + "ack"
PAUSE = CONTROL_PREFIX + "pause"
SETTLE = CONTROL_PREFIX + "settle"
CHECKPOINT = CONTROL_PREFIX + "checkpoint"
MARK = CONTROL_PREFIX + "mark"
REWIND = CONTROL_PREFIX + "rewind"
STEP = CONTROL_PREFIX + "step"
TASK = CONTROL_PREFIX + "task"
CONTROL_TIMEOUT = 30.0
AT = "at"  # in a question: the job that it is about

_REFUSALS: dict[int, type[WalAgentError]] = {e.exit_code: e for e in (UsageError, PersonNeeded, ConfigError)}


def refusal(error: WalAgentError) -> dict[str, Any]:
    """Return the answer of a run that does not do what it is asked for."""
    return {"error": error.what, "hint": error.hint, "exit": error.exit_code}


def unless_refused(said: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a run's answer. Raise its `refusal`: UsageError, PersonNeeded, ConfigError; Unavailable for any other."""
    if said is not None and "error" in said:
        kind = _REFUSALS.get(int(said.get("exit", UsageError.exit_code)), Unavailable)
        raise kind(str(said["error"]), str(said.get("hint", "")))
    return said


def ask_run(
    owner: Host,
    run: str,
    at: tuple[str, str],
    event: str,
    question: dict[str, Any],
    timeout: float = CONTROL_TIMEOUT,
) -> dict[str, Any] | None:
    """The answer of the run that a lease names; None when it cannot be reached from here. Path and run come from the
    bucket: only a socket of this user's answers, and a run of another job than `at` (bucket and job) refuses."""
    try:
        path = Path(owner.lock).with_name("hook.sock")
        return ask_socket(path, run, event, {**question, AT: list(at)}, timeout)
    except ValueError:
        return None


def check_job(question: dict[str, Any], url: str, job: str) -> dict[str, Any]:
    """The question without the job that it is about. UsageError: it is not about this one."""
    if (about := question.pop(AT, None)) is not None and (_place(str(about[0])), about[1]) != (_place(url), job):
        raise UsageError(
            f"The lease of job {printable(str(about[1]))[:100]} names a run of job {job} in another place; nothing was "
            "done.",
            f"If you mean that one, name it: --job {job}",
        )
    return question


def _place(url: str) -> str:
    """What two names of one bucket have in common."""
    from wal_agent.bucket import folder_of

    folder = folder_of(url)
    return url if folder is None else os.path.realpath(folder)


def ask_socket(
    path: Path, run: str, event: str, question: dict[str, Any], timeout: float = CONTROL_TIMEOUT
) -> dict[str, Any] | None:
    """`ask_run`, of the socket at `path`. `timeout`: seconds for each step of it."""
    try:
        hello = hook_line.Hello(run, "wal-agent", event, os.getpid(), 0)
        if path.lstat().st_uid != os.getuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(hook_line.frame(hook_line.HELLO, hook_line.encode_hello(hello)))
            data = json.dumps(question).encode()
            for at in range(0, len(data), _PIECE):
                connection.sendall(hook_line.frame(hook_line.DATA, data[at : at + _PIECE]))
            connection.sendall(hook_line.frame(hook_line.END))
            with connection.makefile("rb") as stream:
                head = stream.read(hook_line.HEAD.size)
                if len(head) < hook_line.HEAD.size:
                    return None
                kind, size = hook_line.HEAD.unpack(head)
                if kind != hook_line.ANSWER or size > hook_line.MAX_FRAME:
                    return None
                answer = json.loads(stream.read(size))
            connection.sendall(hook_line.frame(hook_line.TOLD))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def ask_own_run(env: Mapping[str, str], event: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """Ask the live run whose tool this is, by its environment; None: there is none, or it does not answer."""
    path, run = env.get(SOCKET), env.get(MARKER)
    return ask_socket(Path(path), run, event, question) if path and run else None
