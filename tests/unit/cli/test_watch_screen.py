"""`status --watch` on a terminal: a screen that fits its window, also after the window has changed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from tests.unit.cli.shelf import SECRET, Run, full
from wal_agent.cli.status import screen_rows

PATIENCE = 60.0


def resize(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(fd: int, wanted: bytes) -> bytes:
    """What comes up to and with `wanted`."""
    got, end = b"", time.monotonic() + PATIENCE
    while wanted not in got:
        assert time.monotonic() < end, got[-2000:]
        if select.select([fd], [], [], 1.0)[0]:
            try:
                got += os.read(fd, 65_536)
            except OSError:
                raise AssertionError(got[-2000:]) from None
    return got


def test_it_shows_job_and_records_and_fits_a_smaller_window(tmp_path: Path) -> None:
    shelf = full(tmp_path / "b")
    ours, theirs = pty.openpty()
    resize(ours, 60, 150)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WAL_AGENT_", "XDG_", "COLUMNS", "LINES"))}
    at = ["--bucket", shelf.url, "--job", "shop", "--watch", "--every", "0.3"]
    watched = subprocess.Popen(
        [sys.executable, "-m", "wal_agent", "status", *at],
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, cwd=tmp_path,
        env={**env, "HOME": str(tmp_path), "TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        wide = read_until(ours, b"last records")
        assert b"\x1b[?1049h" in wide and b"file://" in wide
        assert b"agent ended" in read_until(ours, b"agent ended")
        resize(ours, 8, 40)
        os.kill(watched.pid, signal.SIGWINCH)
        frame, small = b"", b""
        while not (0 < frame.count(b"\n") <= 8 and b"last records" not in frame):  # each begins with "every"
            frame = read_until(ours, b"every 0.3 s")
            small += frame
        os.kill(watched.pid, signal.SIGINT)
        end = read_until(ours, b"\x1b[?1049l")
        while watched.poll() is None or select.select([ours], [], [], 0)[0]:
            try:
                end += os.read(ours, 65_536)
            except OSError:
                break  # it has ended
        assert b"shop" in end.partition(b"\x1b[?1049l")[2]  # what was shown last stays on the first screen
        assert SECRET.encode() not in wide + small + end
    finally:
        watched.kill()
        watched.wait()
        os.close(ours)


def test_what_matters_comes_first() -> None:
    rows = screen_rows(["job shop"], ["5 turn"], "away", 2.0)
    assert rows == ["every 2 s; Ctrl-C ends it; waiting: away", "", "job shop", "", "last records", "5 turn"]
    assert screen_rows(["job shop"], [], "", 2.0) == ["every 2 s; Ctrl-C ends it", "", "job shop"]


def test_the_fleet_is_drawn_in_place_and_stays_at_the_end(tmp_path: Path) -> None:
    shelf = full(tmp_path / "b")
    ours, theirs = pty.openpty()
    resize(ours, 20, 100)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("WAL_AGENT_", "XDG_", "COLUMNS", "LINES"))}
    watched = subprocess.Popen(
        [sys.executable, "-m", "wal_agent", "fleet", "watch", "--screen", "--bucket", shelf.url, "--every", "0.3"],
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, cwd=tmp_path,
        env={**env, "HOME": str(tmp_path), "TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        assert b"\x1b[?1049h" in read_until(ours, b"shop")
        os.kill(watched.pid, signal.SIGINT)
        end = read_until(ours, b"\x1b[?1049l")
        if b"shop" not in end.partition(b"\x1b[?1049l")[2]:  # it may have come in one read
            end += read_until(ours, b"shop")
        assert SECRET.encode() not in end
    finally:
        watched.kill()
        watched.wait()
        os.close(ours)


def test_a_screen_needs_a_terminal_and_runs_nothing(tmp_path: Path, run: Run) -> None:
    at = ("fleet", "watch", "--screen", "--bucket", full(tmp_path / "b").url)
    assert run(*at)[0] == 64 and run(*at, "--on-crash", "true")[0] == 64
