"""The hooks of one run as an extension folder `wal-agent-<run>` in the agent's own extensions folder (I7).

An extension's hooks fire whatever the user's and the project's settings hold, and no file of the user's is touched.
Every process of that agent loads it, so its hooks first ask whose process it is, and its folder appears and vanishes
whole, by rename. The agent itself makes nothing beside it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.agents.base import HookSetup, HookTable, Injected
from wal_agent.agents.hook_line import skip_pattern
from wal_agent.errors import ConfigError
from wal_agent.safefs import flock_state

PREFIX = "wal-agent-"
OWNER = "wal-agent.json"

# A line of its own, so that bash runs it before it parses what follows. The pid is the second way, for an agent that
# strips the environment of its hooks.
_MINE = '[ "$%(marker)s" = %(run)s ] || { IFS= read -r p <%(pid)s && [ "$p" = "$PPID" ]; } 2>/dev/null || exit 0\n'


@dataclass(frozen=True, slots=True)
class ExtensionKind:
    """One agent's extensions. `marker`: the variable that tells an agent's process whose it is. `more`: files that
    this agent wants beside its manifest, made for a place."""

    title: str
    manifest: str
    marker: str
    more: Callable[[Path], Mapping[str, str]] = lambda place: {}

    def inject(self, setup: HookSetup, home: Path, table: Mapping[str, object]) -> Injected:
        """Place the extension in `home`, the agent's state folder. ConfigError when it cannot be."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", setup.run):
            raise ConfigError(f"{setup.run!r} cannot be a run's name.")
        texts = [str(setup.run_dir), *setup.client]
        if any(c in text for text in texts for c in "$\n\0"):
            raise ConfigError(
                f"A path of wal-agent's own holds a character that {self.title}'s hooks cannot carry: {texts}."
            )
        place = home / "extensions" / extension_name(setup.run)
        stage = _beside(home) / f".{place.name}.new"
        try:
            _clear(stage)
            (stage / "hooks").mkdir(parents=True)
            for name, text in self._files(setup, place, table).items():
                (stage / name).write_text(text)
            place.parent.mkdir(exist_ok=True)
            _bury(place, home)  # of the same run, when its agent is started again
            stage.rename(place)
        except OSError as e:
            _clear(stage)
            raise ConfigError(f"{self.title}'s hooks could not be placed in {place}: {e.strerror or e}.") from e
        return Injected(env={self.marker: setup.run}, paths=(place,))

    def _files(self, setup: HookSetup, place: Path, table: Mapping[str, object]) -> dict[str, str]:
        # The agent fills in the variable: no other run's agent finds the context file.
        manifest = {"name": place.name, "version": "1.0.0", "contextFileName": f"${self.marker}.md"}
        return {
            self.manifest: json.dumps(manifest),
            **self.more(place),
            "hooks/hooks.json": json.dumps({"hooks": table}, indent=1),
            OWNER: json.dumps({"host": socket.gethostname(), "lock": str(setup.run_dir / "lock")}),
            f"{setup.run}.md": setup.protocol,
        }


def owner_guard(setup: HookSetup, marker: str) -> str:
    """The first line of a hook: it leaves at once in a process of the agent that is not this run's."""
    pid = shlex.quote(str(setup.run_dir / "agent.pid"))
    return _MINE % {"marker": marker, "run": shlex.quote(setup.run), "pid": pid}


def extension_name(run: str) -> str:
    return PREFIX + re.sub(r"[^a-zA-Z0-9-]", "-", run)


def hook_table(
    setup: HookSetup, events: Sequence[str], of_tools: Collection[str], line: Callable[[str], str], timeout: int
) -> HookTable:
    """Event -> groups. `of_tools`: events that fire for a tool, and so not for a skipped one. `timeout` in the agent's
    own unit."""
    table: HookTable = {}
    for event in events:
        hook = {
            "name": extension_name(setup.run),  # of this run only: a name that was disabled once is not met again
            "type": "command",
            "command": line(event),
            "timeout": timeout,
        }
        group: dict[str, object] = {"hooks": [hook]}
        if event in of_tools and setup.skip:
            group = {"matcher": skip_pattern(setup.skip), **group}
        table[event] = [group]
    return table


def sweep(home: Path) -> None:
    """Remove the extensions of this host's dead runs; each names its run's lock."""
    for place in home.glob(f"extensions/{PREFIX}*"):
        if not place.is_symlink() and place.is_dir() and _dead(place):
            _bury(place, home)
    for left in _beside(home).glob(f".{PREFIX}*"):  # a stage or a grave that its maker did not come back to
        with suppress(FileNotFoundError):
            if not left.is_symlink() and time.time() - left.stat().st_mtime > 3600:
                _clear(left)


def _beside(home: Path) -> Path:
    """A folder that the agent does not look into, on the file system of the extensions (which may be a link)."""
    return (home / "extensions").resolve().parent


def _bury(place: Path, home: Path) -> None:
    """Take an extension away whole: an agent that starts right now sees all of it or nothing."""
    grave = _beside(home) / f".{place.name}.old"
    _clear(grave)
    try:
        place.rename(grave)
    except OSError:
        return
    _clear(grave)


def _dead(place: Path) -> bool:
    try:
        owner = json.loads((place / OWNER).read_bytes())
        host, lock = str(owner["host"]), str(owner["lock"])
    except (OSError, ValueError, LookupError, TypeError):
        return False  # not ours, or unreadable: leave it
    return host == socket.gethostname() and flock_state(lock) != "held"


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
