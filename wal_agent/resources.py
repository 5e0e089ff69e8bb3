"""Where the files are that ship beside the package: hooks/ and prompts/.

A wheel holds them as `wal_agent/_shipped/`; in a checkout they stand beside the package, but what an editable install
compiled is in `_shipped/` there too (scripts/build_hooks.py).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from wal_agent.errors import ConfigError

PACKAGE = Path(__file__).resolve().parent
FOLDERS = ("hooks", "prompts")
LAUNCH = PACKAGE / "launch.py"  # started by its path, in front of an agent


def shipped(name: str) -> Path:
    """The absolute path of e.g. "hooks/client.py" or "prompts" (the whole folder). ConfigError when it is missing:
    the installation is not complete. ValueError for a name outside those folders (a bug of the caller)."""
    if name.partition("/")[0] not in FOLDERS or ".." in name.split("/"):
        raise ValueError(f"not shipped: {name!r}")
    for base in (PACKAGE / "_shipped", PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise ConfigError(f"wal-agent's own file {name} is missing from {PACKAGE}.", "Install wal-agent again.")


def shipped_program(name: str) -> Path | None:
    """A shipped file that may be executed: a regular file, whose owner is the package's and which not everybody may
    write. None when there is none. ValueError as `shipped`."""
    try:
        path = shipped(name)
        found, package = path.lstat(), PACKAGE.stat()
    except (ConfigError, OSError):
        return None
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == package.st_uid and not found.st_mode & stat.S_IWOTH
    return path if ours and os.access(path, os.X_OK) else None
