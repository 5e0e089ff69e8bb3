"""The session of any command: the files that `[generic] session` names, a note of wal-agent's, and those tables.

A project's wal-agent.toml is hostile input: it may name files inside the workspace, once the person has allowed just
that table (config.Consents), and no words, which would be run. The person's own file,
`$XDG_CONFIG_HOME/wal-agent/wal-agent.toml`, may name files under HOME too, and the words that make the command go on.

Names in the log: `note.json`, `home/<path>`, `workspace/<path>`. The note makes the session: it is in wal-agent's state
folder and lists the names under which files were saved. A name of a log is only put back where the settings on this
machine name it too, so that no log chooses what is written. Links are not followed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import Env, LoggedCall, Reconciled, SessionFile
from wal_agent.agents.places import in_a_secret_place
from wal_agent.agents.session_files import name_parts
from wal_agent.config import FILE, Consents, Want, check_keys, content_digest, own_document, read_document
from wal_agent.errors import ConfigError
from wal_agent.paths import config_dir, home, secret_name, state_dir
from wal_agent.safefs import Buffer, real_path, swap_file
from wal_agent.text import shorten

GENERIC_MEANS = "these files are saved to the bucket, and written from it at a recovery"
Root = Literal["home", "workspace"]
DEEP = 12  # folders
MAX_NAMED = 100
_WILD = re.compile(r"[*?\[]")
_TELLING = re.compile(r"\[[^\]]*\]?|[*?.]")

MAIN = "note.json"
MAX_FILES = 2000
MAX_LOOKED_AT = 20_000  # entries of folders
MAX_FILE = 256 << 20  # bytes
MAX_BYTES = 1 << 30
MAX_NOTES = 200
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Named(msgspec.Struct, frozen=True):
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


class GenericSettings(msgspec.Struct, frozen=True):
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
        if not Consents(real_path(workspace), env).allows(generic_want(table, path, env)):
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
    if not isinstance(texts, list) or len(texts) > MAX_NAMED or not all(_is_text(text) for text in texts):
        raise ConfigError(f"generic.{key} in {path} is not a list of at most {MAX_NAMED} texts.")
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


class Note(msgspec.Struct, frozen=True):
    session: str
    files: tuple[str, ...] = ()


_NOTE = msgspec_compat.of_json(Note)


def folder(env: Env) -> Path:
    return state_dir(env).absolute() / "generic"


def note_path(session: str, env: Env) -> Path:
    if not _SESSION.fullmatch(session):
        raise ValueError(f"{session!r} is no session id")
    return folder(env) / session / MAIN


def write_note(session: str, workspace: Path, env: Env) -> None:
    """Make the note, or bring it up to the settings. The capture reports a disk that refuses it."""
    named = tuple(str(each) for each in load_settings(workspace, env).session)
    data = msgspec.json.encode(Note(session, named)) + b"\n"
    path = note_path(session, env)
    with suppress(OSError):
        if not path.is_file() or path.read_bytes() != data:
            swap_file(path, data)


def reconcile(main: Buffer, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    """Return the note, or a new one where it is damaged or another session's."""
    try:
        note = _NOTE.decode(main)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        note = Note("")
    if note.session == session:
        return Reconciled([main], 0, 0)
    return Reconciled([msgspec.json.encode(Note(session)) + b"\n"], 0, 0)


def sweep(env: Env, runtime: Path) -> None:
    """Drop the oldest notes beyond MAX_NOTES."""
    with suppress(OSError):
        notes = sorted(folder(env).iterdir(), key=lambda path: path.stat().st_mtime)
        for old in notes[:-MAX_NOTES]:
            shutil.rmtree(old, ignore_errors=True)


class Found(msgspec.Struct):
    """`left_out`: what is not saved, in sentences."""

    files: dict[str, Path] = msgspec.field(default_factory=dict)
    left_out: list[str] = msgspec.field(default_factory=list)
    size: int = 0
    looked_at: int = 0

    def over(self, why: str) -> None:
        if why not in self.left_out:
            self.left_out.append(why)


def find_files(workspace: Path, env: Env) -> Found:
    """Find the regular files that the settings name, by their logical names."""
    found = Found()
    for named in load_settings(workspace, env).session:
        base = root_folder(named.root, workspace, env)
        if base is not None:
            for path in _matches(base, frozenset((named.parts,)), found, DEEP):
                _add_file(path, base, named, env, found)
    return found


