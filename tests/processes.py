"""What tests ask of processes that may end, or be reaped, between one look and the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def gone(pid: int) -> bool:
    """Not running any more; whether somebody has reaped it is not the asker's affair."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def command_line(process: psutil.Process) -> str:
    """Its words, with spaces between them; nothing for one that ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie is one too
        return ""


def of_home(home: Path) -> Iterator[psutil.Process]:
    """All that run with this HOME, whoever started them: those of one pretended machine. Git that saves a working tree
    is given no HOME, but its repository is below it."""
    for process in psutil.process_iter(["pid"]):
        with suppress(psutil.Error):
            env = process.environ()
            if env.get("HOME") == str(home) or Path(env.get("GIT_DIR", "/")).is_relative_to(home):
                yield process
