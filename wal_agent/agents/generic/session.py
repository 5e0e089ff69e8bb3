"""The session of any command: the files that `[generic] session` names, and a note of wal-agent's.

Names in the log: `note.json`, `home/<path>`, `workspace/<path>`. The note makes the session: it is in wal-agent's state
folder and lists the names under which files were saved. A name of a log is only put back where the settings on this
machine name it too, so that no log chooses what is written. Links are not followed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import msgspec

from wal_agent import msgspec_compat
from wal_agent.agents.base import Env, LoggedCall, Reconciled, SessionFile
from wal_agent.agents.generic import settings
from wal_agent.agents.generic.settings import DEEP, Named, Root
from wal_agent.agents.session_files import name_parts
from wal_agent.paths import config_dir, home, state_dir

MAIN = "note.json"
MOST_FILES = 2000
MOST_LOOKED_AT = 20_000  # entries of folders
MOST_FILE = 256 << 20  # bytes
MOST_BYTES = 1 << 30
MOST_NOTES = 200
_SESSION = re.compile(r"[A-Za-z0-9_-]{1,128}")


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
    named = tuple(str(each) for each in settings.load_settings(workspace, env).session)
    data = msgspec.json.encode(Note(session, named)) + b"\n"
    path = note_path(session, env)
    with suppress(OSError):
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(".new")
        new.write_bytes(data)
        new.replace(path)


def reconcile(main: bytes, session: str, workspace: Path, calls: Sequence[LoggedCall]) -> Reconciled:
    """Return the note, or a new one where it is damaged or another session's."""
    try:
        note = _NOTE.decode(main)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        note = Note("")
    if note.session == session:
        return Reconciled(main, 0, 0)
    return Reconciled(msgspec.json.encode(Note(session)) + b"\n", 0, 0)


def sweep(env: Env, runtime: Path) -> None:
    """Drop the oldest notes beyond MOST_NOTES."""
    with suppress(OSError):
        notes = sorted(folder(env).iterdir(), key=lambda path: path.stat().st_mtime)
        for old in notes[:-MOST_NOTES]:
            shutil.rmtree(old, ignore_errors=True)


@dataclass(slots=True)
class Found:
    """`left_out`: what is not saved, in sentences."""

    files: dict[str, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    size: int = 0
    looked_at: int = 0

    def over(self, why: str) -> None:
        if why not in self.left_out:
            self.left_out.append(why)


def find_files(workspace: Path, env: Env) -> Found:
    """Find the regular files that the settings name, by their logical names."""
    found = Found()
    for named in settings.load_settings(workspace, env).session:
        base = root_folder(named.root, workspace, env)
        if base is not None:
            for path in _matches(base, frozenset((named.parts,)), found, DEEP):
                _add_file(path, base, named, env, found)
    return found


def folders(workspace: Path, env: Env) -> list[Path]:
    """Return the nearest existing folders above what patterns mean."""
    found: set[Path] = set()
    for named in settings.load_settings(workspace, env).session:
        at = root_folder(named.root, workspace, env)
        if at is None:
            continue
        for part in named.parts[:-1]:
            if settings.is_wild(part) or not _is_folder(at / part):
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
    if name in found.files or settings.off_limits(named.root, parts) or _is_own_file(path, env):
        return
    try:
        name_parts(name, DEEP + 1)
        size = path.lstat().st_size
    except (OSError, ValueError):
        return
    if size > MOST_FILE:
        found.over(f"{path} is not saved: it has more than {MOST_FILE >> 20} MiB.")
    elif len(found.files) >= MOST_FILES or found.size + size > MOST_BYTES:
        found.over(
            f"Not all that [generic] session names is saved: it is more than {MOST_FILES} files or "
            f"{MOST_BYTES >> 30} GiB."
        )
    else:
        found.files[name] = path
        found.size += size


def _matches(folder: Path, wanted: frozenset[tuple[str, ...]], found: Found, deep: int) -> Iterator[Path]:
    """Yield the regular files below the real folder that match the rest of the patterns."""
    wanted = settings.expand_patterns(wanted)
    for path in _entries(folder, wanted, found):
        left = settings.patterns_below(wanted, path.name)
        try:
            mode = path.lstat().st_mode if left else 0
        except OSError:
            continue
        if stat.S_ISREG(mode) and () in settings.expand_patterns(left):
            yield path
        elif stat.S_ISDIR(mode) and deep > 0:
            yield from _matches(path, left, found, deep - 1)


def _entries(folder: Path, wanted: frozenset[tuple[str, ...]], found: Found) -> list[Path]:
    """Return the entries that may match; a folder is not listed where patterns name what is in it."""
    if all(left and not settings.is_wild(left[0]) for left in wanted):
        return sorted({folder / left[0] for left in wanted})
    try:
        with os.scandir(folder) as entries:
            inside = sorted(islice((Path(e.path) for e in entries), max(0, MOST_LOOKED_AT - found.looked_at) + 1))
    except OSError:
        return []
    found.looked_at += len(inside)
    if found.looked_at > MOST_LOOKED_AT:
        found.over(f"What [generic] session names is too wide: only {MOST_LOOKED_AT} entries of folders are looked at.")
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
    named = settings.load_settings(workspace, env).session
    path = base.joinpath(*parts)
    never = settings.off_limits(where, parts) or _is_own_file(path, env)
    if never or not any(each.root == kind and each.covers(parts) for each in named):
        raise ValueError(
            f"{name!r} is not named on this machine: [generic] session in {settings.user_file(env)} (files under HOME "
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
