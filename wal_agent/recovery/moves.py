"""Files into a folder of the agent's: staged beside their places, what is there kept, then moved; all or nothing (I4).

Nothing here follows a link below the folder's root, and nothing is written outside it but into `kept`, which is ours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from wal_agent.errors import ConfigError
from wal_agent.failpoints import failpoint
from wal_agent.safefs import read_plain

STAGED = ".wal-agent-staged-"
_MOVE_AWAY_HINT = "Move it away, then start again."


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A staged file, the hash of its bytes, and where it goes."""

    staged: Path
    target: Path
    sha256: str


def stage_file(target: Path, data: bytes, root: Path) -> StagedFile:
    """`data` beside `target`, fsynced, under a name that the agent does not look at. ConfigError: not a safe place."""
    make_parents(target.parent, root)
    if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
        raise ConfigError(f"{target} is not a plain file, so the session cannot be restored there.", _MOVE_AWAY_HINT)
    staged = target.with_name(STAGED + hashlib.sha256(target.name.encode()).hexdigest()[:16])
    with suppress(FileNotFoundError):
        staged.unlink()  # of a restore that was cut off
    write_new_file(staged, data)
    return StagedFile(staged, target, hashlib.sha256(data).hexdigest())


def make_parents(folder: Path, root: Path) -> None:
    """Create the folders below `root`; ConfigError for a link or a file among them, and for a folder elsewhere."""
    if not folder.is_relative_to(root) or ".." in folder.parts:
        raise ConfigError(f"{folder} is outside {root}, so nothing can be restored there.")
    make_private_folder(root)
    at = root
    for part in folder.relative_to(root).parts:
        at = at / part
        with suppress(FileExistsError):
            at.mkdir(mode=0o700)
        if not stat.S_ISDIR(at.lstat().st_mode):
            raise ConfigError(f"{at} is not a folder, so the session cannot be restored there.", _MOVE_AWAY_HINT)


def move_in(moves: Sequence[StagedFile], away: Iterable[Path], root_of: Callable[[Path], Path], kept: Path) -> None:
    """Keep what is in the way under `kept`, rename the staged files into place in their order, then remove `away`.

    A failure puts back what was there and raises ConfigError; a crash leaves each file whole, old or new, and the next
    restore does all of it again."""
    failpoint("restore.staged")
    targets = [m.target for m in moves]
    gone = [path for path in away if path not in targets]
    there = [path for path in (*targets, *gone) if os.path.lexists(path)]
    copies = {path: back_up(path, above, kept) for above in _common_root(there, root_of) for path in there}
    record_placed(moves, kept)
    done: list[Path] = []
    try:
        for move in moves:
            move.staged.rename(move.target)
            done.append(move.target)
            failpoint("restore.between_moves")
        for path in gone:
            path.unlink(missing_ok=True)
    except OSError as error:
        for path in done:
            _undo_move(path, copies.get(path), root_of(path))
        raise ConfigError(f"The session could not be put into place: {error}.") from error
    for folder in {path.parent for path in (*targets, *gone)}:
        sync_folder(folder)
    failpoint("restore.after_moves")


def _common_root(paths: Sequence[Path], root_of: Callable[[Path], Path]) -> list[Path]:
    """The folder that all their roots are in, if there are any; each copy keeps its path below it."""
    return [Path(os.path.commonpath([root_of(path) for path in paths]))] if paths else []


def back_up(path: Path, root: Path, kept: Path) -> Path:
    """A durable copy in our folder. ConfigError when the file cannot be read: it is not replaced then."""
    data = read_plain(path)
    if data is None:
        raise ConfigError(f"{path} cannot be read, so it cannot be kept before it is replaced.", _MOVE_AWAY_HINT)
    copy = kept / "replaced" / path.relative_to(root)
    make_private_folder(copy.parent)
    write_new_file(copy, data)
    sync_folder(copy.parent)
    return copy


def discard_staged(moves: Iterable[StagedFile]) -> None:
    """Remove staged files that were not moved."""
    for move in moves:
        with suppress(OSError):
            move.staged.unlink(missing_ok=True)


def record_placed(moves: Iterable[StagedFile], kept: Path) -> None:
    """Note the hashes of what is put into place: the next restore must not take it for what the agent wrote."""
    with suppress(FileNotFoundError):
        (kept / "placed").unlink()
    write_new_file(kept / "placed", "\n".join(m.sha256 for m in moves).encode())


def read_placed(folder: Path) -> dict[str, Path]:
    """What earlier restores put into place: hash to the restore's folder, all of which are in `folder`."""
    found: dict[str, Path] = {}
    for note in sorted(folder.glob("*/placed")):
        hashes = (read_plain(note) or b"").decode("ascii", "replace").split()
        found.update(dict.fromkeys(hashes, note.parent))
    return found


def drop_oldest(folder: Path, most: int) -> None:
    """Drop all but the newest `most` folders; their names sort by time."""
    with suppress(OSError):
        for old in sorted(folder.iterdir())[:-most]:
            shutil.rmtree(old, ignore_errors=True)


def make_private_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, for this user only."""
    for missing in [p for p in (*reversed(folder.parents), folder) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)


def write_new_file(path: Path, data: bytes) -> None:
    """A new file of ours (0600), durable. OSError when something is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _undo_move(path: Path, copy: Path | None, root: Path) -> None:
    with suppress(OSError):
        if copy is None:
            path.unlink()
        else:
            move = stage_file(path, copy.read_bytes(), root)
            move.staged.rename(path)
