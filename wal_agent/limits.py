"""Report failures: used-up limits of the machine (open files, threads, processes, memory, disk space), paths that this
user may not access, and bugs.

A run does with less where it can. Where it cannot, it refuses in words. A limit is exit code 75: the same command works
once the limit does. Only an error that is neither is a bug.
"""

from __future__ import annotations

import errno
import os
import resource
import shlex
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from wal_agent import __version__
from wal_agent.errors import ConfigError, Exhausted, WalAgentError
from wal_agent.paths import state_dir

_PROCESSES = "End some, or raise the limit; see: ulimit -u, and pids.max of the container."


def explain(error: BaseException) -> WalAgentError | None:
    """Return the error to report for `error`; None for a bug. A limit becomes Exhausted, a denied path ConfigError."""
    return error if isinstance(error, WalAgentError) else exhausted(error) or _unusable(error)


def describe_failure(error: BaseException, env: Mapping[str, str]) -> str:
    """One line for people; of a bug, with the full report written."""
    return str(explain(error) or report_bug(error, env))


def failed(what: str, error: Exception) -> WalAgentError:
    """The error to raise where `what`, a sentence without its full stop, is so because of `error`."""
    if limit := exhausted(error):
        return Exhausted(f"{what}: {limit.what}", limit.hint)
    return ConfigError(f"{what}: {error}.")


def _unusable(error: BaseException) -> ConfigError | None:
    if not isinstance(error, OSError) or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return None
    if not isinstance(error.filename, str | bytes):
        return None
    path, why = os.fsdecode(error.filename), (error.strerror or "").lower()
    return ConfigError(f"{path} cannot be used: {why}.", f"Look at owner and mode: ls -ld {shlex.quote(path)}")


def exhausted(error: BaseException) -> Exhausted | None:
    """The limit that `error` means, or None when it means none."""
    if isinstance(error, MemoryError):
        return Exhausted("This machine gives wal-agent no more memory.", "Free some, or raise `ulimit -v`.")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        # Its stack is address space: where that is limited, the kernel's answer is the same as for too many threads.
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            from wal_agent.text import size  # only here: it loads the redaction

            what = f"wal-agent can start no more threads; it may use {size(most)} of address space."
            return Exhausted(what, f"Raise the limit: ulimit -v {max(4_000_000, 2 * most >> 10)}")
        return Exhausted("wal-agent can start no more threads.", _PROCESSES)
    if not isinstance(error, OSError):
        return None
    match error.errno:
        case errno.EMFILE:
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return Exhausted(
                f"wal-agent may open no more than {most} files.", f"Raise the limit: ulimit -n {max(1024, 2 * most)}"
            )
        case errno.ENFILE:
            return Exhausted("This machine can open no more files.", "See: cat /proc/sys/fs/file-nr")
        case errno.ENOSPC:
            return Exhausted(f"No space is left on the disk{_of(error)}.", f"Free some; see: df -h{_path_of(error)}")
        case errno.EDQUOT:
            return Exhausted(f"The disk quota is used up{_of(error)}.", "Free some space; see: quota -s")
        case errno.EFBIG:
            return Exhausted(f"This file would be bigger than is allowed{_of(error)}.", "Raise the limit: ulimit -f")
        case errno.EAGAIN:  # of a fork; wal-agent handles every other one
            return Exhausted("wal-agent can start no more processes.", _PROCESSES)
        case errno.ENOMEM:
            return Exhausted("This machine gives wal-agent no more memory.", "Free some, or raise its limit.")
    return None


def _of(error: OSError) -> str:
    return f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""


def _path_of(error: OSError) -> str:
    """The nearest folder of the file that exists, as a word of a command; "" where the error names no file."""
    if not isinstance(error.filename, str | bytes):
        return ""
    path = Path(os.fsdecode(error.filename))
    return " " + shlex.quote(str(next((folder for folder in path.parents if folder.is_dir()), Path())))


def report_bug(error: BaseException, env: Mapping[str, str]) -> str:
    """Write a full report (redacted), and return the one line that names it."""
    from wal_agent.redact import redact  # only here: 10 ms

    text = "".join(traceback.format_exception(error))
    body = redact(f"wal-agent {__version__}, Python {sys.version}\n{sys.platform}\n\n{text}")
    try:
        folder = state_dir(env) / "reports"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path: Path = folder / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.txt"
        path.touch(mode=0o600)
        path.write_text(body)
    except (OSError, ConfigError):
        what = redact(f"{type(error).__name__}: {error}")
        return f"a bug in wal-agent: {what}. The report could not be written."
    return f"a bug in wal-agent: {type(error).__name__}. The full report is in {path}; please send it."
