"""A machine that has no more of something. `run` does with less, or refuses in words; it never ends with
70, and a job that was taken is given back or left to its lease, never settled over a live agent.

Each limit is moved over the whole way of one run of the stand-in agent. Open files and disk space are limited by the
kernel; threads and processes at the one place where Python asks for them, since the kernel limits no root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import TESTS
from tests.stub_agent import STUB

LIMITED = """
import errno, os, resource, subprocess, sys, threading
kind, most = os.environ.pop("LIMIT").split(":")
left = int(most)
def limited(call, error):
    def act(*args, **options):
        global left
        left -= 1
        if left < 0:
            raise error
        return call(*args, **options)
    return act
if kind == "threads":
    threading.Thread.start = limited(threading.Thread.start, RuntimeError("can't start new thread"))
if kind == "processes":
    error = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    subprocess._fork_exec = limited(subprocess._fork_exec, error)
    os.posix_spawn = limited(os.posix_spawn, error)
if kind == "files":
    resource.setrlimit(resource.RLIMIT_NOFILE, (left, left))
from wal_agent.cli.main import main
sys.argv[0] = "wal-agent"
main()
"""


class Machine:
    """A home, a workspace and a bucket in folders; `limited` runs the stand-in agent under one limit."""

    def __init__(self, root: Path, runtime: Path) -> None:
        self.root, self.runtime = root, runtime
        for folder in ("work", "home/.gemini"):
            (root / folder).mkdir(parents=True)
        self.stub = root / "gemini"
        self.stub.write_text(STUB)
        self.stub.chmod(0o755)
        self.limited("none:0", job="warm")  # the proof of an untested version and the first use of the bucket are done

    def limited(self, limit: str, *before: str, job: str = "job") -> subprocess.CompletedProcess[str]:
        (self.root / "began").unlink(missing_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(TESTS.parent),
            "HOME": str(self.root / "home"),
            "WAL_AGENT_BUCKET": (self.root / "bucket").as_uri(),
            "WAL_AGENT_JOB": job,
            "WAL_AGENT_TTL": "2",
            "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
            "WAL_AGENT_GEMINI": str(self.stub),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "STUB_BEGAN": str(self.root / "began"),
            "LIMIT": limit,
        }
        argv = [*before, sys.executable, "-c", LIMITED, "run", "gemini", "--", "-p", "go"]
        return subprocess.run(
            argv, cwd=self.root / "work", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Short, for the hooks' socket."""
    with tempfile.TemporaryDirectory(prefix="wa-lim-", dir="/tmp") as folder:
        yield Path(folder) / "run"


@pytest.fixture
def machine(tmp_path: Path, runtime: Path) -> Machine:
    return Machine(tmp_path.resolve(), runtime)


def in_words(done: subprocess.CompletedProcess[str], *codes: int) -> bool:
    """It ran to its end, or refused with one of `codes`; no report of a bug, no traceback. 3: the stand-in's own, of
    its hook client that had no answer."""
    said = done.stderr
    return done.returncode in (0, 3, *codes) and "a bug in wal-agent" not in said and "Traceback" not in said


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_run_with_too_few(machine: Machine, kind: str) -> None:
    codes: list[int] = []
    while 0 not in codes:
        left = len(codes)
        done = machine.limited(f"{kind}:{left}", job=f"{kind}-{left}")
        assert in_words(done, 75), (left, done.returncode, done.stderr)
        codes.append(done.returncode)
    assert codes[0] == 75 and len(codes) < 30


def test_a_run_with_too_few_open_files(machine: Machine) -> None:
    codes = []
    for most in (10, 11, 12, 13, 14, 16, 24, 64):
        done = machine.limited(f"files:{most}", job=f"files-{most}")
        assert in_words(done, 69, 75, 78), (most, done.returncode, done.stderr)  # 69: the bucket; 78: the agent
        codes.append(done.returncode)
    assert codes[0] != 0 and codes[-1] == 0


FULL = """
cp -a "$0" "$0.kept" && mount -t tmpfs -o size=1m,mode=0700 tmpfs "$0" && cp -a "$0.kept/." "$0" || exit 99
head -c 2m /dev/zero > "$0/fill" 2>/dev/null
truncate -s "-$1" "$0/fill"
shift
exec "$@"
"""


@pytest.mark.parametrize(
    "folder,free,codes",
    [
        ("run", "0", {75}),
        ("home/.local/state", "0", {0}),  # without spool, mirror and captures of the tree
        ("home/.local/state", "12K", {0}),
        ("home/.gemini", "0", {0}),  # nothing of ours is written there (decision 040)
        ("bucket", "8K", {69}),
        ("bucket", "24K", {69}),
        ("work", "0", {0}),
    ],
)
def test_a_run_on_a_full_disk(machine: Machine, folder: str, free: str, codes: set[int]) -> None:
    place = machine.runtime if folder == "run" else machine.root / folder
    done = machine.limited("none:0", "unshare", "-m", "sh", "-c", FULL, str(place), free)
    assert done.returncode in codes and in_words(done, *codes), (done.returncode, done.stderr)


READ_ONLY = 'mkdir -p "$0" && mount -t tmpfs -o ro tmpfs "$0" && exec "$@"'


def test_a_run_that_could_not_save_one_file_is_refused(machine: Machine) -> None:
    """A container's read-only root, say: the run would live its life and lose the working tree with the machine."""
    place = machine.root / "home/.local/state"
    done = machine.limited("none:0", "unshare", "-m", "sh", "-c", READ_ONLY, str(place), job="read-only")
    assert in_words(done, 78) and done.returncode == 78, done.stderr
    assert str(place) in done.stderr and "XDG_STATE_HOME" in done.stderr
    assert not (machine.root / "began").exists() and not list((machine.root / "bucket").rglob("read-only*"))
    words = ("env", "WAL_AGENT_WORKSPACE=off", "unshare", "-m", "sh", "-c", READ_ONLY, str(place))
    asked = machine.limited("none:0", *words, job="read-only")
    assert asked.returncode == 0 and in_words(asked), asked.stderr


def test_too_little_address_space_is_named(machine: Machine) -> None:
    done = machine.limited("none:0", "sh", "-c", 'ulimit -v 300000; exec "$@"', "sh", job="narrow")
    assert done.returncode == 75 and in_words(done, 75) and "ulimit -v" in done.stderr, done.stderr


def test_a_umask_without_the_owners_rights_leaves_nothing_unusable(machine: Machine) -> None:
    machine.runtime.rename(machine.runtime.with_name("old"))
    done = machine.limited("none:0", "sh", "-c", 'umask 0177; exec "$@"', "sh", job="mask")
    assert done.returncode == 0 and in_words(done), done.stderr
    assert machine.runtime.stat().st_mode & 0o777 == 0o700
    for made in machine.runtime, *machine.runtime.iterdir():
        assert not made.is_dir() or made.stat().st_mode & 0o700 == 0o700
    machine.runtime.chmod(0o600)  # as an older version left it
    assert machine.limited("none:0", job="mask").returncode == 0
    assert machine.runtime.stat().st_mode & 0o777 == 0o700


def test_a_run_without_inotify_saves_by_interval_and_says_so(machine: Machine) -> None:
    lowered = 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"'
    done = machine.limited("none:0", "unshare", "-Ur", "sh", "-c", lowered, "sh")
    assert done.returncode == 0 and in_words(done), done.stderr
    said = [line for line in done.stderr.splitlines() if "fs.inotify" in line]
    assert len(said) == 1, done.stderr
