"""Describe this machine: the host as a lease names it, the private folders of runs, and the flock that proves that a
run is alive; and what it knows of the run that a lease names, by its lock and its spool (R9).

The lock lies in a folder that does not depend on HOME, so that a new start finds it although the home was lost.
"""

from __future__ import annotations

import errno
import os
import platform
import stat
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from wal_agent.errors import ConfigError
from wal_agent.paths import state_dir as state_dir
from wal_agent.records import Host
from wal_agent.recovery.lease_policy import Local
from wal_agent.safefs import FlockState, Life, flock_state, make_private_folder, read_plain, try_lock
from wal_agent.wal.lease import StoredLease
from wal_agent.wal.spool import SpoolOwner, spool_presence

MAX_RUNTIME = 70  # bytes; a unix socket's path holds 103 on macOS, and the run and the socket's name come behind it
_LIFE: dict[FlockState, Life] = {"held": "alive", "free": "dead", "unknown": "unknown"}
PLACE = "place"


def spools_dir(env: Mapping[str, str]) -> Path:
    """The folder of what this user's runs spool (R9)."""
    return state_dir(env) / "spools"


def runtime_path(env: Mapping[str, str]) -> Path:
    """Where `runtime_dir` is, or would be."""
    return Path(env.get("WAL_AGENT_RUNTIME_DIR") or f"/tmp/wal-agent-{os.getuid()}")


