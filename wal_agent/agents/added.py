"""Agents that a person adds: descriptions (family.py) in the folder `agents` of their own settings, and those that
installed packages bring as entry points of the group `wal_agent.agents` (a path, or the text itself). A project brings
none. A file is found by its name and read at its first use; one that is broken is no agent, and breaks nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from wal_agent.agents.places import PLACES
from wal_agent.errors import ConfigError
from wal_agent.paths import config_dir
from wal_agent.safefs import open_plain
from wal_agent.text import quote_word

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from wal_agent.agents.family import Declared

GROUP = "wal_agent.agents"
MAX_FILES = 100


class Added(msgspec.Struct, frozen=True):
    """`agent`: None where `fault` says why there is none."""

    name: str
    agent: Declared | None = None
    fault: ConfigError | None = None


def find(name: str, env: Mapping[str, str]) -> Added | None:
    """Return what was added by this name; a person's own file goes before a package."""
    if name in (own := _files(env)):
        return _of_file(own[name])
    return _of_package(name) if name in _packages() else None


def every(env: Mapping[str, str]) -> Iterator[Added]:
    """Yield all that were added, by name."""
    for name in sorted({*_files(env), *_packages()}):
        if (found := find(name, env)) is not None:
            yield found


def _files(env: Mapping[str, str]) -> dict[str, Path]:
    try:
        return _in_folder(config_dir(env) / "agents")
    except ConfigError:  # there is no HOME
        return {}


@cache
def _in_folder(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.toml"))[:MAX_FILES]}


@cache
def _packages() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow, and needed only for a name that is no other agent's

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def of_file(path: Path) -> Added:
    """Read a file, as if it stood among the person's settings."""
    hint = f"Correct it, then: wal-agent agents --check {quote_word(str(path))}"
    return _read(path.stem, str(path), lambda: _own_text(path), hint)


_of_file = cache(of_file)


@cache
def _of_package(name: str) -> Added:
    entry = _packages()[name]
    source = f"The package {entry.dist.name if entry.dist else entry.module}"

    def text() -> str:
        try:
            given = entry.load()
            return given if isinstance(given, str) else Path(given).read_text()
        except Exception as error:  # it is foreign code
            raise ConfigError(f"{source} does not give its agent {name}: {type(error).__name__}.") from error

    return _read(name, source, text)


def _read(name: str, source: str, text: Callable[[], str], hint: str = "") -> Added:
    from wal_agent.agents.family import name_fault, read

    try:
        if name in PLACES:
            raise ConfigError(f"{source} describes {name}, which is an agent of wal-agent's own; its own is used.")
        if why := name_fault(name):
            raise ConfigError(f"{source} is not used: {why}.")
        made = read(text(), source, hint)
        if made.name != name:
            raise ConfigError(f"{source} says name = {made.name!r}, but it is found as {name}.", "Give both one name.")
    except ConfigError as fault:
        return Added(name, fault=fault)
    return Added(name, made)


def _own_text(path: Path) -> str:
    """Return the text of a file that nobody but its user may write. ConfigError."""
    from wal_agent.agents.family import MAX_TEXT

    try:
        with open_plain(path, follow=True) as file:
            for about in (path.parent.stat(), os.fstat(file.fileno())):
                if about.st_uid not in (os.geteuid(), 0) or about.st_mode & 0o022:
                    hint = f"Take it over: chmod go-w {quote_word(str(path.parent))} {quote_word(str(path))}"
                    raise ConfigError(f"{path} is not used: somebody else may write it.", hint)
            return file.read(MAX_TEXT + 1).decode()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None
