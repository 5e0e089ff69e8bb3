"""supervise/machine.py: who we are to others, private folders, locks, and one view of a lease's holder for all
commands.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.unit.supervise.crew import PATIENCE, SILENT, short_folder, until
from tests.unit.wal.spooling import Disk, call, cut_off, down, up
from tests.unit.wal.world import FIELDS, KEYS, TTL, World
from wal_agent.bucket import default_url
from wal_agent.cli.view import read_view
from wal_agent.config import Settings
from wal_agent.errors import ConfigError, LeaseHeld
from wal_agent.operate.acknowledge import acknowledge_call
from wal_agent.operate.at_rest import JobAccess
from wal_agent.operate.dry_run import foresee_start
from wal_agent.operate.unlock import UnlockRequest, unlock
from wal_agent.paths import state_dir
from wal_agent.records import Host
from wal_agent.supervise import machine
from wal_agent.supervise.lease_keeper import AcquireOptions, acquire_job
from wal_agent.supervise.machine import RunDir, is_run_live, lock_state, runtime_dir, sweep_run_dirs
from wal_agent.wal.job import OpenedJob
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.store import JobStore

HERE = Host(name="h", boot="b", pidns="p", pid=1, lock="/x")


def owner(lock: Path | str) -> Host:
    return Host(name="h", boot="b", pidns="p", pid=2, lock=str(lock))


@contextmanager
def other_process(runtime: Path, run: str) -> Iterator[subprocess.Popen[bytes]]:
    """A second process that holds the lock of a run folder until it is killed."""
    code = (
        "import sys, time; from pathlib import Path; from wal_agent.supervise.machine import RunDir\n"
        "d = RunDir.create(Path(sys.argv[1]), sys.argv[2]); print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(runtime), run], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_lives_as_long_as_its_process_and_not_a_moment_longer(tmp_path: Path) -> None:
    """PROTOCOL.md: the kernel frees the flock at any kind of death, so a start on the same host waits for no ttl."""
    with other_process(tmp_path, "r") as process:
        lock = tmp_path / "r" / "lock"
        assert lock_state(owner(lock), HERE, "r") == "alive" and is_run_live(tmp_path / "r")
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        assert lock_state(owner(lock), HERE, "r") == "dead" and not is_run_live(tmp_path / "r")


def test_looking_at_a_lock_takes_nothing_away(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "r")
    assert [lock_state(owner(run.lock), HERE, "r") for _ in range(3)] == ["alive"] * 3
    run.end()
    assert [lock_state(owner(run.lock), HERE, "r") for _ in range(3)] == ["dead"] * 3


@pytest.mark.parametrize("other", [{"boot": "b2"}, {"pidns": "p2"}])
def test_a_lock_of_another_kernel_or_process_table_says_nothing(tmp_path: Path, other: dict[str, str]) -> None:
    run = RunDir.create(tmp_path, "r")
    run.end()
    words = {"boot": "b", "pidns": "p"} | other
    assert lock_state(Host(name="h", pid=2, lock=str(run.lock), **words), HERE, "r") == "unknown"


@pytest.mark.parametrize("kind", ["missing", "folder", "link", "pipe", "socket", "device", "zero byte", "empty"])
def test_what_is_no_plain_lock_is_unknown_and_never_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path comes from the bucket: a hostile one must not hang, be followed, or count as a death."""
    path = tmp_path / "lock"
    real = tmp_path / "real"
    real.touch()
    match kind:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(real)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            monkeypatch.chdir(tmp_path)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind("lock")
            sock.close()
    named = {"device": "/dev/zero", "zero byte": "a\0b", "empty": ""}.get(kind, str(path))
    assert lock_state(owner(real), HERE, "r") == "dead"
    found: list[str] = []
    looker = threading.Thread(target=lambda: found.append(lock_state(owner(named), HERE, "r")), daemon=True)
    looker.start()
    looker.join(PATIENCE)
    assert found == ["unknown"]


def test_another_users_lock_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    path.touch()
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    assert lock_state(owner(path), HERE, "r") == "unknown"


# ---- private folders


@pytest.fixture
def short() -> Iterator[Path]:
    """pytest's own folder may be too long for a socket already."""
    with short_folder() as folder:
        yield folder


def test_the_runtime_folder_is_made_private(short: Path) -> None:
    path = runtime_dir({"WAL_AGENT_RUNTIME_DIR": str(short / "a" / "b")})
    assert path.stat().st_mode & 0o777 == 0o700
    assert runtime_dir({"WAL_AGENT_RUNTIME_DIR": str(path)}) == path


