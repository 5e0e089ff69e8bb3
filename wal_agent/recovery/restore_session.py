"""Restore a session where its agent looks for it: exactly, all or nothing, and never outside (I4).

The exact copies are made first and stay in a folder of wal-agent's, with what they replace. What the agent resumes is a
child of them: without what is no conversation (agents/conversation.py), unless this machine has it itself; the main
file reconciled, and with the recovery prompt in it. Files are staged beside their places, then
renamed: a crash at any point leaves either the old files or the new ones, and the next restore begins again from the
log. No link below the root is followed, and nothing is written outside of the root but into the backup.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from wal_agent.agents.base import Agent, Env, LoggedCall, Reconciled, RequestedCall, Rewriting
from wal_agent.agents.conversation import LeftOut, carry
from wal_agent.agents.valid import conversation_faults
from wal_agent.errors import ConfigError, Damaged, Exhausted
from wal_agent.failpoints import failpoint
from wal_agent.limits import failed
from wal_agent.safefs import (
    Buffer,
    Pieces,
    make_private_folder,
    map_file,
    open_plain,
    read_plain,
    release,
    sync_folder,
    write_new_file,
    write_pieces,
)
from wal_agent.text import shorten
from wal_agent.wal.blobs import Blobs, write_file
from wal_agent.wal.damage import with_hint
from wal_agent.wal.state import FileState

STAGED = ".wal-agent-staged-"
EXACT = "exact"  # the folder, below a restore's own, with the files as they were captured
_MOVE_AWAY_HINT = "Move it away, then start again."
MAX_RESTORES = 5  # folders of earlier restores
MAX_FILES = 20_000
MAX_BYTES = 16 << 30
MAX_CHECKED = 16 << 20  # bytes of a main file that is held in memory once more, to be checked
MAX_MAIN = 1 << 30  # bytes of the main file, which is held in memory
OWN = "own"  # the folder, below a restore's own, with a note on each file that this machine had itself

_SESSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class StagedFile(msgspec.Struct, frozen=True):
    """A staged file, the hash of its bytes, and where it goes."""

    staged: Path
    target: Path
    sha256: str


def stage_file(target: Path, pieces: Pieces, root: Path, behind: Callable[[], object] = lambda: None) -> StagedFile:
    """Write `pieces` beside `target`, fsynced, under a name that the agent ignores. `behind`: as in `write_pieces`.
    ConfigError: not a safe place."""
    make_parents(target.parent, root)
    if os.path.lexists(target) and not stat.S_ISREG(target.lstat().st_mode):
        raise ConfigError(f"{target} is not a plain file, so the session cannot be restored there.", _MOVE_AWAY_HINT)
    staged = target.with_name(STAGED + hashlib.sha256(target.name.encode()).hexdigest()[:16])
    with suppress(FileNotFoundError):
        staged.unlink()  # of a restore that was cut off
    return StagedFile(staged, target, write_pieces(staged, pieces, behind))


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


def _back_up(path: Path, root: Path, kept: Path) -> Path:
    """Make a durable copy below `kept`. ConfigError where the file cannot be read: it is not replaced then."""
    copy = kept / "replaced" / path.relative_to(root)
    if not _copy(path, copy):
        raise ConfigError(f"{path} cannot be read, so it cannot be kept before it is replaced.", _MOVE_AWAY_HINT)
    return copy


def _copy(path: Path, copy: Path) -> bool:
    """Make a durable copy, piece by piece: another program may have `path` open. Return whether it can be read."""
    try:
        file = open_plain(path)
    except OSError:
        return False
    make_private_folder(copy.parent)
    with file:
        write_pieces(copy, iter(lambda: file.read(1 << 20), b""))
    sync_folder(copy.parent)
    return True


def discard_staged(moves: Iterable[StagedFile]) -> None:
    """Remove staged files that were not moved."""
    for move in moves:
        with suppress(OSError):
            move.staged.unlink(missing_ok=True)


def _record_placed(moves: Iterable[StagedFile], kept: Path) -> None:
    """Store the hashes of what is put into place: the next restore must not take it for what the agent wrote."""
    with suppress(FileNotFoundError):
        (kept / "placed").unlink()
    lines = (f"{m.sha256} {m.staged.stat().st_size}" for m in moves)
    write_new_file(kept / "placed", "\n".join(lines).encode())


class PlacedFile(msgspec.Struct, frozen=True):
    """What an earlier restore put into place; `kept`: its folder."""

    sha256: str
    size: int
    kept: Path


def _read_placed(folder: Path) -> list[PlacedFile]:
    """Return what the restores whose folders are in `folder` put into place."""
    found = []
    for note in sorted(folder.glob("*/placed")):
        for line in (read_plain(note) or b"").decode("ascii", "replace").splitlines():
            sha256, _, size = line.partition(" ")
            found.append(PlacedFile(sha256, int(size) if size.isdecimal() else 0, note.parent))
    return found


class SessionTarget(msgspec.Struct, frozen=True):
    """Where a session goes: the agent's folder on this machine, and `kept`, a new folder for the exact copies and for
    what is replaced. `foreign`: what is there is another job's, so it never extends this one's."""

    agent: Agent
    session: str
    workspace: Path
    env: Env
    kept: Path
    foreign: bool = False

    @property
    def root(self) -> Path:
        """Nothing is restored outside this folder; links above it are the user's business."""
        return self.agent.folder(self.env)

    def root_of(self, path: Path) -> Path:
        """The same for one file, of an agent whose files are under several."""
        hookless = self.agent.capabilities.hookless
        return self.root if hookless is None else hookless.root_of(path, self.workspace, self.env)

    def path(self, name: str) -> Path:
        """Return the destination of a logical file; Damaged for a name that is not the agent's."""
        try:
            return self.agent.restore_path(name, self.session, self.workspace, self.env)
        except ValueError as error:
            raise Damaged(f"The log names a session file that cannot be restored: {shorten(str(error))}.") from error


