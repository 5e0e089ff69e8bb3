"""The hooks of one run: an extension folder `wal-agent-<run>` in the user's `~/.gemini/extensions` (I7).

Only an extension's hooks also fire in a folder that is not trusted, and no file of the user's is touched. Every Gemini
of this user loads it, so its hooks first ask whose Gemini it is (line.py), and its folder appears and vanishes whole,
by rename. Gemini itself makes nothing beside it.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path

from wal_agent.agents.base import Env, HookSetup, Injected
from wal_agent.agents.gemini.events import EVENTS
from wal_agent.agents.gemini.line import HOOK_TIMEOUT_MS, MARKER, hook_line
from wal_agent.errors import ConfigError
from wal_agent.flock import flock_state

PREFIX = "wal-agent-"
OWNER = "wal-agent.json"


def gemini_home(env: Env) -> Path:
    """Gemini's state folder, as it finds it itself."""
    return Path(env.get("GEMINI_CLI_HOME") or env.get("HOME") or Path.home()) / ".gemini"


def extension_name(run: str) -> str:
    return PREFIX + re.sub(r"[^a-zA-Z0-9-]", "-", run)


def inject(setup: HookSetup, env: Env) -> Injected:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", setup.run):
        raise ConfigError(f"{setup.run!r} cannot be a run's name.")
    texts = [str(setup.run_dir), *setup.client]
    if any(c in text for text in texts for c in "$\n\0"):
        raise ConfigError(f"A path of wal-agent's own holds a character that Gemini's hooks cannot carry: {texts}.")
    home = gemini_home(env)
    place = home / "extensions" / extension_name(setup.run)
    stage = _beside(home) / f".{place.name}.new"
    try:
        _clear(stage)
        (stage / "hooks").mkdir(parents=True)
        for name, text in extension_files(setup, place).items():
            (stage / name).write_text(text)
        place.parent.mkdir(exist_ok=True)
        _bury(place, home)  # of the same run, when its agent is started again
        stage.rename(place)
    except OSError as e:
        _clear(stage)
        raise ConfigError(f"Gemini's hooks could not be placed in {place}: {e.strerror or e}.") from e
    return Injected(env={MARKER: setup.run}, paths=(place,))


def extension_files(setup: HookSetup, place: Path) -> dict[str, str]:
    name = extension_name(setup.run)
    return {
        "gemini-extension.json": json.dumps({"name": name, "version": "1.0.0", "contextFileName": f"${MARKER}.md"}),
        # Without this file, any Gemini whose settings have security.allowedExtensions would fail to start.
        ".gemini-extension-install.json": json.dumps({"source": str(place), "type": "local"}),
        "hooks/hooks.json": json.dumps({"hooks": hook_table(setup)}, indent=1),
        OWNER: json.dumps({"host": socket.gethostname(), "lock": str(setup.run_dir / "lock")}),
        f"{setup.run}.md": setup.protocol,  # Gemini fills in the variable: no other run's Gemini finds the file
    }


def hook_table(setup: HookSetup) -> dict[str, list[dict[str, object]]]:
    table: dict[str, list[dict[str, object]]] = {}
    for event in EVENTS:
        hook = {
            "name": extension_name(setup.run),  # of this run only: a name that /hooks disabled once is not met again
            "type": "command",
            "command": hook_line(setup, event),
            "timeout": HOOK_TIMEOUT_MS,
        }
        group: dict[str, object] = {"hooks": [hook]}
        if event in ("BeforeTool", "AfterTool") and setup.skip:
            group = {"matcher": f"^(?!(?:{'|'.join(map(re.escape, setup.skip))})$)", **group}
        table[event] = [group]
    return table


def sweep(env: Env) -> None:
    """Remove the extensions of this host's dead runs; each names its run's lock."""
    home = gemini_home(env)
    for place in home.glob(f"extensions/{PREFIX}*"):
        if not place.is_symlink() and place.is_dir() and _dead(place):
            _bury(place, home)
    for left in _beside(home).glob(f".{PREFIX}*"):  # a stage or a grave that its maker did not come back to
        with suppress(FileNotFoundError):
            if not left.is_symlink() and time.time() - left.stat().st_mtime > 3600:
                _clear(left)


def _beside(home: Path) -> Path:
    """A folder that Gemini does not look into, on the file system of the extensions (which may be a link)."""
    return (home / "extensions").resolve().parent


def _bury(place: Path, home: Path) -> None:
    """Take an extension away whole: a Gemini that starts right now sees all of it or nothing."""
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
