"""Whose a session's files on this machine are, once a fork made that a question: a fork goes on in the same session.

A local copy that is longer than the log's is what was not captured any more (recovery/restore.py), but only where the
job itself wrote it; what another job of the same session wrote is no part of this one. Without a note they are the
job's own.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from wal_agent.errors import ConfigError
from wal_agent.plainfile import read_plain
from wal_agent.recovery import moves

NOBODY = "?"  # while one job's files take the place of another's; no job has this name


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """The note on one session in one workspace of this machine; `state_dir` holds it."""

    state_dir: Path
    session: str
    workspace: Path

    @property
    def _path(self) -> Path:
        name = hashlib.sha256(os.fsencode(f"{self.session}\0{self.workspace}")).hexdigest()
        return self.state_dir / "sessions" / name[:32]

    def foreign(self, job: str) -> bool:
        """Whether they are known to be another job's."""
        data = read_plain(self._path)
        return data is not None and data.decode("utf-8", "replace") != job

    def known(self) -> bool:
        """Whether there is a note."""
        return self._path.exists()

    def give(self, job: str) -> None:
        """Durable. ConfigError: the disk refuses."""
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            moves.private(self._path.parent)
            fresh.unlink(missing_ok=True)
            moves.write_new(fresh, job.encode())
            fresh.replace(self._path)
            moves.sync(self._path.parent)
        except OSError as error:
            raise ConfigError(f"{self._path.parent} cannot be written: {error.strerror}.") from error
