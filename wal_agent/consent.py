"""What a person has allowed a project to decide: for one folder, each setting with exactly one value.

The notes are in the person's state folder (0600 in 0700), never in the project. A folder is known by its real path,
device and inode: another one that is put in its place is not trusted. A prompt or a table is known by its bytes' hash.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from wal_agent import msgspec_compat
from wal_agent.errors import ConfigError
from wal_agent.paths import state_dir
from wal_agent.safefs import open_plain, replace_file

MAX_NOTE = 256 << 10  # bytes


@dataclass(frozen=True, slots=True)
class Want:
    """Something that a project's file decides if a person lets it. `value` is kept and compared, `shown` is for people;
    `means`: what it does, in one clause."""

    setting: str
    value: str
    place: Path
    shown: str
    means: str


class ConsentNeeded(ConfigError):
    """A project's files want what nobody has allowed for this folder."""

    def __init__(self, wants: Iterable[Want]) -> None:
        self.wants = tuple(wants)
        first, more = self.wants[0], len(self.wants) - 1
        beside = f" (and {more} more such setting{'s' * (more > 1)})" if more else ""
        super().__init__(
            f"{first.setting} in {first.place} is {first.shown}, which you have not allowed this folder to "
            f"choose{beside}: {first.means}.",
            "To see it and allow it: wal-agent trust. A flag, a variable or your own file goes before it.",
        )


class _Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str  # for people; the file's name says which one it is
    settings: dict[str, str]


_NOTE = msgspec_compat.of_json(_Note)


@dataclass(frozen=True, slots=True)
class Consents:
    """Those of one folder, `workspace` (a real path)."""

    workspace: Path
    env: Mapping[str, str]

    def given(self) -> dict[str, str]:
        """Setting and value; none where the note is missing, is not this folder's, or could be somebody else's."""
        try:
            path = self._path()
            folder = path.parent.lstat()
            if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != os.geteuid() or folder.st_mode & 0o077:
                return {}
            with open_plain(path) as file:
                about = os.fstat(file.fileno())
                if about.st_uid != os.geteuid() or about.st_mode & 0o077:
                    return {}
                return dict(_NOTE.decode(file.read(MAX_NOTE)).settings)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}

    def allows(self, want: Want) -> bool:
        return self.given().get(want.setting) == want.value

    def allow(self, wants: Iterable[Want]) -> None:
        """Durable. ConfigError: the state folder cannot be written."""
        path = self._path()
        settings = {**self.given(), **{want.setting: want.value for want in wants}}
        note = _Note(str(self.workspace), settings)
        try:
            path.unlink(missing_ok=True)  # its mode would be kept
            if path.parent.exists():
                path.parent.chmod(0o700)
        except OSError as error:
            raise ConfigError(f"{path.parent} cannot be written: {error.strerror}.") from None
        replace_file(path, msgspec.json.encode(note), None)

    def revoke(self) -> bool:
        """Forget all of it; whether there was anything."""
        had = bool(self.given())
        with suppress(FileNotFoundError):
            self._path().unlink()
        return had

    def _path(self) -> Path:
        info = self.workspace.stat()
        name = hashlib.sha256(os.fsencode(f"{info.st_dev}\0{info.st_ino}\0{self.workspace}")).hexdigest()[:32]
        return state_dir(self.env) / "trusted" / f"{name}.json"


def content_digest(data: bytes) -> str:
    """What is kept of a text: consent is for these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
