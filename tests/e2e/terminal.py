"""A terminal for the interactive tests: tmux with a socket of its own, and a shell that notes how things ended."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.e2e.scene import PATIENCE, TTL, Machine, until
from tests.processes import command_line

CONFIG = """
set -g default-terminal xterm-256color
set -g remain-on-exit on
set -g history-limit 5000
set -sg escape-time 0
"""
# A ^C that comes while wal-agent saves what its agent left is for the whole group: it must not end the shell as well,
# nor, a moment later, the programs that note how it ended.
PLAY = """
trap : INT
stty -a > {notes}/before
{command}
code=$?
trap '' INT
echo $code > {notes}/code
stty -a > {notes}/after
"""


class Terminal:
    """One `wal-agent run` in a terminal, or the agent without it. `screen` is what a person sees, with what has
    scrolled away above it."""

    def __init__(
        self, machine: Machine, args: Sequence[str], options: Sequence[str] = (), bare: bool = False, **env: str
    ) -> None:
        self.name = f"wa-{uuid.uuid4().hex[:12]}"
        self.notes = machine.root / self.name
        self.notes.mkdir()
        ours = [sys.executable, "-m", "wal_agent", "run", machine.agent, "--ttl", TTL, *options, "--"]
        command = [*([str(machine.program)] if bare else ours), *args]
        config, play = self.notes / "tmux.conf", self.notes / "play.sh"
        config.write_text(CONFIG)
        play.write_text(PLAY.format(notes=self.notes, command=shlex.join(command)))
        self._tmux(
            *("-f", str(config), "new-session", "-d", "-x", "150", "-y", "60", "-c", str(machine.workspace)),
            *("sh", str(play)),
            env={**machine.env(**env), "TERM": "xterm-256color"},
        )

    def _tmux(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        return subprocess.run(
            ["tmux", "-L", self.name, *words], env=env, check=True, capture_output=True, text=True
        ).stdout

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-J", "-S", "-1000")

    def shows(self, pattern: str, patience: float = PATIENCE) -> str:
        """Wait until the screen shows it; give the screen."""

        def found() -> str | None:
            screen = self.screen()
            return screen if re.search(pattern, screen) else None

        try:
            text: str = until(found, f"the screen shows {pattern!r}", patience)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.screen()}") from None
        return text

    def showed(self, pattern: str, within: float) -> bool:
        """Whether the screen shows it within so many seconds."""
        try:
            self.shows(pattern, within)
        except AssertionError:
            return False
        return True

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", key)

    def wrapper(self) -> psutil.Process:
        shell = psutil.Process(int(self._tmux("display", "-p", "#{pane_pid}")))
        return next(child for child in shell.children() if "wal_agent" in command_line(child).split())

    def ended(self, within: float) -> bool:
        """Whether the command ends within so many seconds."""
        try:
            until(lambda: self._note("after"), "the command in the terminal ends", within)
        except AssertionError:
            return False
        return True

    def code(self) -> int:
        """Wait for the end, and until the screen has all that was written; the command's exit code."""
        until(lambda: self._note("after"), "the command in the terminal ends")
        until(lambda: self._tmux("display", "-p", "#{pane_dead}").strip() == "1", "the terminal has read it all")
        return int(self._note("code"))

    def modes(self) -> tuple[str, str]:
        """`stty -a` before and after."""
        return self._note("before"), self._note("after")

    def _note(self, name: str) -> str:
        path: Path = self.notes / name
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self.name, "kill-server"], check=False, capture_output=True)