class Restored(msgspec.Struct, frozen=True):
    """What was restored; `size` in bytes. `extended`: logical files of which this machine had more than the log, and
    kept it. `left_out`: names of what the log's files set beside the conversation."""

    files: tuple[str, ...]
    size: int
    reconciled: Reconciled
    extended: tuple[str, ...]
    kept: Path
    left_out: tuple[str, ...] = ()


def restore(
    place: SessionTarget,
    files: Mapping[str, FileState],
    blobs: Blobs,
    calls: Sequence[LoggedCall],
    notice: Callable[[Reconciled], str],
    now: float,
) -> Restored:
    """Restore all `files`, the agent's main file among them. `notice` writes the prompt from what was reconciled.
    `now`: by the clock of this machine, since 1970.

    Damaged: the log's bytes are wrong; ConfigError: this machine cannot take them. Nothing of the agent's is changed
    then."""
    failpoint("restore.before_stage")
    check_files(place, files)
    staged: list[StagedFile] = []
    try:
        _check_disk_space(place, files)
        main = place.agent.main_file
        exact = _write_exact_copies(place, files, blobs)
        longer = _keep_longer(place, files)
        left = LeftOut()
        carried = {name: _carry(place, name, longer.get(name), exact[name], left) for name in files}
        data = map_file(carried[main] or exact[main])
        reconciled = place.agent.reconcile(data, place.session, place.workspace, calls)
        repairs = (*reconciled.repairs, *_refused(place.agent, reconciled, len(data)))
        gone = _left_schedules(place.agent, exact[main], data) if left.names else ()
        reconciled = replace(reconciled, repairs=repairs, gone=gone)
        prompt = notice(reconciled)
        release(data)
        for name in sorted({*files} - {main}):
            if (copy := carried[name]) is not None:
                other = map_file(copy)
                path = place.path(name)
                staged.append(stage_file(path, [other], place.root_of(path), partial(release, other)))
        child = place.kept / "reconciled"
        write_pieces(child, reconciled.pieces, partial(release, data))
        reconciled = replace(reconciled, pieces=())  # from here on nothing of the session is in memory
        data = map_file(child)
        pieces: Pieces = [data]
        if (inject_prompt := place.agent.capabilities.inject_prompt) and prompt:
            pieces = inject_prompt(data, place.session, place.workspace, prompt)
        elif not_after := place.agent.capabilities.not_after:
            pieces = not_after(data, now)
        release(data)
        path = place.path(main)  # the main file last: it makes the session
        staged.append(stage_file(path, pieces, place.root_of(path), partial(release, data)))
        child.unlink()
        _move_in(place, staged)
    except OSError as error:
        raise failed("The session could not be restored", error) from error
    except Damaged as error:
        raise with_hint(error) from error
    finally:
        discard_staged(staged)
    size = sum(longer[name].stat().st_size if name in longer else file.size for name, file in files.items())
    return Restored(tuple(sorted(files)), size, reconciled, tuple(sorted(longer)), place.kept, tuple(left.names))


def _left_schedules(agent: Agent, exact: Path, carried: Buffer) -> tuple[RequestedCall, ...]:
    """Return what the log's file schedules and the one that is restored does not."""
    if (scheduled := agent.capabilities.scheduled) is None:
        return ()
    data, back = map_file(exact), scheduled(carried)
    try:
        return tuple(each for each in scheduled(data) if each not in back)
    finally:
        release(data)


