"""Which files of a workspace are not captured by wish: git's own ignore rules, the user's global ones, and the
workspace's `.wal-agentignore`, which wins over both and may take back (`!name`) what a .gitignore says.

A project's file can only choose among the files of its own workspace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from wal_agent.capture.git import Git, GitFailed
from wal_agent.capture.location import Location
from wal_agent.plainfile import read_plain

IGNORE_FILE = ".wal-agentignore"
MAX_IGNORE_FILE = 1 << 20  # bytes of a file of patterns
MAX_IGNORE_LINES = 500


def write_excludes(git: Git, place: Location, env: Mapping[str, str], target: Path) -> bytes:
    """Bring the user's info/exclude and global ignore file together in ours, `target`; the same order, so that the last
    word is the same. What was written."""
    texts = [
        read_plain(path, MAX_IGNORE_FILE) or b""
        for path in (_global(git, place, env), _local(place))
        if path is not None
    ]
    text = b"\n".join(texts)
    if read_plain(target, 3 * MAX_IGNORE_FILE) != text:
        target.write_bytes(text)
    return text


def _local(place: Location) -> Path | None:
    return place.common / "info" / "exclude" if place.common is not None else None


def _global(git: Git, place: Location, env: Mapping[str, str]) -> Path | None:
    """`core.excludesFile` as the user's git has it."""
    with suppress(GitFailed):
        words = ("config", "--path", "--get", "core.excludesFile")
        found = git.text(*words, cwd=place.top, ok=(0, 1), user_settings=True)
        if found:
            return place.top / found
    home = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    return Path(home) / "git" / "ignore" if home else None


def ignore_patterns(workspace: Path, place: Location, private: Iterable[bytes]) -> list[str]:
    """Patterns for git's command line, the last match wins: those of `.wal-agentignore`, then the folders (below `top`)
    that are never captured."""
    text = read_plain(workspace / IGNORE_FILE, MAX_IGNORE_FILE) or b""
    found = []
    for line in os.fsdecode(text).split("\n")[:MAX_IGNORE_LINES]:
        line = line.removesuffix("\r")
        if line.strip() and not line.startswith("#") and "\0" not in line:
            found.append(_anchored(line, place.prefix))
    return [*found, *(f"/{escape_pattern(os.fsdecode(path))}" for path in private)]


def _anchored(line: str, prefix: str) -> str:
    """A pattern of the workspace's folder as one of the top folder."""
    sign, pattern = ("!", line[1:]) if line.startswith("!") else ("", line)
    if not prefix or "/" not in pattern.rstrip("/ "):
        return line
    return f"{sign}/{escape_pattern(prefix)}/{pattern.lstrip('/')}"


def escape_pattern(path: str) -> str:
    """A path as a pattern that means just it."""
    return re.sub(r"([\\*?\[\]!# ])", r"\\\1", path)
