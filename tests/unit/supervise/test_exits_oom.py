"""supervise/exits.py: the OOM killer's count, where each kind of kernel set-up has it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from wal_agent.supervise import exits
from wal_agent.supervise.exits import ExitFacts, classify_exit

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {n}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {n}\n"


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("cgroups", "file", "text"),
    [
        ("0::/user.slice/run.scope\n", "user.slice/run.scope/memory.events", EVENTS),
        ("0::/\n", "memory.events", EVENTS),  # a container with a namespace of its own
        ("0::/kubepods/pod1/abc\n", "memory.events", EVENTS),  # one without: the mount shows it
        ("9:memory:/docker/abc\n0::/x\n", "memory/docker/abc/memory.oom_control", CONTROL),
        ("9:cpu,memory:/docker/abc\n", "memory/memory.oom_control", CONTROL),
    ],
)
def test_where_the_count_is(tmp_path: Path, cgroups: str, file: str, text: str) -> None:
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    put(proc / "self/cgroup", cgroups)
    put(proc / "vmstat", "nr_free_pages 7\noom_kill 99\n")
    place = put(mount / file, text.format(n=2))
    assert exits.oom_counter(proc, mount) == place
    assert exits.oom_kills_since(2, place) == 0
    place.write_text(text.format(n=4))
    assert exits.oom_kills(place) == 4 and exits.oom_kills_since(2, place) == 2


def test_without_a_cgroup_the_machine_counts(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    vmstat = put(proc / "vmstat", "nr_free_pages 7\noom_kill 99\n")
    assert exits.oom_counter(proc, tmp_path / "none") == vmstat and exits.oom_kills(vmstat) == 99


def test_nothing_known_is_no_kill(tmp_path: Path) -> None:
    assert exits.oom_counter(tmp_path, tmp_path) is None
    assert exits.oom_kills(None) is None and exits.oom_kills_since(None, None) == 0
    odd = put(tmp_path / "odd", "oom_kill many\n")
    assert exits.oom_kills(odd) is None and exits.oom_kills_since(3, odd) == 0
    odd.write_bytes(b"\xff\xfe")
    assert exits.oom_kills(odd) is None


EATS = "held = []\nfor n in range(128): held.append(bytearray(b'x' * (8 << 20)))"
ENTERS = "echo $$ > {procs} && exec {python} -I -S -c {eats}"
PLAYS = "echo oom_kill 1 > {file}; kill -9 $$"


@contextmanager
def small_room(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A cgroup with 64 MiB and what runs out of memory in it; where this machine lets us make none, a file that counts
    as the kernel would, and what ends as it would."""
    counts = exits.oom_counter()
    room = (counts.parent if counts else tmp_path / "none") / f"wal-agent-test-{os.getpid()}"
    legacy = counts is not None and counts.name == "memory.oom_control"
    limits = {"memory.limit_in_bytes": 64 << 20, "memory.swappiness": 0}
    if not legacy:
        limits = {"memory.max": 64 << 20, "memory.swap.max": 0}
    try:
        room.mkdir()
        for name, value in limits.items():
            (room / name).write_text(str(value))
        file, procs = room / (counts.name if counts else ""), room / "cgroup.procs"
        subprocess.run(["sh", "-c", f"echo $$ > {procs}"], check=True, stderr=subprocess.DEVNULL)
        assert exits.oom_kills(file) == 0
        script = ENTERS.format(procs=procs, python=sys.executable, eats=shlex.quote(EATS))
    except (OSError, subprocess.CalledProcessError, AssertionError):
        file = put(tmp_path / "events", EVENTS.format(n=0))
        script = PLAYS.format(file=file)
    try:
        yield file, script
    finally:
        with suppress(OSError):
            room.rmdir()


def test_what_the_kernel_kills_for_memory_is_known(tmp_path: Path) -> None:
    with small_room(tmp_path) as (file, script):
        before = exits.oom_kills(file)
        code = subprocess.run(["sh", "-c", script], check=False).returncode
        kills = exits.oom_kills_since(before, file)
    assert (code, kills) == (-9, 1)
    assert classify_exit(ExitFacts(code, False, False, oom_kills=kills)).cls == "out_of_memory"


def test_this_machine_counts_somewhere() -> None:
    """Linux has had one of the three for long; elsewhere there is none, and that is said."""
    found = exits.oom_counter()
    assert (found is not None) is Path("/proc/vmstat").exists()