def runtime_dir(env: Mapping[str, str]) -> Path:
    """The folder of all run folders: ours alone, 0700. Short, because a unix socket's path holds about 100 bytes.

    Raises ConfigError when somebody else owns it or can write into it."""
    path = runtime_path(env)
    if len(os.fsencode(path)) > MAX_RUNTIME:
        raise ConfigError(
            f"{path} is too long a path for the hooks' socket ({MAX_RUNTIME} bytes at most).",
            "Set WAL_AGENT_RUNTIME_DIR to a shorter one.",
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
    except OSError as error:
        own = "export WAL_AGENT_RUNTIME_DIR=/folder (a short path)"
        hint = (
            "Remove what stands there, or name another" if os.path.lexists(path) else "Name one that this user may make"
        )
        raise ConfigError(
            f"The folder {path} for the hooks' socket cannot be made: {error.strerror}.", f"{hint}: {own}"
        ) from error
    if stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid() and info.st_mode & 0o777 in (0o400, 0o600):
        path.chmod(0o700)  # of a start under a umask that took the owner's rights
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise ConfigError(
            f"{path} is not a private folder of this user, so the hooks' socket would not be safe there.",
            "Remove it, or set WAL_AGENT_RUNTIME_DIR to a short path of your own (mode 0700).",
        )
    return path


def require_state_dir(env: Mapping[str, str]) -> None:
    """Nothing of the working tree can be saved without it: it must be writable, and know flock. A full disk is none of
    this. ConfigError."""
    folder = state_dir(env)
    try:
        make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            try_lock(file.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return
        raise ConfigError(
            f"{folder} cannot be used to save this folder's files: {(error.strerror or str(error)).lower()}.",
            "Name a folder on a local disk that this user may write to: export XDG_STATE_HOME=/folder "
            "(to save no file: export WAL_AGENT_WORKSPACE=off)",
        ) from error


def this_host(env: Mapping[str, str], lock: Path) -> Host:
    """What a lease says of this machine. WAL_AGENT_HOST_ID replaces the boot id where the kernel's is shared. Two
    machines of one id are kept apart by the lock alone: an owner counts as dead only when its lock file is here and
    free."""
    return Host(
        name=platform.node() or "unknown",
        boot=env.get("WAL_AGENT_HOST_ID") or _boot_id(),
        pidns=_pid_namespace(),
        pid=os.getpid(),
        lock=str(lock),
        file=_which_file(lock),
    )


def _which_file(path: Path | str) -> str:
    with suppress(OSError, ValueError):
        info = os.lstat(path)
        return f"{info.st_dev}:{info.st_ino}"
    return ""


def _boot_id() -> str:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    import psutil

    return f"{platform.node()}-{int(psutil.boot_time())}"


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def lock_state(owner: Host, here: Host, run: str) -> Life:
    """Whether the owner's supervisor lives, by its flock; unknown on any other kernel. What its tools do to the lock's
    file makes it no dead one: its mark stays."""
    if not owner.same_kernel(here.boot, here.pidns):
        return "unknown"
    by_lock = _LIFE[flock_state(owner.lock)]
    if by_lock == "dead" and _is_copied(owner, here):
        by_lock = "unknown"
    if by_lock != "alive":
        from wal_agent.supervise.ancestry import is_supervisor

        return "alive" if is_supervisor(owner.pid, run) else by_lock
    return by_lock


def _is_copied(owner: Host, here: Host) -> bool:
    """Whether the lock that the owner held is another file than the one that is here: the disk is a copy, maybe."""
    return owner.same_kernel(here.boot, here.pidns) and bool(owner.file) and _which_file(owner.lock) != owner.file


class RunDir(msgspec.Struct, frozen=True):
    """A run's private folder: `lock` (held by flock while the supervisor lives), `hook.sock`, `agent.pid`, `session`,
    `place` (its job and its workspace). `mark`: of this process as its supervisor (ancestry.mark_run).

    The lock file stays when the run ends: it says "dead" to whoever reads the lease later. `sweep` takes old ones. It
    holds the path of the state folder that the run works with: of one user, several may share a runtime folder."""

    run: str
    path: Path
    lock_fd: int
    mark: int = -1

    @classmethod
    def create(cls, runtime: Path, run: str, state: Path = Path()) -> RunDir:
        from wal_agent.supervise.ancestry import mark_run

        path = runtime / run
        path.mkdir(mode=0o700)
        fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try_lock(fd)  # it is new: at most somebody looks at it
        with suppress(OSError):  # a full disk
            os.write(fd, os.fsencode(state))
        return cls(run, path, fd, mark_run(run))

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def socket(self) -> Path:
        return self.path / "hook.sock"

    def write(self, name: str, text: str) -> None:
        """Replace a small file in one step (hook clients read it at any time)."""
        temp = self.path / f".{name}.{os.getpid()}"
        try:
            temp.write_bytes(os.fsencode(text))
        except OSError as error:
            error.filename = str(temp)  # a full disk names no file
            raise
        temp.replace(self.path / name)

    def end(self) -> None:
        """Free the lock and drop everything that only a live run needs."""
        for name in ("hook.sock", "agent.pid", "session", PLACE):
            (self.path / name).unlink(missing_ok=True)
        os.close(self.lock_fd)
        if self.mark >= 0:
            os.close(self.mark)


def sweep_run_dirs(runtime: Path, keep: int = 64) -> None:
    """Remove the folders of dead runs but for the newest `keep`, whose locks may still be asked after."""
    import shutil

    with suppress(OSError):
        folders = sorted((p for p in runtime.iterdir() if (p / "lock").is_file()), key=lambda p: p.lstat().st_mtime)
        for path in folders[:-keep]:
            if not is_run_live(path):
                shutil.rmtree(path, ignore_errors=True)


def is_run_of(run_dir: Path, state: Path) -> bool:
    """Whether the run of this folder works, or worked, with that state folder."""
    return read_plain(run_dir / "lock") == os.fsencode(state)


def is_run_live(run_dir: Path) -> bool:
    """Whether the supervisor of this run folder holds its lock."""
    return flock_state(run_dir / "lock") == "held"


def job_at_work(runtime: Path, workspace: Path, apart: Collection[str]) -> str:
    """A job that a live run has in `workspace`; "" for none. `apart`: runs that do not count."""
    for path in runtime.iterdir():
        note = (read_plain(path / PLACE) or b"").decode("utf-8", "surrogateescape")
        job, _, place = note.partition("\n")
        if place == str(workspace) and path.name not in apart and is_run_live(path):
            return job
    return ""


def probe_holder(seen: StoredLease | None, here: Host, spools: Path, bucket_url: str, unchanged: float = 0.0) -> Local:
    """`spools`: the folder of this user's spools; `unchanged`: seconds that the lease was seen not to change."""
    if seen is None:
        return Local(here.boot, here.pidns)
    doc = seen.doc
    spool = spool_presence(spools, doc.spool, SpoolOwner(doc.job, bucket_url)) if doc.spool else "absent"
    life, copied = lock_state(doc.host, here, doc.run), _is_copied(doc.host, here)
    return Local(here.boot, here.pidns, life, unchanged, spool, here.name, str(spools), copied)
