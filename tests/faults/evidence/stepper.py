"""Runs a program and ends it, with all that it started, in front of its n-th system call that may change a file: those
are all half-way states that a program can leave. Linux's ptrace and seccomp, on x86-64 and arm64."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_TRACEME, _CONT, _SETOPTIONS = 0, 7, 0x4200
_OPTIONS = 2 | 4 | 8 | 1 << 7 | 1 << 20  # TRACEFORK, TRACEVFORK, TRACECLONE, TRACESECCOMP, EXITKILL
_SECCOMP = signal.SIGTRAP | 7 << 8
_WALL = 0x40000000
_O_CREAT_OR_TRUNC = os.O_CREAT | os.O_TRUNC

# openat, then open (or -1), then the others: write pwrite64 ftruncate rename* unlink* mkdir* rmdir link* symlink* creat
_CALLS = {
    "x86_64": (257, 2, (1, 18, 77, 82, 264, 316, 87, 263, 83, 258, 84, 86, 265, 88, 266, 85)),
    "aarch64": (56, -1, (64, 68, 46, 38, 276, 35, 34, 37, 36)),
}


def _filter() -> bytes:
    """A BPF program over struct seccomp_data: stop at those calls, let the others pass."""
    openat, plain, others = _CALLS[os.uname().machine]
    load, equal, any_bit, ret = 0x20, 0x15, 0x45, 0x06

    def op(code: int, k: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("<HBBI", code, yes, no, k)

    tail = [op(ret, 0x7FFF0000), op(ret, 0x7FF00000)]  # allow, trace
    body = [op(load, 0)]
    for number, flags_at in ((openat, 32), (plain, 24)):
        if number >= 0:
            skip = len(others) + (3 if number == openat and plain >= 0 else 0)
            body += [op(equal, number, 0, 2), op(load, flags_at), op(any_bit, _O_CREAT_OR_TRUNC, skip + 1, skip)]
    body += [op(equal, number, len(others) - n, 0) for n, number in enumerate(others)]
    return b"".join([*body, *tail])


def _child(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
    os.chdir(cwd)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    code = ctypes.create_string_buffer(_filter())
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code.raw[:-1]) // 8, ctypes.addressof(code)))
    if _LIBC.ptrace(_TRACEME, 0, None, None) != 0:
        return
    os.kill(os.getpid(), signal.SIGSTOP)
    if _LIBC.prctl(38, 1, 0, 0, 0) or _LIBC.prctl(22, 2, ctypes.addressof(program), 0, 0):  # NO_NEW_PRIVS, SECCOMP
        return
    os.execvpe(argv[0], list(argv), dict(env))


def run(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], stop: int | None = None, sig: int = signal.SIGKILL
) -> int:
    """Run to the end, or to the stop of this number, from 1; how many there were. Another signal than SIGKILL goes to
    all processes, too, and they may answer it."""
    pid = os.fork()
    if not pid:
        try:
            _child(argv, cwd, env)
        finally:
            os._exit(127)
    alive, known, count, sent = {pid}, set[int](), 0, False
    while alive:
        who, status = os.waitpid(-1, _WALL)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            alive.discard(who)
            assert not (who == pid and os.WIFEXITED(status) and os.WEXITSTATUS(status) == 127), "cannot be traced here"
            continue
        alive.add(who)
        event, given = os.WSTOPSIG(status), 0
        if who not in known:
            known.add(who)
            _LIBC.ptrace(_SETOPTIONS, who, None, _OPTIONS)
        if status >> 8 == _SECCOMP:
            count += 1
        elif event not in (signal.SIGTRAP, signal.SIGSTOP):
            given = event
        if stop is not None and count >= stop and not sent:
            sent = True
            for one in alive:
                os.kill(one, sig)
        _LIBC.ptrace(_CONT, who, None, given)
    return count
