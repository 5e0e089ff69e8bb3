"""Runs programs and kills them, with all that they started, at an exact place: in front of their n-th system call.

A process of its own (`python -S halt.py`), since a tracer waits for all of its children: a request per line on stdin,
`{"argv": [...], "cwd": ..., "stop": n or null}`, an answer per line on stdout, `{"stops": n, "code": exit code}`; the
code is null for a program that was killed. Linux: ptrace(2).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

TRACEME, CONT, SYSCALL, SETOPTIONS, EVENT_STOP = 0, 7, 24, 0x4200, 128
OPTIONS = 1 | 2 | 4 | 8 | 16 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, EXEC, EXITKILL
WALL = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def run(argv: list[str], cwd: str, stop: int | None) -> tuple[int, int | None]:
    """How many system calls were begun, and the exit code; None when it was killed in front of number `stop`."""
    first = os.fork()
    if first == 0:
        os.setsid()
        os.chdir(cwd)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        libc.ptrace(TRACEME, 0, None, None)
        os.execvp(argv[0], argv)
    os.waitpid(first, WALL)  # its exec
    libc.ptrace(SETOPTIONS, first, None, OPTIONS)
    libc.ptrace(SYSCALL, first, None, None)
    inside: dict[int, bool] = {first: False}
    count, code = 0, None
    while inside:
        try:
            pid, status = os.waitpid(-1, WALL)
        except ChildProcessError:
            break
        if not os.WIFSTOPPED(status):
            inside.pop(pid, None)
            if pid == first and os.WIFEXITED(status):
                code = os.WEXITSTATUS(status)
            continue
        fresh = pid not in inside
        inside.setdefault(pid, False)
        deliver = 0
        if os.WSTOPSIG(status) == signal.SIGTRAP | 0x80:
            inside[pid] = not inside[pid]
            count += inside[pid]
            if inside[pid] and count == stop:
                for one in inside:
                    os.kill(one, signal.SIGKILL)
                while inside:
                    try:
                        done, status = os.waitpid(-1, WALL)
                    except ChildProcessError:
                        break
                    if not os.WIFSTOPPED(status):
                        inside.pop(done, None)
                return count, None
        elif status >> 16 == 0 and not fresh:
            deliver = os.WSTOPSIG(status)
        libc.ptrace(SYSCALL, pid, None, deliver)
    return count, code


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        stops, code = run(asked["argv"], asked["cwd"], asked["stop"])
        print(json.dumps({"stops": stops, "code": code}), flush=True)


class Halter:
    """The tracer's process, for a test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, argv: list[str], cwd: Path, stop: int | None = None) -> tuple[int, int | None]:
        """See `run`."""
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        pipes.stdin.write(json.dumps({"argv": argv, "cwd": str(cwd), "stop": stop}) + "\n")
        pipes.stdin.flush()
        said = json.loads(pipes.stdout.readline())
        return said["stops"], said["code"]

    def close(self) -> None:
        self._process.communicate()


if __name__ == "__main__":
    serve()
