"""Whether two repositories are clones of one project (`records.Repository.identity`). Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from wal_agent.shell.quote import safe

_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?(?P<host>[^/:]+)(?::\d+)?/(?P<path>.*)", re.IGNORECASE)
_SCP = re.compile(r"(?:[^/@:]+@)?(?P<host>[^/:]+):(?P<path>.*)")


def is_other_project(then: Iterable[str], here: Iterable[str]) -> bool:
    """Whether both are known and nothing says that they are one project.

    What both sides know of one kind must differ, and nothing else be equal: a shallow clone knows no first commit, a
    repository without a remote no origin. One origin has many spellings (ssh, https, with and without .git)."""
    old, new = _by_kind(then), _by_kind(here)
    both = old.keys() & new.keys()
    return bool(both) and not any(old[kind] & new[kind] for kind in both)


def describe_project(identity: Iterable[str]) -> str:
    """The project in words, for people: its origin, else its first commit."""
    kinds = _by_kind(identity, spell=str)
    for value in sorted(kinds.get("origin", ())):
        return safe(value, 100)
    return next((f"first commit {safe(value, 12)}" for value in sorted(kinds.get("root", ()))), "unknown")


def _by_kind(identity: Iterable[str], spell: Callable[[str], str] | None = None) -> dict[str, set[str]]:
    spell = spell or _normalize_url
    found: dict[str, set[str]] = {}
    for text in identity:
        kind, _, value = text.partition(":")
        if value:
            found.setdefault(kind, set()).add(spell(value) if kind == "origin" else value)
    return found


def _normalize_url(url: str) -> str:
    """`host/path` of an origin, without what clones of one project differ in."""
    found = _URL.fullmatch(url) or _SCP.fullmatch(url)
    flat = f"{found['host'].lower()}/{found['path'].lstrip('/')}" if found else url
    return flat.rstrip("/").removesuffix(".git")
