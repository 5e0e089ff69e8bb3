"""The `[generic]` tables: which files are a command's session, and the words that make it go on.

A project's wal-agent.toml is hostile input: it may name files inside the workspace, once the person has allowed just
that table (consent.py), and no words, which would be run.
The person's own file, `$XDG_CONFIG_HOME/wal-agent/wal-agent.toml`, may name files under HOME too, and the words.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from wal_agent.agents.base import Env
from wal_agent.config import FILE, Consents, Want, check_keys, content_digest, own_document, read_document
from wal_agent.errors import ConfigError
from wal_agent.paths import config_dir, home, in_a_secret_place, secret_name
from wal_agent.text import shorten

GENERIC_MEANS = "these files are saved to the bucket, and written from it at a recovery"
Root = Literal["home", "workspace"]
DEEP = 12  # folders
MOST_NAMED = 100
_WILD = re.compile(r"[*?\[]")
_TELLING = re.compile(r"\[[^\]]*\]?|[*?.]")


@dataclass(frozen=True, slots=True)
class Named:
    """One entry of `session`: a path with wildcards under one of the two roots. A folder means all that is in it."""

    root: Root
    parts: tuple[str, ...]

    def __str__(self) -> str:
        return ("~/" if self.root == "home" else "") + "/".join(self.parts)

    def covers(self, parts: Sequence[str]) -> bool:
        left = expand_patterns((self.parts,))
        for part in parts:
            left = expand_patterns(patterns_below(left, part))
        return () in left


def expand_patterns(wanted: Iterable[tuple[str, ...]]) -> frozenset[tuple[str, ...]]:
    """Patterns, and what they are where `**` stands for no folder at all."""
    out = set(wanted)
    for left in wanted:
        while left and left[0] == "**":
            left = left[1:]
            out.add(left)
    return frozenset(out)


def patterns_below(wanted: Iterable[tuple[str, ...]], name: str) -> frozenset[tuple[str, ...]]:
    """What is left of opened patterns behind an entry `name`. An empty one means all that is below."""
    out: set[tuple[str, ...]] = set()
    for left in wanted:
        if not left:
            out.add(left)
        elif left[0] == "**":
            out |= set() if name.startswith(".") else {left}
        elif matches_part(name, left[0]):
            out.add(left[1:])
    return frozenset(out)


def is_wild(part: str) -> bool:
    return _WILD.search(part) is not None


def matches_part(name: str, wanted: str) -> bool:
    """As a shell has it: a leading dot is only meant where it is written."""
    if not is_wild(wanted):
        return name == wanted
    return (not name.startswith(".") or wanted.startswith(".")) and fnmatch.fnmatchcase(name, wanted)


@dataclass(frozen=True, slots=True)
class GenericSettings:
    """`resume`: words behind the command line of a start that goes on; None: there are none."""

    session: tuple[Named, ...] = ()
    resume: tuple[str, ...] | None = None


def user_file(env: Env) -> Path:
    return config_dir(env) / FILE


def load_settings(workspace: Path, env: Env) -> GenericSettings:
    """What the person's file and the project's name together, as it was when this process first asked: what the command
    writes there changes nothing of its own run. ConfigError names the place that is wrong."""
    return _load_cached(workspace, env.get("HOME", ""), env.get("XDG_CONFIG_HOME", ""), env.get("XDG_STATE_HOME", ""))


@cache
def _load_cached(workspace: Path, home: str, config: str, state: str) -> GenericSettings:
    env = {"HOME": home, "XDG_CONFIG_HOME": config, "XDG_STATE_HOME": state}
    own, path = _own(env), workspace / FILE
    project: tuple[Named, ...] = ()
    if "generic" in (document := read_document(path)[0]):
        table = document["generic"]
        project = project_table(table, path, env)
        if not Consents(workspace.resolve(), env).allows(generic_want(table, path, env)):
            project = ()
    return GenericSettings(tuple(dict.fromkeys((*own.session, *project))), own.resume)


def clear_cache() -> None:
    """Read the files again."""
    _load_cached.cache_clear()


def _own(env: Env) -> GenericSettings:
    path = user_file(env)
    table = _table(own_document(env).get("generic", {}), path)
    check_keys(table, ("session", "resume"), "generic.", path)
    named = tuple(_named(text, path, env, trusted=True) for text in _texts(table, "session", path))
    return GenericSettings(named, _texts(table, "resume", path) if "resume" in table else None)


def project_table(value: object, path: Path, env: Env) -> tuple[Named, ...]:
    """The entries of a project's `[generic]`, `path` being its file. ConfigError for what is not a project's to say."""
    table = _table(value, path)
    if "resume" in table:
        raise ConfigError(
            f"generic.resume in {path} is not a project's to choose: its words would be run.",
            f"Say it yourself, in {user_file(env)}.",
        )
    check_keys(table, ("session",), "generic.", path)
    return tuple(_named(text, path, env, trusted=False) for text in _texts(table, "session", path))


def generic_want(table: object, path: Path, env: Env) -> Want:
    """What the `[generic]` table of a project's file, `path`, asks the person for. ConfigError as project_table."""
    named = project_table(table, path, env)
    text = json.dumps(table, sort_keys=True)
    shown = shorten(f"session {[*map(str, named)]}", 1000)
    return Want("generic", content_digest(text.encode()), path, shown, GENERIC_MEANS)


