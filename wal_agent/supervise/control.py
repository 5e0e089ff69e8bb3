"""Asking a live run on this machine, over its hook socket: what waits to be saved, a person's word on a call, a
pause."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from wal_agent import hookwire
from wal_agent.records import Host

CONTROL_PREFIX = "wal-agent."
STATUS = CONTROL_PREFIX + "status"
ACK = CONTROL_PREFIX + "ack"
PAUSE = CONTROL_PREFIX + "pause"
CONTROL_TIMEOUT = 30.0


def ask_run(owner: Host, run: str, event: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """The run's answer; None when it cannot be reached from here. The path comes from the bucket, so only a socket of
    this user's answers; the run id must fit as well."""
    try:
        return ask_socket(Path(owner.lock).with_name("hook.sock"), run, event, question)
    except ValueError:
        return None


def ask_socket(path: Path, run: str, event: str, question: dict[str, Any]) -> dict[str, Any] | None:
    """`ask`, of the socket at `path`."""
    try:
        hello = hookwire.Hello(run, "wal-agent", event, os.getpid(), 0)
        if path.lstat().st_uid != os.getuid():
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_TIMEOUT)
            connection.connect(str(path))
            connection.sendall(hookwire.frame(hookwire.HELLO, hookwire.encode_hello(hello)))
            connection.sendall(hookwire.frame(hookwire.DATA, json.dumps(question).encode()))
            connection.sendall(hookwire.frame(hookwire.END))
            with connection.makefile("rb") as stream:
                head = stream.read(hookwire.HEAD.size)
                if len(head) < hookwire.HEAD.size:
                    return None
                kind, size = hookwire.HEAD.unpack(head)
                if kind != hookwire.ANSWER or size > hookwire.MAX_FRAME:
                    return None
                answer = json.loads(stream.read(size))
            connection.sendall(hookwire.frame(hookwire.TOLD))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None