def _refused(agent: Agent, reconciled: Reconciled, size: int) -> list[str]:
    """Say why the agent's model may refuse the session, where `reconcile` left something of that kind."""
    rewriting = agent.capabilities.rewriting
    if not isinstance(rewriting, Rewriting) or size > MAX_CHECKED:
        return []
    faults = conversation_faults(rewriting.units(reconciled.data), agent.capabilities.pairs_by_id)
    return [f"The model may refuse this session: {shorten(fault, 200)}." for fault in faults[:1]]


def check_files(place: SessionTarget, files: Mapping[str, FileState]) -> None:
    """Raise Damaged where what the log has of the files cannot be a session. Reads nothing."""
    try:
        if not _SESSION.fullmatch(place.session):  # it becomes a word of the agent's command line
            raise Damaged(f"The log names a session {shorten(repr(place.session), 60)}, which is no session's id.")
        if len(files) > MAX_FILES or sum(max(f.size, f.base_size, 0) for f in files.values()) > MAX_BYTES:
            raise Damaged(f"The log names {len(files)} session files, more or bigger than an agent can have.")
        if (size := files[place.agent.main_file].size) > MAX_MAIN:
            raise Damaged(f"The log says that the session has {size} bytes, more than an agent can resume.")
        for name in files:
            place.path(name)
            if above := next((str(p) for p in PurePosixPath(name).parents if str(p) in files), None):
                raise Damaged(f"The log names {shorten(above)} both as a file and as a folder.")
    except Damaged as error:
        raise with_hint(error) from error


def _check_disk_space(place: SessionTarget, files: Mapping[str, FileState]) -> None:
    """Raise Exhausted where the disk cannot hold the exact copies, before they fill it."""
    make_private_folder(place.kept)
    needed, free = sum(max(f.size, f.base_size) for f in files.values()), shutil.disk_usage(place.kept).free
    if needed > free:
        raise Exhausted(f"The session needs {needed} bytes in {place.kept}, and {free} are free.", "Make room there.")


def create_session(place: SessionTarget, prompt: str) -> None:
    """Create a session of only `prompt`, for a task whose own session was never saved. ConfigError."""
    inject_prompt = place.agent.capabilities.inject_prompt
    if inject_prompt is None:
        return
    pieces = inject_prompt(b"", place.session, place.workspace, prompt)
    try:
        make_private_folder(place.kept)
        _move_in(place, [stage_file(place.path(place.agent.main_file), pieces, place.root)])
    except OSError as error:
        raise failed("The new session could not be written", error) from error


def drop_old_restores(folder: Path) -> None:
    """Drop the folders of all but the newest restores; their names sort by time."""
    with suppress(OSError):
        for old in sorted(folder.iterdir())[:-MAX_RESTORES]:
            shutil.rmtree(old, ignore_errors=True)


def _write_exact_copies(place: SessionTarget, files: Mapping[str, FileState], blobs: Blobs) -> dict[str, Path]:
    """Write every file, byte for byte as captured and checked, below `kept`."""
    make_private_folder(place.kept / EXACT)
    made: dict[str, Path] = {}
    for name, file in files.items():
        place.path(name)  # refuses a name that would lead elsewhere, before anything is written under it
        made[name] = _path_below(place.kept / EXACT, name)
        write_file(blobs, file, made[name])
    return made


def _path_below(folder: Path, name: str) -> Path:
    """Return the place of a logical file below `folder`, its parents made."""
    target = folder.joinpath(*name.split("/"))
    make_parents(target.parent, folder)
    return target


def _keep_longer(place: SessionTarget, files: Mapping[str, FileState]) -> dict[str, Path]:
    """Copy what this machine has beyond the log below `kept`; return the copies by logical name."""
    found = {}
    for name, file in files.items():
        copy = _path_below(place.kept / "longer", name)
        if find_longer(place, name, file, copy):
            found[name] = copy
    return found


def _carry(place: SessionTarget, name: str, longer: Path | None, exact: Path, left: LeftOut) -> Path | None:
    """Return the copy that is restored: with only the conversation of what this machine has not itself. None: nothing
    of the file is restored."""
    if longer is not None:
        _note_own(place, name, longer, longer.stat().st_size)
        return longer
    data = map_file(exact)
    if own := _own_size(place, name, exact):
        _note_own(place, name, exact, own)
    if own >= len(data):
        return exact
    copy = _path_below(place.kept / "carried", name)
    pieces = carry(place.agent.travels(name, place.workspace), name, data, own, left)
    write_pieces(copy, pieces, partial(release, data))
    return copy if copy.stat().st_size or name == place.agent.main_file else None


