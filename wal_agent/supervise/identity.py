"""Identify the person and the folder of a job, and name the job after both: `gemini-shop-k3f9`.

Both ids are kept in wal-agent's local state folder from the first job on: `person`, and one note for each folder in
`folders/`. Before, they are computed from facts of this machine, so that commands that only read name the same job and
write nothing. A job keeps its name when its folder is renamed.

A folder is known by an extended attribute that holds the note's id, and where a file system has none by device and
inode; a folder at the noted path in place of one that is gone counts as the same folder. An attribute without a note
counts for nothing, so no archive or repository can pose as a folder of this person.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import msgspec

from wal_agent import msgspec_compat
from wal_agent.config import MAX_JOB
from wal_agent.paths import state_dir
from wal_agent.records import Owner
from wal_agent.safefs import make_private_folder, read_plain, swap_file, sync_folder, write_new_file
from wal_agent.supervise.machine import this_host

KEY_FILE = "person.key"  # in the state folder
KEY_VARIABLE = "WAL_AGENT_PERSON_KEY_FILE"
ATTRIBUTE = "user.wal-agent.folder"
MAX_NOTE = 64 << 10  # bytes
MAX_NOTES = 2000  # folders that are looked through
MAX_JOBS = 32  # of one folder, the newest first
SHORT = 4  # letters of an id in a job's name: a million names
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # none is taken for another one
_ID = re.compile(r"[0-9a-f]{32}")


class KnownJob(msgspec.Struct, frozen=True):
    """A job that ran in a folder of this machine. `named`: a person or a file chose its name. `alias`: its display
    name, as far as this machine gave it (`wal-agent rename`)."""

    bucket: str
    job: str
    agent: str
    named: bool = False
    alias: str = ""


class _Note(msgspec.Struct, frozen=True):
    path: str
    device: int
    inode: int
    jobs: tuple[KnownJob, ...] = ()


_NOTE = msgspec_compat.of_json(_Note)


class KnownFolder(msgspec.Struct, frozen=True):
    """A folder in which a job ran on this machine: its id, its path at the newest run, and its jobs, newest first."""

    id: str
    path: Path
    jobs: tuple[KnownJob, ...]


def read_owner(folder: Path, env: Mapping[str, str]) -> Owner:
    """Return the owner that a job in `folder` (a real path) has, or would have. Writes nothing."""
    person = _read_id(state_dir(env) / "person") or _new_person(env)
    found = _find(folder, env)
    return Owner(_user(), person, found[0] if found else _new_folder(folder, person, env))


def make_owner(folder: Path, env: Mapping[str, str]) -> Owner:
    """Return the owner of a job in `folder` (a real path), and note both ids and the folder's present path, as far as
    the state folder can be written. Call it when the job is open: a refused start leaves no note."""
    owner = read_owner(folder, env)
    person, note = state_dir(env) / "person", _read(env, owner.folder)
    with suppress(OSError):
        if not _read_id(person):
            make_private_folder(person.parent)
            with suppress(FileExistsError):
                write_new_file(person, owner.person.encode())
        info = folder.stat()
        _write(env, owner.folder, _Note(str(folder), info.st_dev, info.st_ino, note.jobs if note else ()))
        with suppress(OSError, AttributeError):
            os.setxattr(folder, ATTRIBUTE, owner.folder.encode(), follow_symlinks=False)
    return owner


def person_key(env: Mapping[str, str]) -> bytes:
    """The key with which this person's runs sign what they write; empty: there is none. ConfigError: a key that was
    named, or stands there, is none, or is open to others."""
    from wal_agent.bucket.encryption import load_key

    named = env.get(KEY_VARIABLE, "")
    own = state_dir(env) / KEY_FILE
    if not named and not os.path.lexists(own):
        return b""
    key = load_key(named or str(own), "", env)
    return key.secret if key else b""


def make_person_key(env: Mapping[str, str]) -> bytes:
    """As `person_key`; made where there is none, as far as the state folder can be written."""
    if key := person_key(env):
        return key
    with suppress(OSError):
        store_person_key(env, os.urandom(32))
    return person_key(env)


def store_person_key(env: Mapping[str, str], key: bytes) -> None:
    """It is there whole, or not at all: other starts read it meanwhile. FileExistsError: there is one. OSError."""
    path = state_dir(env) / KEY_FILE
    make_private_folder(path.parent)
    fresh = path.with_name(f".{KEY_FILE}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # of a process that died
    write_new_file(fresh, key.hex().encode() + b"\n")
    try:
        os.link(fresh, path)
    finally:
        fresh.unlink()
    sync_folder(path.parent)


def remember_job(env: Mapping[str, str], folder: str, job: KnownJob) -> None:
    """Note that `job` ran in the folder with this id. OSError: the state folder cannot be written.

    A name that the folder gave stays so when `resume` or a person names the job later."""
    note = _read(env, folder)
    if note is not None:
        key = (job.bucket, job.job, job.agent)
        same = [noted for noted in note.jobs if (noted.bucket, noted.job, noted.agent) == key]
        alias = next((noted.alias for noted in same if noted.alias), "")
        job = msgspec.structs.replace(job, named=job.named and all(noted.named for noted in same), alias=alias)
        others = tuple(noted for noted in note.jobs if noted not in same)
        _write(env, folder, msgspec.structs.replace(note, jobs=(job, *others)[:MAX_JOBS]))


def remember_alias(env: Mapping[str, str], bucket: str, job: str, alias: str) -> None:
    """Note the display name of a job wherever it is noted; "" takes it away. OSError: as `remember_job`."""
    for id, note in _notes(env):
        jobs = tuple(
            msgspec.structs.replace(noted, alias=alias) if (noted.bucket, noted.job) == (bucket, job) else noted
            for noted in note.jobs
        )
        _write(env, id, msgspec.structs.replace(note, jobs=jobs))


def noted_job(env: Mapping[str, str], bucket: str, name: str) -> str:
    """Return the own name of the job that this machine's notes call `name`; else `name` itself."""
    jobs = [noted for _, note in _notes(env) for noted in note.jobs if noted.bucket == bucket]
    aliased = (noted.job for noted in jobs if noted.alias == name)
    return name if any(noted.job == name for noted in jobs) else next(aliased, name)


