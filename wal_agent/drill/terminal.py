"""A terminal for one start of the agent, with a person's keys: a tmux of its own."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAM = "tmux"
SIZE = ("-x", "150", "-y", "50")


def lacks_terminal() -> bool:
    return shutil.which(PROGRAM) is None


class Terminal:
    """As a Popen of the command that runs in it, whose exit code is not known. `said`: gets the screen at the end."""

    returncode = None

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], place: Path, said: Path) -> None:
        self._socket, self._said = place, said
        shown = {**env, "TERM": "xterm-256color"}
        self._tmux("-f", "/dev/null", "new-session", "-d", *SIZE, "-c", str(cwd), *argv, env=shown)
        self.pid = int(self._tmux("display", "-p", "#{pane_pid}"))
        self._process = psutil.Process(self.pid)

    def _tmux(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        command = [PROGRAM, "-S", str(self._socket), *words]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    def poll(self) -> int | None:
        with suppress(psutil.Error):
            if self._process.status() != psutil.STATUS_ZOMBIE:
                return None
        return 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the command. TimeoutExpired as Popen has it."""
        limit = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if limit is not None and time.monotonic() > limit:
                raise subprocess.TimeoutExpired(PROGRAM, timeout or 0.0)
            time.sleep(0.02)
        return 0

    def kill(self) -> None:
        """End the command; the terminal keeps nothing behind it."""
        with suppress(subprocess.CalledProcessError):
            self._said.write_text(self._tmux("capture-pane", "-p", "-J"), "utf-8")
        with suppress(psutil.Error):
            self._process.kill()

    def press(self, *keys: str) -> None:
        with suppress(subprocess.CalledProcessError):  # it has ended
            self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.press("-l", text)
