"""Which folder of `~/.gemini/tmp` belongs to a workspace: Gemini's own rule, so that a restore meets its lookup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

_REGISTRY_LIMIT = 1 << 22  # of a registry or a marker that is worth reading
_SLUG = re.compile(r"[a-z0-9-]+")


def project_slug(home: Path, workspace: Path) -> str:
    """The registered slug, else one whose marker names the workspace, else the one that Gemini would claim."""
    registered = slug_registry(home)
    known = registered.get(str(workspace))
    if known is not None and all(owner in (None, str(workspace)) for owner in slug_owners(home, known)):
        return known
    for base in (home / "tmp", home / "history"):
        for folder in _folders(base):
            if _marker(folder) == str(workspace):
                return folder.name
    taken = set(registered.values())
    base_name = slugify(workspace.name)
    candidates = chain([base_name], (f"{base_name}-{n}" for n in count(1)))
    return next(
        slug
        for slug in candidates
        if slug not in taken and all(owner in (None, str(workspace)) for owner in slug_owners(home, slug))
    )


def slugify(name: str) -> str:
    """Lower case, anything but [a-z0-9] as single dashes, none at the ends."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "project"


def slug_registry(home: Path) -> dict[str, str]:
    """projects.json; one bad slug makes Gemini drop all of it, and so do we: a slug is used as a folder's name."""
    try:
        projects = json.loads(_read(home / "projects.json"))["projects"]
        items = dict(projects.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    if all(isinstance(slug, str) and _SLUG.fullmatch(slug) for slug in items.values()):
        return items
    return {}


def slug_owners(home: Path, slug: str) -> list[str | None]:
    return [_marker(home / "tmp" / slug), _marker(home / "history" / slug)]


def _marker(folder: Path) -> str | None:
    try:
        return _read(folder / ".project_root").decode().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError):
        return ""  # there, and nobody's that we know


def _folders(base: Path) -> Iterator[Path]:
    try:
        yield from sorted(p for p in base.iterdir() if _SLUG.fullmatch(p.name) and p.is_dir() and not p.is_symlink())
    except OSError:
        return


def _read(path: Path) -> bytes:
    with path.open("rb") as f:
        return f.read(_REGISTRY_LIMIT)
