"""supervise/exits.py: what goes through is what was written, and a sink that ends or waits does so for the writer,
too (I6). With real processes, as the agent's are."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import sys
import termios
import threading
from array import array
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE, until
from wal_agent.supervise.exits import MAX_TAIL, StderrTail, may_tee_stderr


def spawn(words: StderrTail, argv: list[str]) -> int:
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, words.inlet, 2)])
    words.began()
    return pid


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def waits_in(pipe: int) -> int:
    """Bytes."""
    count = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def python(body: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", f"import os, signal\n{body}"]


def test_bytes_order_and_exit_are_unchanged_and_the_tail_is_kept(tmp_path: Path) -> None:
    sink = os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(sink, b"before\n")
    words = StderrTail(sink)
    wrote = b"".join(b"%07d\xff\0\r\n" % n for n in range(20_000))
    pid = spawn(words, python("for n in range(20000): os.write(2, b'%07d\\xff\\0\\r\\n' % n)\nos._exit(7)"))
    assert code_of(pid) == 7
    tail = words.finish()
    assert (tmp_path / "err").read_bytes() == b"before\n" + wrote
    assert tail == wrote[-MAX_TAIL:]
    os.close(sink)


@pytest.mark.parametrize(("ignored", "ends"), [(True, 3), (False, -signal.SIGPIPE)])
def test_a_closed_sink_is_a_closed_pipe_for_the_agent(ignored: bool, ends: int) -> None:
    reader, sink = os.pipe()
    os.close(reader)
    words = StderrTail(sink)
    how = "SIG_IGN" if ignored else "SIG_DFL"
    body = f"signal.signal(signal.SIGPIPE, signal.{how})\ntry:\n while True: os.write(2, b'x')\n"
    pid = spawn(words, python(f"{body}except BrokenPipeError: os._exit(3)"))
    assert code_of(pid) == ends
    words.finish()
    os.close(sink)


def test_a_sink_that_waits_makes_the_agent_wait_and_loses_nothing() -> None:
    reader, sink = os.pipe()
    os.set_blocking(sink, False)  # as a terminal's may be, shared with others
    words = StderrTail(sink)
    size = 1 << 20  # more than the two pipes hold
    pid = spawn(words, python(f"left = b'y' * {size}\nwhile left: left = left[os.write(2, left):]"))
    until(lambda: waits_in(reader) >= 65536, "the sink is full")
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    got = bytearray()

    def read() -> None:
        while len(got) < size:
            got.extend(os.read(reader, 65536))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert code_of(pid) == 0
    words.finish()
    thread.join(PATIENCE)
    assert bytes(got) == b"y" * size
    for fd in (reader, sink):
        os.close(fd)


def test_what_still_holds_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    sink = os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT)
    words = StderrTail(sink)
    pid = spawn(words, ["sh", "-c", "echo last >&2; exec sleep 60"])
    until((tmp_path / "err").read_bytes, "the words")
    assert words.finish() == b"last\n"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(sink)


def test_a_sink_that_never_takes_it_is_given_up_only_in_a_hurry() -> None:
    reader, sink = os.pipe()
    words = StderrTail(sink)
    pid = spawn(words, python("os.write(2, b'z' * 65536)\nos.write(2, b'z' * 65536)"))
    assert code_of(pid) == 0
    assert words.finish(lambda: True).endswith(b"z")
    os.close(reader)
    until(lambda: not words._thread.is_alive(), "the copy ends with its sink")
    os.close(sink)


def test_only_where_nobody_can_tell_the_difference(tmp_path: Path) -> None:
    """Not at a terminal, not where the order with stdout would change."""
    one, other = (os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("a", "b"))
    again = os.open(tmp_path / "a", os.O_WRONLY)
    null = os.open(os.devnull, os.O_WRONLY)
    reader, pipe = os.pipe()
    master, terminal = pty.openpty()
    assert (
        may_tee_stderr(one, other)
        and may_tee_stderr(one, pipe)
        and may_tee_stderr(terminal, pipe)
        and may_tee_stderr(null, null)
    )
    assert not may_tee_stderr(one, again) and not may_tee_stderr(one, one) and not may_tee_stderr(pipe, pipe)
    assert not may_tee_stderr(one, terminal) and not may_tee_stderr(one, 9999)
    for fd in (one, other, again, null, reader, pipe, master, terminal):
        os.close(fd)