def folders(workspace: Path, env: Env) -> list[Path]:
    """Return the nearest existing folders above what patterns mean."""
    found: set[Path] = set()
    for named in load_settings(workspace, env).session:
        at = root_folder(named.root, workspace, env)
        if at is None:
            continue
        for part in named.parts[:-1]:
            if is_wild(part) or not _is_folder(at / part):
                break
            at = at / part
        found.add(at)
    return sorted(found)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _add_file(path: Path, base: Path, named: Named, env: Env, found: Found) -> None:
    parts = path.relative_to(base).parts
    name = "/".join((named.root, *parts))
    if name in found.files or off_limits(named.root, parts) or _is_own_file(path, env):
        return
    try:
        name_parts(name, DEEP + 1)
        size = path.lstat().st_size
    except (OSError, ValueError):
        return
    if size > MAX_FILE:
        found.over(f"{path} is not saved: it has more than {MAX_FILE >> 20} MiB.")
    elif len(found.files) >= MAX_FILES or found.size + size > MAX_BYTES:
        found.over(
            f"Not all that [generic] session names is saved: it is more than {MAX_FILES} files or "
            f"{MAX_BYTES >> 30} GiB."
        )
    else:
        found.files[name] = path
        found.size += size


def _matches(folder: Path, wanted: frozenset[tuple[str, ...]], found: Found, deep: int) -> Iterator[Path]:
    """Yield the regular files below the real folder that match the rest of the patterns."""
    wanted = expand_patterns(wanted)
    for path in _entries(folder, wanted, found):
        left = patterns_below(wanted, path.name)
        try:
            mode = path.lstat().st_mode if left else 0
        except OSError:
            continue
        if stat.S_ISREG(mode) and () in expand_patterns(left):
            yield path
        elif stat.S_ISDIR(mode) and deep > 0:
            yield from _matches(path, left, found, deep - 1)


def _entries(folder: Path, wanted: frozenset[tuple[str, ...]], found: Found) -> list[Path]:
    """Return the entries that may match; a folder is not listed where patterns name what is in it."""
    if all(left and not is_wild(left[0]) for left in wanted):
        return sorted({folder / left[0] for left in wanted})
    try:
        with os.scandir(folder) as entries:
            inside = sorted(islice((Path(e.path) for e in entries), max(0, MAX_LOOKED_AT - found.looked_at) + 1))
    except OSError:
        return []
    found.looked_at += len(inside)
    if found.looked_at > MAX_LOOKED_AT:
        found.over(f"What [generic] session names is too wide: only {MAX_LOOKED_AT} entries of folders are looked at.")
    return inside


def _is_own_file(path: Path, env: Env) -> bool:
    return any(path.is_relative_to(ours.absolute()) for ours in (state_dir(env), config_dir(env)))


def root_folder(kind: Root, workspace: Path, env: Env) -> Path | None:
    return workspace if kind == "workspace" else home(env)


def root_of(path: Path, workspace: Path, env: Env) -> Path:
    """Return the folder that a restore of `path` stays in."""
    for base in (folder(env), workspace, home(env)):
        if base is not None and path.is_relative_to(base):
            return base
    return folder(env)


def session_files(session: str, workspace: Path, env: Env) -> list[SessionFile]:
    if not _SESSION.fullmatch(session) or not note_path(session, env).is_file():
        return []
    found = find_files(workspace, env).files
    return [SessionFile(MAIN, note_path(session, env)), *(SessionFile(name, found[name]) for name in sorted(found))]


def restore_path(name: str, session: str, workspace: Path, env: Env) -> Path:
    if name == MAIN:
        return note_path(session, env)
    kind, *parts = name_parts(name, DEEP + 1)
    where: Root = "home" if kind == "home" else "workspace"
    base = root_folder(where, workspace, env)
    if kind != where or not parts or base is None:
        raise ValueError(f"{name!r} is no file of a session")
    named = load_settings(workspace, env).session
    path = base.joinpath(*parts)
    never = off_limits(where, parts) or _is_own_file(path, env)
    if never or not any(each.root == kind and each.covers(parts) for each in named):
        raise ValueError(
            f"{name!r} is not named on this machine: [generic] session in {user_file(env)} (files under HOME "
            "too) or in this folder's wal-agent.toml"
        )
    return path


def existing_files(session: str, workspace: Path, env: Env) -> list[Path]:
    """Return just the note: other files may be another command's, and are only replaced where the log has them."""
    path = note_path(session, env) if _SESSION.fullmatch(session) else None
    return [path] if path is not None and path.is_file() else []


def resumable(session: str, workspace: Path, env: Env) -> bool:
    return bool(existing_files(session, workspace, env))


def left_out(workspace: Path, env: Env) -> list[str]:
    return find_files(workspace, env).left_out