def _table(value: object, path: Path) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"generic in {path} is not a table, [generic].")
    return value


def _texts(table: Mapping[str, object], key: str, path: Path) -> tuple[str, ...]:
    texts = table.get(key, [])
    if not isinstance(texts, list) or len(texts) > MOST_NAMED or not all(_is_text(text) for text in texts):
        raise ConfigError(f"generic.{key} in {path} is not a list of at most {MOST_NAMED} texts.")
    return tuple(texts)


def _is_text(text: object) -> bool:
    return isinstance(text, str) and text != "" and "\0" not in text


def _named(text: str, path: Path, env: Env, *, trusted: bool) -> Named:
    """One entry, where it is safe: under its root by its words alone, and not so wide that it names everything."""

    def refuse(why: str, hint: str = "") -> ConfigError:
        return ConfigError(f"generic.session in {path} names {text!r}, {why}.", hint)

    root: Root = "workspace"
    rest = text
    if text.startswith(("/", "~")):
        if not trusted:
            raise refuse(
                "which is not inside the workspace", f"Files elsewhere are yours to name, in {user_file(env)}."
            )
        root, rest = "home", _under_home(text, env)
        if not rest:
            raise refuse("which is not under your home folder")
    parts = tuple(part for part in rest.split("/") if part not in ("", "."))
    if ".." in parts:
        raise refuse("which leads out of its folder")
    if not parts or len(parts) > DEEP:
        raise refuse(f"which is no file in at most {DEEP} folders")
    if not _TELLING.sub("", parts[0]):
        raise refuse("which is too wide: name its first folder")
    if off_limits(root, parts):
        raise refuse("which may hold credentials, or is no session's")
    return Named(root, parts)


def _under_home(text: str, env: Env) -> str:
    """Behind `~/`, or behind the home folder's own path; "" for what is elsewhere."""
    if text.startswith("~"):
        return text[2:] if text.startswith("~/") else ""
    for folder in {env.get("HOME", ""), str(home(env) or "")} - {"", "/"}:
        if text.startswith(folder.rstrip("/") + "/"):
            return os.path.normpath(text[len(folder) :]).lstrip("/") if ".." not in text.split("/") else ""
    return ""


def off_limits(root: Root, parts: Sequence[str]) -> bool:
    """What is never saved and never put back: credentials, git's own files, and what is wal-agent's."""
    low = [part.lower() for part in parts]
    if ".git" in low or ".wal-agent" in low or low[-1] == FILE or low[-1].startswith(".wal-agent-"):
        return True
    if root == "home" and (in_a_secret_place(low) or low[:3] == [".local", "state", "wal-agent"]):
        return True
    return (root == "home" and low[:2] == [".config", "wal-agent"]) or secret_name(parts[-1])