def _own_size(place: SessionTarget, name: str, exact: Path) -> int:
    """Return how many bytes of the log's file this machine has itself: its own file is the beginning of the log's. What
    an earlier restore put there stands for what that one found here."""
    found = 0
    placed = {each.sha256: each.kept for each in _read_placed(place.kept.parent)}
    for path in _files_here(place, name):
        size, sha256 = path.stat().st_size if path.exists() else 0, _hash_of(path)
        if (earlier := placed.get(sha256)) is not None:
            size, sha256 = _read_own(earlier, name)
        if size > found and _hash_of(exact, size) == sha256:
            found = size
    return found


def _note_own(place: SessionTarget, name: str, copy: Path, size: int) -> None:
    write_new_file(_path_below(place.kept / OWN, name), f"{size} {_hash_of(copy, size)}".encode())


def _read_own(folder: Path, name: str) -> tuple[int, str]:
    size, _, sha256 = (read_plain(folder / OWN / name, 100) or b"").decode("ascii", "replace").partition(" ")
    return (int(size), sha256) if size.isdecimal() else (0, "")


def _files_here(place: SessionTarget, name: str) -> list[Path]:
    """Return this machine's own versions of a logical file."""
    if name == place.agent.main_file:
        return place.agent.existing_files(place.session, place.workspace, place.env)
    return [place.path(name)]


def find_longer(place: SessionTarget, name: str, file: FileState, copy: Path) -> bool:
    """Copy this machine's file to `copy` where it extends the log's: it has what was not captured any more. Return
    whether it does.

    What an earlier restore put there is longer only by the notice; then the longer copy that that restore found counts
    again, or a second crash would lose it. Where the agent went on in it, it extends the log's version that it was made
    of."""
    if place.foreign or file.size <= 0:
        return False
    placed = _read_placed(place.kept.parent)
    for path in _files_here(place, name):
        sha256 = _hash_of(path)
        earlier = next((each.kept for each in reversed(placed) if each.sha256 == sha256), None)
        if _copy_longer(path if earlier is None else earlier / "longer" / name, file, copy):
            return True
        if earlier is None and _goes_on(path, name, file, placed) and _copy(path, copy):
            return True
    return False


def _goes_on(path: Path, name: str, file: FileState, placed: Sequence[PlacedFile]) -> bool:
    """Return whether the agent has added to what an earlier restore made of this version of the log's file."""
    with suppress(OSError):
        size = path.stat().st_size
        begun = (each for each in placed if 0 < each.size < size and _hash_of(path, each.size) == each.sha256)
        return any(_hash_of(each.kept / EXACT / name) == file.sha256 for each in begun)
    return False


def _copy_longer(path: Path, file: FileState, copy: Path) -> bool:
    with suppress(OSError):
        if path.lstat().st_size <= file.size or not _copy(path, copy):
            return False
        if _hash_of(copy, file.size) == file.sha256:  # of the copy: another program may have `path` open
            return True
        copy.unlink()
    return False


def _hash_of(path: Path, size: int | None = None) -> str:
    """Return the hash (SHA-256) of a plain file's first `size` bytes, or of all; "" where it has fewer or cannot be
    read."""
    digest = hashlib.sha256()
    with suppress(OSError), open_plain(path) as file:
        left = os.fstat(file.fileno()).st_size if size is None else size
        while left and (piece := file.read(min(1 << 20, left))):
            digest.update(piece)
            left -= len(piece)
        return "" if left else digest.hexdigest()
    return ""


def _move_in(place: SessionTarget, moves: Sequence[StagedFile]) -> None:
    """Back up what is in the way, rename the staged files into place in their order, then remove other files that would
    confuse the agent.

    A failure restores what was there and raises ConfigError; a crash leaves each file whole, old or new, and the next
    restore does all of it again."""
    failpoint("restore.staged")
    targets = [m.target for m in moves]
    gone = [p for p in place.agent.existing_files(place.session, place.workspace, place.env) if p not in targets]
    there = [path for path in (*targets, *gone) if os.path.lexists(path)]
    root = Path(os.path.commonpath(map(place.root_of, there))) if there else place.root
    copies = {path: _back_up(path, root, place.kept) for path in there}
    _record_placed(moves, place.kept)
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
            _undo_move(path, copies.get(path), place.root_of(path))
        raise failed("The session could not be put into place", error) from error
    for folder in {path.parent for path in (*targets, *gone)}:
        sync_folder(folder)
    failpoint("restore.after_moves")


def _undo_move(path: Path, copy: Path | None, root: Path) -> None:
    with suppress(OSError):
        if copy is None:
            path.unlink()
        else:
            move = stage_file(path, [map_file(copy)], root)
            move.staged.rename(path)
