"""Where messages go: apprise URLs, each with a level, from the person's own wal-agent.toml or from WAL_AGENT_NOTIFY.

A URL is a secret: a message of ours names it by its number and its scheme. A project's wal-agent.toml cannot name one:
it would send a person's messages elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_agent.config import FILE, check_keys, own_document
from wal_agent.errors import ConfigError, UsageError, WalAgentError
from wal_agent.notify.message import LEVELS, Level
from wal_agent.paths import config_dir

VARIABLE = "WAL_AGENT_NOTIFY"
OFF = "off"
DEFAULT: Level = "recovery"
MAX_TARGETS = 20
MAX_URL = 2000  # characters; all of them together fit into a pipe
# They would run a program, show something on this machine's screen, or write files; or read a list of further URLs.
REFUSED = frozenset(
    {"blink1", "dbus", "file", "gio", "glib", "gnome", "kde", "macosx", "memory", "qt", "vapid", "windows"}
)
_URL = re.compile(r"([A-Za-z0-9][A-Za-z0-9+.-]{0,31})://\S*")
_ENTRY = re.compile(r"(?:([a-z_]+)=)?([^=]*://.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    level: Level = DEFAULT

    def __repr__(self) -> str:
        return f"Target({self.hidden}, {self.level})"

    @property
    def id(self) -> str:
        return hashlib.sha256(self.url.encode()).hexdigest()[:16]

    @property
    def hidden(self) -> str:
        """In many schemes even the host is the key, so only the scheme is shown."""
        return scheme(self.url)


def scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def own_file(env: Mapping[str, str]) -> Path:
    return config_dir(env) / FILE


def load_targets(env: Mapping[str, str]) -> tuple[Target, ...]:
    """The variable, where it is set (`off`: none), else the person's file. UsageError, ConfigError: without the URL."""
    text = env.get(VARIABLE, "").strip()
    if text:
        return () if text == OFF else parse_targets(text)
    return from_tables(own_document(env).get("notify", []), own_file(env))


def parse_targets(text: str) -> tuple[Target, ...]:
    """`URL ...` between white space, each with `LEVEL=` before it or not."""
    found = []
    for number, entry in enumerate(text.split(), 1):
        match = _ENTRY.fullmatch(entry)
        level, url = (match[1] or DEFAULT, match[2]) if match else (DEFAULT, entry)
        found.append(_target(url, level, f"Entry {number} of {VARIABLE}", UsageError))
    return _few(found, VARIABLE, UsageError)


def from_tables(value: object, path: Path) -> tuple[Target, ...]:
    """`[[notify]]`, each with `url` and, if it likes, `level`."""
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise ConfigError(f"notify in {path} is not a list of tables, [[notify]].")
    found = []
    for number, entry in enumerate(value, 1):
        check_keys(entry, ("url", "level"), "notify.", path)
        where = f"Entry {number} of [[notify]] in {path}"
        found.append(_target(entry.get("url"), entry.get("level", DEFAULT), where, ConfigError))
    return _few(found, f"[[notify]] in {path}", ConfigError)


def _target(url: object, level: object, where: str, kind: type[WalAgentError]) -> Target:
    if level not in LEVELS:
        raise kind(f"{where} has a level that there is not.", f"Allowed: {', '.join(LEVELS)}.")
    if not isinstance(url, str) or len(url) > MAX_URL or not _URL.fullmatch(url):
        raise kind(f"{where} is no apprise URL of at most {MAX_URL} characters, such as ntfys://ntfy.example.com/x.")
    if scheme(url) in REFUSED:
        raise kind(f"{where} is {scheme(url)}://, which acts on this machine.", "Name a service that takes messages.")
    return Target(url, level)


def _few(found: Sequence[Target], where: str, kind: type[WalAgentError]) -> tuple[Target, ...]:
    if len(found) > MAX_TARGETS:
        raise kind(f"{where} has more than {MAX_TARGETS} URLs.")
    return tuple({target.url: target for target in found}.values())
