"""Where the files are that ship beside the package: hooks/ and prompts/.

A wheel holds them as `wal_agent/_shipped/`; in a checkout they stand beside the package.
"""

from __future__ import annotations

from pathlib import Path

from wal_agent.errors import ConfigError

PACKAGE = Path(__file__).resolve().parent
FOLDERS = ("hooks", "prompts")


def shipped(name: str) -> Path:
    """The absolute path of e.g. "hooks/client.py" or "prompts" (the whole folder). ConfigError when it is missing:
    the installation is not complete. ValueError for a name outside those folders (a bug of the caller)."""
    if name.partition("/")[0] not in FOLDERS or ".." in name.split("/"):
        raise ValueError(f"not shipped: {name!r}")
    for base in (PACKAGE / "_shipped", PACKAGE.parent):
        if (base / name).exists():
            return base / name
    raise ConfigError(f"wal-agent's own file {name} is missing from {PACKAGE}.", "Install wal-agent again.")
