"""Whoever looks on must not take the signals that the run waits for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.stub_agent import STUB


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Short, for sockets; also the service manager's."""
    with tempfile.TemporaryDirectory(prefix="wa-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def takers(pid: int) -> list[str]:
    """Its threads, but the main one (which waits for it), that SIGTERM could be given to."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            blocked = next(x for x in (task / "status").read_text().splitlines() if x.startswith("SigBlk"))
            if task.name != str(pid) and not int(blocked.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                found.append((task / "comm").read_text().strip())
    return found


def test_a_service_that_is_stopped_drains(tmp_path: Path, runtime: Path) -> None:
    """A signal to the process goes to any thread that does not block it, and would end it there and then."""
    stub = tmp_path / "gemini"
    stub.write_text(STUB + "exec sleep 600\n")
    stub.chmod(0o755)
    for folder in ("work", "home/.gemini", "home/.config/wal-agent"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "home/.config/wal-agent/wal-agent.toml").write_text('[[notify]]\nurl = "json://127.0.0.1:9"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(runtime / "n"))
        manager.settimeout(60)
        process = subprocess.Popen(
            [sys.executable, "-m", "wal_agent", "run", "gemini", "--metrics-addr", "127.0.0.1:0", "--", "-p", "go"],
            cwd=tmp_path / "work",
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path / "home"),
                "NOTIFY_SOCKET": str(runtime / "n"),
                "WATCHDOG_USEC": "30000000",
                "WAL_AGENT_BUCKET": (tmp_path / "bucket").as_uri(),
                "WAL_AGENT_RUNTIME_DIR": str(runtime),
                "WAL_AGENT_GEMINI": str(stub),
                "GEMINI_CLI_TRUST_WORKSPACE": "true",
                "STUB_BEGAN": str(tmp_path / "began"),
            },
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                while manager.recv(4096) != b"READY=1":
                    pass
                could_take = takers(process.pid)
            finally:
                process.send_signal(signal.SIGTERM)
                said = process.communicate(timeout=60)[1]
        assert could_take == []
        assert process.returncode == 143 and "is saved and stopped" in said, (process.returncode, said)
        while b"STOPPING=1" not in manager.recv(4096):
            pass
