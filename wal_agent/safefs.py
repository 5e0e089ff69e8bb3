"""Replaces a small file that a person also edits: in one step, mode kept, and only if it is still what was read."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from wal_agent.errors import ConfigError


def replace_file(path: Path, data: bytes, expected: bytes | None) -> None:
    """Make `data` the content of `path`, which held `expected` when it was read (None: there was no file).

    A new file is 0600 in folders of 0700. ConfigError when the file is no longer what was read, or cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if expected is not None:
                _like(path, name)
            if (path.read_bytes() if path.exists() else None) != expected:
                raise ConfigError(f"{path} was changed by someone else just now, so it was left alone.", "Try again.")
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
        _sync(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None


def _like(path: Path, name: str) -> None:
    old = path.stat()
    Path(name).chmod(old.st_mode & 0o7777)
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.chown(name, old.st_uid, old.st_gid)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