def test_a_runtime_folder_too_long_for_a_socket_is_refused_before_anything_begins(short: Path) -> None:
    path = short / ("x" * 80)
    with pytest.raises(ConfigError, match="too long a path"):
        runtime_dir({"WAL_AGENT_RUNTIME_DIR": str(path)})
    assert not path.exists()


@pytest.mark.parametrize("kind", ["loose", "link", "dangling", "file", "foreign", "no parent"])
def test_a_runtime_folder_that_others_could_use_is_refused(
    short: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: whoever can write there could answer hooks. The error is one of configuration (78), not a bug."""
    path = short / "r"
    safe = short / "safe"
    safe.mkdir(mode=0o700)
    match kind:
        case "loose":
            path.mkdir()
            path.chmod(0o711)
        case "link":
            path.symlink_to(safe)
        case "dangling":
            path.symlink_to(short / "nowhere")
        case "file":
            path.touch()
        case "foreign":
            path.mkdir(mode=0o700)
            uid = os.getuid()
            monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        case "no parent":
            (short / "f").touch()
            path = short / "f" / "r"
    with pytest.raises(ConfigError, match="WAL_AGENT_RUNTIME_DIR"):
        runtime_dir({"WAL_AGENT_RUNTIME_DIR": str(path)})


@pytest.mark.parametrize(("code", "fine"), [(errno.ENOLCK, False), (errno.ENOTSUP, False), (errno.ENOSPC, True)])
def test_a_state_folder_without_locks_is_refused_and_a_full_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fine: bool
) -> None:
    """Without them no file of the workspace would be saved in the whole run."""

    def flock(fd: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("wal_agent.safefs.fcntl.flock", flock)
    with nullcontext() if fine else pytest.raises(ConfigError, match="XDG_STATE_HOME"):
        machine.require_state_dir({"XDG_STATE_HOME": str(tmp_path)})


@pytest.mark.parametrize("xdg", ["/state", "relative", ""])
def test_local_state_stands_where_the_default_bucket_stands(xdg: str) -> None:
    env = {"HOME": "/home/u", "XDG_STATE_HOME": xdg}
    assert (state_dir(env) / "bucket").as_uri() == default_url(env)


def test_a_run_folder_is_private_and_is_never_taken_twice(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "r")
    assert run.path.stat().st_mode & 0o777 == 0o700 and run.lock.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        RunDir.create(tmp_path, "r")
    run.end()


def test_the_end_of_a_run_leaves_the_lock_alone(tmp_path: Path) -> None:
    """The lock file says "dead" to whoever reads the lease later; the rest works for a live run only."""
    run = RunDir.create(tmp_path, "r")
    for name in ("session", "agent.pid", "hook.sock"):
        run.write(name, "x\n")
    assert sorted(p.name for p in run.path.iterdir()) == ["agent.pid", "hook.sock", "lock", "session"]
    run.end()
    assert [p.name for p in run.path.iterdir()] == ["lock"]


# ---- sweeping


def aged(path: Path, age: int) -> Path:
    os.utime(path, (age, age))
    return path


def test_sweeping_takes_old_dead_runs_and_never_a_live_one(tmp_path: Path) -> None:
    """I7: what dead runs left goes; a live run's folder stays, however old and however many are newer."""
    live = RunDir.create(tmp_path, "live")
    aged(live.path, 1)
    dead = []
    for n in range(5):
        run = RunDir.create(tmp_path, f"dead{n}")
        run.end()
        dead.append(aged(run.path, 10 + n))
    (tmp_path / "not a run").mkdir()
    sweep_run_dirs(tmp_path, keep=2)
    assert live.path.is_dir() and (tmp_path / "not a run").is_dir()
    assert [d.is_dir() for d in dead] == [False, False, False, True, True]
    live.end()
    sweep_run_dirs(tmp_path, keep=2)
    assert not live.path.exists()


def test_sweeping_what_another_process_holds(tmp_path: Path) -> None:
    with other_process(tmp_path, "r") as process:
        sweep_run_dirs(tmp_path, keep=-1)  # every folder
        assert (tmp_path / "r" / "lock").exists()
        process.kill()
        process.wait(PATIENCE)
        until(lambda: not is_run_live(tmp_path / "r"), "the lock is free")
        aged(tmp_path / "r", 1)
        RunDir.create(tmp_path, "new").end()
        sweep_run_dirs(tmp_path, keep=1)
        assert not (tmp_path / "r").exists() and (tmp_path / "new").exists()


def test_this_host_is_known_by_the_kernel_unless_told_otherwise() -> None:
    a, b = machine.this_host({}, Path("/l")), machine.this_host({}, Path("/l"))
    assert a.same_kernel(b.boot, b.pidns) and a.boot and a.pid == os.getpid()
    other = machine.this_host({"WAL_AGENT_HOST_ID": "vm-2"}, Path("/l"))
    assert not a.same_kernel(other.boot, other.pidns)


SETTINGS = Settings(bucket="file:///nowhere", job="job")


class Machine:
    """Real folders and locks; each has a kernel of its own."""

    def __init__(self, world: World, root: Path, name: str) -> None:
        self.world = world
        self.env = {
            "HOME": str(root),
            "XDG_STATE_HOME": str(root / name),
            "WAL_AGENT_RUNTIME_DIR": str(root / f"r-{name}"),
            "WAL_AGENT_HOST_ID": name,
        }

    def start(self, run: str) -> tuple[OpenedJob, machine.RunDir]:
        run_dir = machine.RunDir.create(machine.runtime_dir(self.env), run)
        here = machine.this_host(self.env, run_dir.lock)
        claim = LeaseRequest(run, here, "gemini", "/w", TTL)
        options = AcquireOptions(machine.spools_dir(self.env), spool=True)
        world = self.world
        opened = acquire_job(
            JobStore(world.bucket, KEYS, world.clock, random.Random(1)), claim, FIELDS, options, SILENT
        )
        return opened, run_dir

    def cut_off(self) -> None:
        """A run that died in an outage, with call 1 in its spool only."""
        job, run_dir = self.start("dead")
        down(self.world)
        call(job, "one")
        cut_off(job)
        run_dir.end()
        up(self.world)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def world(folder: Path) -> World:
    world = World()
    Machine(world, folder, "vm-1").cut_off()
    return world


def test_on_the_machine_of_the_spool_all_say_that_a_start_carries_it_in(world: World, folder: Path) -> None:
    here = Machine(world, folder, "vm-1")
    seen = foresee_start(world.bucket, KEYS, folder, "gemini", SETTINGS, here.env)
    assert "refused" not in seen.plan and any("first carry in 1 segment of" in row for row in seen.rows)
    done = unlock(world.bucket, KEYS, UnlockRequest(None), here.env)
    assert not done.done and done.said.endswith("The next `wal-agent run` opens it at once.")
    assert "a start here saves them" in done.notes[0] and "accept-loss" not in done.notes[0]
    assert read_view(world.bucket, KEYS, here.env).state == "crashed"
    job, run_dir = here.start("next")
    assert [o.intent.agent_call for o in job.replay.state.open] == ["one"]
    run_dir.end()


def test_a_call_is_not_settled_past_what_the_spool_here_holds(world: World, folder: Path) -> None:
    """R9, I8: opening without it would leave it behind for good."""
    here = Machine(world, folder, "vm-1")
    before = world.inner.get(KEYS.lease).version
    with pytest.raises(LeaseHeld, match="Run it here first: `wal-agent run AGENT` carries in"):
        acknowledge_call(JobAccess(world.bucket, KEYS, TTL, here.env), 1, True)
    assert world.inner.get(KEYS.lease).version == before


def test_elsewhere_the_loss_has_to_be_accepted(world: World, folder: Path) -> None:
    away = Machine(world, folder, "vm-2")
    world.clock.at += TTL + 1
    assert "--accept-loss" in foresee_start(world.bucket, KEYS, folder, "gemini", SETTINGS, away.env).plan
    with pytest.raises(LeaseHeld, match="--accept-loss"):
        acknowledge_call(JobAccess(world.bucket, KEYS, TTL, away.env), 1, True)
    done = unlock(world.bucket, KEYS, UnlockRequest(None), away.env)
    assert "`wal-agent run --accept-loss` opens it at once" in done.said and "one elsewhere needs" in done.notes[0]


def test_behind_a_reboot_the_spool_is_carried_in_when_one_ttl_has_passed(tmp_path: Path) -> None:
    """R9, I2: the owner lives, and its lock looks free from another client of the same file system."""
    world = World()
    disk = Disk(world, tmp_path / "spools")
    first = disk.start("a")
    down(world)
    call(first, "one")
    up(world)
    first.lease.renew()
    cut_off(first)
    disk.reboot()
    with pytest.raises(LeaseHeld, match="can be taken over in 30 s"):
        disk.start("b")
    first.lease.renew()
    world.clock.at += TTL
    assert [o.intent.agent_call for o in disk.start("c").replay.state.open] == ["one"]
