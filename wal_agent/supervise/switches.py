"""Watches the files by which the hooks of a running agent can be switched off (I5).

`look` is called at each tick of the main thread: a few `stat` a tenth of a second. That needs no inotify, and an agent
that reads its settings again waits longer than that for a file to come to rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from wal_agent.agents.base import Agent, RereadsSettings
from wal_agent.errors import ConfigError

_FileMark = tuple[int, int, int, int] | None  # of a file, as `stat` gives it; None: there is none


class HookSwitches:
    def __init__(self, agent: Agent, args: Sequence[str], workspace: Path, env: Mapping[str, str]) -> None:
        self._agent = agent if isinstance(agent, RereadsSettings) else None
        self._name = agent.name
        self._at = (args, workspace, env)
        self._own = {path: _bytes(path) for path in self._agent.run_settings_files(env)} if self._agent else {}
        self._marks = self._marked()

    def look(self) -> ConfigError | None:
        """Why the hooks are off, or are about to be, since the look before."""
        if self._agent is None or (marks := self._marked()) == self._marks:
            return None
        self._marks = marks
        changed = next((path for path, data in self._own.items() if _bytes(path) != data), None)
        why = (
            f"{changed}, which holds this run's hooks, was changed"
            if changed is not None
            else self._agent.switch_off_reason(*self._at)
        )
        if why is None:
            return None
        return ConfigError(
            f"{self._name}'s hooks were switched off while it ran: {why}. The run was stopped.",
            "See what its last calls did: wal-agent log",
        )

    def _marked(self) -> dict[Path, _FileMark]:
        if self._agent is None:
            return {}
        return {path: _file_mark(path) for path in (*self._own, *self._agent.switches(*self._at))}


def _file_mark(path: Path) -> _FileMark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