def default_job_here(agent: str, folder: Path, bucket: str, env: Mapping[str, str]) -> str:
    """The job that `agent` has in `folder` (a real path) where no name is given: the one that it had there before,
    whatever it is called; else a new name, by the folder's name and by who the person and the folder are."""
    found = _find(folder, env)
    noted = found[1].jobs if found else ()
    mine = (k.job for k in noted if (k.bucket, k.agent, k.named) == (bucket, agent, False))
    return next(mine, "") or default_job(agent, folder, read_owner(folder, env))


def default_job(agent: str, folder: Path, owner: Owner) -> str:
    """`<agent>-<folder>-<short id of person and folder>`; what a bucket's key cannot hold becomes '-'. Pure."""
    number = int.from_bytes(_digest("job", owner.person, owner.folder))
    short = "".join(_LETTERS[number >> 5 * n & 31] for n in range(SHORT))
    return earlier_default_job(agent, folder)[: MAX_JOB - SHORT - 1] + f"-{short}"


def earlier_default_job(agent: str, folder: Path) -> str:
    """`<agent>-<folder>`, which was the default before. Pure."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "root"
    return f"{agent}-{name}"[:MAX_JOB]


def known_folders(env: Mapping[str, str]) -> Iterator[KnownFolder]:
    """Return the folders in which this person's jobs ran on this machine."""
    for id, note in _notes(env):
        yield KnownFolder(id, Path(note.path), note.jobs)


def _find(folder: Path, env: Mapping[str, str]) -> tuple[str, _Note] | None:
    try:
        info = folder.stat()
    except OSError:
        return None
    place = (info.st_dev, info.st_ino)
    marked = ""
    marks = True
    try:
        marked = os.getxattr(folder, ATTRIBUTE, follow_symlinks=False).decode("ascii", "replace")
    except AttributeError:
        marks = False
    except OSError as error:
        marks = error.errno == errno.ENODATA
    if marked and (note := _read(env, marked)) is not None and not _is_copy(note, folder, place):
        return marked, note
    for id, note in _notes(env):
        same_place = (note.device, note.inode) == place
        if note.path == str(folder) or (same_place and not marks and not Path(note.path).exists()):
            return id, note
    return None


def _new_person(env: Mapping[str, str]) -> str:
    """The id of a person without one: other on each machine, in each container and for each state folder."""
    here = this_host(env, Path("/dev/null"))
    return _digest("person", _user(), here.name, here.boot, here.pidns, str(state_dir(env))).hex()


def _new_folder(folder: Path, person: str, env: Mapping[str, str]) -> str:
    """The id of a folder without one. Inodes are used again, so an id that has a note is another folder's."""
    try:
        info = folder.stat()
    except OSError:
        return ""
    for n in range(MAX_NOTES):
        id = _digest("folder", person, str(folder), str(info.st_dev), str(info.st_ino), str(n)).hex()
        if _read(env, id) is None:
            return id
    return ""


def _digest(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _is_copy(note: _Note, folder: Path, place: tuple[int, int]) -> bool:
    """Whether the noted folder is still at its path, so that `folder` has only a copy of its attribute."""
    if note.path == str(folder) or (note.device, note.inode) == place:
        return False
    with suppress(OSError):
        there = Path(note.path).stat()
        return (there.st_dev, there.st_ino) == (note.device, note.inode)
    return False


def _notes(env: Mapping[str, str]) -> Iterator[tuple[str, _Note]]:
    names: list[str] = []
    with suppress(OSError):
        names = sorted(os.listdir(state_dir(env) / "folders"))[:MAX_NOTES]  # noqa: PTH208 - names, not paths
    for name in names:
        note = _read(env, name)
        if note is not None:
            yield name, note


def _read(env: Mapping[str, str], id: str) -> _Note | None:
    data = read_plain(state_dir(env) / "folders" / id, MAX_NOTE) if _ID.fullmatch(id) else None
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None if data is None else _NOTE.decode(data)
    return None


def _write(env: Mapping[str, str], id: str, note: _Note) -> None:
    if _read(env, id) != note:
        swap_file(state_dir(env) / "folders" / id, msgspec.json.encode(note))


def _read_id(path: Path) -> str:
    text = (read_plain(path, 64) or b"").decode("ascii", "replace").strip()
    return text if _ID.fullmatch(text) else ""


def _user() -> str:
    try:
        return getpass.getuser()[:64]
    except (KeyError, OSError):  # a number without a name
        return str(os.getuid())
