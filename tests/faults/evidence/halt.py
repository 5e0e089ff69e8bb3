"""Runs programs and ends them, with all that they started, at an exact place: in front of their n-th system call that
may change a file. Those are all half-way states that a program can leave.

A process of its own (`python -S halt.py`), since a tracer waits for all of its children: a request per line on stdin,
an answer per line on stdout, as `Halter.run` has them. Linux's ptrace(2) and seccomp(2), on x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

POINTS = "WAL_AGENT_TEST_POINTS"  # environment: how many places of each program are tried; 0 for all

_TRACEME, _CONT, _SETOPTIONS = 0, 7, 0x4200
_OPTIONS = 2 | 4 | 8 | 1 << 7 | 1 << 20  # TRACEFORK, TRACEVFORK, TRACECLONE, TRACESECCOMP, EXITKILL
_SECCOMP = signal.SIGTRAP | 7 << 8
_WALL = 0x40000000
_CREAT_OR_TRUNC = os.O_CREAT | os.O_TRUNC
_FICLONE = 0x40049409

# Calls that count if their argument (offset in struct seccomp_data) has the value; then calls that count always: write,
# writev, pwrite*, sendfile, splice, copy_file_range, truncate*, fallocate, rename*, link*, symlink*, unlink*, mkdir*,
# rmdir, mknod*, creat, openat2, chmod*, chown*, utime*, setxattr*, removexattr*.
_OPENAT, _OPEN, _IOCTL = (32, _CREAT_OR_TRUNC), (24, _CREAT_OR_TRUNC), (24, _FICLONE)
_CALLS = {
    "x86_64": (
        {257: _OPENAT, 2: _OPEN, 16: _IOCTL},
        "1 20 18 296 328 40 275 326 76 77 285 82 264 316 86 265 88 266 87 263 83 258 84 133 259"
        " 85 437 90 91 268 452 92 93 94 260 132 235 261 280 188 189 190 197 198 199",
    ),
    "aarch64": (
        {56: _OPENAT, 29: _IOCTL},
        "64 66 68 70 287 71 76 285 45 46 47 38 276 37 36 35 34 33 437 52 53 452 54 55 88 5 6 7 14 15 16",
    ),
}


class CannotTrace(Exception):
    """This machine does not let programs be stopped at their system calls."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"Programs cannot be traced on this machine ({why}), so no kill at an exact place can be tried. It takes "
            "Linux on x86-64 or arm64 with ptrace and seccomp; a container may need --cap-add=SYS_PTRACE."
        )


def _filter() -> bytes:
    """A BPF program over struct seccomp_data: stop at those calls, let the others pass."""
    some, always = _CALLS[os.uname().machine]
    load, equal, any_bit = 0x20, 0x15, 0x45

    def op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, k)

    allow, trace = op(0x06, 0x7FFF0000), op(0x06, 0x7FF00000)
    body = [op(load, 0)]
    for number, (offset, value) in some.items():
        test = op(any_bit if value == _CREAT_OR_TRUNC else equal, value, 0, 1)
        body += [op(equal, number, 0, 4), op(load, offset), test, trace, allow]
    body += [code for n in always.split() for code in (op(equal, int(n), 0, 1), trace)]
    return b"".join([*body, allow])


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return libc


def _child(libc: ctypes.CDLL, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> str:
    """Becomes the program; returns only if it may not be traced: why."""
    os.setsid()
    os.chdir(cwd)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    code = ctypes.create_string_buffer(_filter())
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code.raw[:-1]) // 8, ctypes.addressof(code)))
    if libc.ptrace(_TRACEME, 0, None, None) != 0:
        return f"ptrace: {os.strerror(ctypes.get_errno())}"
    os.kill(os.getpid(), signal.SIGSTOP)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.addressof(program), 0, 0):  # NO_NEW_PRIVS, SECCOMP
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return os.execvpe(argv[0], list(argv), dict(env))


def run(argv: Sequence[str], cwd: str, env: Mapping[str, str], stop: int | None, sig: int) -> int:
    """See `Halter.run`. The calling process has no other children."""
    if not sys.platform.startswith("linux") or os.uname().machine not in _CALLS:
        raise CannotTrace(f"{sys.platform}, {os.uname().machine}")
    libc = _libc()
    reader, writer = os.pipe()  # closed by the program's start
    pid = os.fork()
    if not pid:
        why = "not started"
        try:
            why = _child(libc, argv, cwd, env)
        except OSError as error:
            why = f"{argv[0]}: {error.strerror}"
        finally:
            os.write(writer, why.encode())
            os._exit(127)
    os.close(writer)
    alive, count = set[int](), 0
    while True:
        try:
            who, status = os.waitpid(-1, _WALL)
        except ChildProcessError:
            break
        if not os.WIFSTOPPED(status):
            alive.discard(who)
            continue
        ending = stop is not None and count >= stop
        if who not in alive:
            alive.add(who)
            libc.ptrace(_SETOPTIONS, who, None, _OPTIONS)
            if ending:  # it was on its way when the others were ended
                os.kill(who, sig)
        event, given = os.WSTOPSIG(status), 0
        if status >> 8 == _SECCOMP:
            count += 1
        elif event not in (signal.SIGTRAP, signal.SIGSTOP):
            given = event
        if not ending and stop is not None and count >= stop:
            for one in alive:
                os.kill(one, sig)
        libc.ptrace(_CONT, who, None, given)
    with os.fdopen(reader, "rb") as pipe:
        if why := pipe.read().decode():
            raise CannotTrace(why)
    if not count:
        raise CannotTrace("no call of a program's was seen")
    return count


def serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said: dict[str, object] = {"stops": run(**asked)}
        except CannotTrace as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


class Halter:
    """The tracer's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self,
        argv: Sequence[str],
        cwd: Path,
        stop: int | None = None,
        env: Mapping[str, str] | None = None,
        sig: int = signal.SIGKILL,
    ) -> int:
        """Run to the end, or to the place of this number, from 1; how many there were. Another signal than SIGKILL goes
        to all processes, too, and they may answer it. A program that cannot be stopped: fails the test."""
        pipes = self._process
        assert pipes.stdin is not None and pipes.stdout is not None
        asked = {"argv": list(argv), "cwd": str(cwd), "stop": stop, "env": dict(env or os.environ), "sig": sig}
        pipes.stdin.write(json.dumps(asked) + "\n")
        pipes.stdin.flush()
        said = json.loads(pipes.stdout.readline())
        if "error" in said:
            raise AssertionError(said["error"])
        stops: int = said["stops"]
        return stops

    def close(self) -> None:
        self._process.communicate()


def places(stops: int, most: int, rng: random.Random) -> list[int]:
    """Places from 1 to `stops`: any one in each of `most` equal parts (0: every place)."""
    if not most or stops <= most:
        return list(range(1, stops + 1))
    return [rng.randint(1 + stops * n // most, stops * (n + 1) // most) for n in range(most)]


def points(default: int) -> int:
    """How many places of a program a test tries."""
    return int(os.environ.get(POINTS, default))


if __name__ == "__main__":
    serve()
