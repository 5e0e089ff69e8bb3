"""What tests ask of processes that may end, or be reaped, between one look and the next."""

from __future__ import annotations

from pathlib import Path

import psutil

from wal_agent.rehearsal.demo import home_environment


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


def still_runs(home: Path, words: str) -> bool:
    """Whether anything with these words does on the machine with this home."""
    return any(words in command_line(process) for process in home_environment(home))
